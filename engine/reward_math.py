r"""Rules that compare a final answer with the ground truth, text with text, as the pinned upstream does.

    gsm8k, gsm8k_flexible   the number behind "####"; the last number whatever
    math                    what stands in the last \boxed, after rewriting both sides the same way
    math_dapo               what stands behind the last "Answer:", after another rewriting

Each takes the response and the ground truth, and is pure. What it misreads upstream is misread here too: a
reward that were better would be another one.
"""

import re

_TAIL_CHARACTERS = 300  # of a response, where gsm8k and math_dapo look; upstream's

_HASHED_NUMBER = re.compile(r"#### (-?[0-9.,]+)")
_NUMBER = re.compile(r"-?[0-9.,]+")
_QUOTIENT = re.compile(r"(0|-?[1-9][0-9]*)/(0|-?[1-9][0-9]*)")
_ANSWER = re.compile(r"answer\s*:\s*([^\n]+)", re.IGNORECASE)


def gsm8k(response: str, truth: str) -> float:
    """1.0 if the last number behind "#### ", without its commas, is the ground truth to the letter; else 0.0.

    verl/utils/reward_score/gsm8k.py:20 (v0.9.0), method "strict".
    """
    found = _HASHED_NUMBER.findall(response[-_TAIL_CHARACTERS:])
    return float(bool(found) and found[-1].replace(",", "") == truth)


def gsm8k_flexible(response: str, truth: str) -> float:
    """1.0 if the last number, with its commas and whatever stops it, is the ground truth to the letter; else 0.0.

    verl/utils/reward_score/gsm8k.py:38 (v0.9.0), method "flexible". A full stop alone is no number, unless
    there is nothing else.
    """
    found = _NUMBER.findall(response[-_TAIL_CHARACTERS:])
    numbers = [each for each in found if each != "."] or found[:1]
    return float(bool(numbers) and numbers[-1] == truth)


def math(response: str, truth: str) -> float:
    """1.0 if the last boxed answer and the ground truth are written alike after rewriting both; else 0.0.

    verl/utils/reward_score/math_reward.py:17 (v0.9.0), after Hendrycks et al. 2021, MATH.
    """
    answer = _boxed(response)
    if answer is None:
        return 0.0
    try:
        return float(_rewritten(answer) == _rewritten(truth))
    except _Unreadable:
        return float(answer == truth)


def math_dapo(response: str, truth: str) -> dict[str, float | str]:
    """`score` 1.0 or -1.0, `acc` whether it is 1.0, and `pred`, the answer as it was compared.

    verl/utils/reward_score/math_dapo.py:245 (v0.9.0).
    """
    found = _ANSWER.findall(response[-_TAIL_CHARACTERS:])
    answer = _plain_answer(found[-1] if found else "[INVALID]")
    is_right = answer == _plain_answer(truth)
    return {"score": 1.0 if is_right else -1.0, "acc": float(is_right), "pred": answer}


class _Unreadable(Exception):
    """The text cannot be rewritten: upstream's code fails on it, and compares the texts as they are."""


def _boxed(text: str) -> str | None:
    r"""What stands in the last \boxed{...}; a "\boxed " without braces anywhere wins, and ends at a dollar sign."""
    if "\\boxed " in text:
        return text.rpartition("\\boxed ")[2].partition("$")[0]
    _, opening, rest = text.rpartition("\\boxed{")
    if not opening or "\\boxed" in rest:
        return None
    depth = 1
    for position, character in enumerate(rest):
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return rest[:position]
    return None


# In this order; of what is left some could be rewritten again, and is not.
_REWRITTEN = (
    ("\n", ""),
    ("\\!", ""),
    ("\\\\", "\\"),
    ("tfrac", "frac"),
    ("dfrac", "frac"),
    ("\\left", ""),
    ("\\right", ""),
    ("^{\\circ}", ""),
    ("^\\circ", ""),
    ("\\$", ""),
)
_UNIT = "\\text{ "  # how the data set writes a unit behind a number


def _rewritten(text: str) -> str:
    """The text without spaces, units and signs that say nothing, its roots and fractions in braces.

    Raises _Unreadable for two units, and for a root or a fraction of nothing.
    """
    for old, new in _REWRITTEN:
        text = text.replace(old, new)
    text, unit, behind = text.partition(_UNIT)
    if unit and _UNIT in behind:
        raise _Unreadable
    text = text.replace("\\\\%", "").replace("\\%", "")
    text = text.replace(" .", " 0.").replace("{.", "{0.")
    if text.startswith("."):
        text = "0" + text
    name, _, value = text.partition("=")
    if text.count("=") == 1 and len(name) <= 2:
        text = value
    text = _braced_fractions(_braced_roots(text).replace(" ", ""))
    if text == "0.5":
        text = "\\frac{1}{2}"
    return _QUOTIENT.sub(r"\\frac{\1}{\2}", text) if _QUOTIENT.fullmatch(text) else text


def _braced_roots(text: str) -> str:
    r"""\sqrt3 as \sqrt{3}."""
    head, *parts = text.split("\\sqrt")
    if "" in parts:
        raise _Unreadable
    braced = (each if each[0] == "{" else f"{{{each[0]}}}{each[1:]}" for each in parts)
    return "\\sqrt".join([head, *braced])


def _braced_fractions(text: str) -> str:
    r"""\frac12 as \frac{1}{2}, \frac1{72} as \frac{1}{72}; all as it was where one has a single character."""
    head, *parts = text.split("\\frac")
    braced = [head]
    for part in parts:
        if not part:
            raise _Unreadable
        if part[0] == "{":
            braced.append(part)
        elif len(part) == 1:
            return text
        else:
            below = "{" if part[1] == "{" else f"{{{part[1]}}}"
            braced.append(f"{{{part[0]}}}{below}{part[2:]}")
    return "\\frac".join(braced)


# Lewkowycz et al. 2022, Minerva, appendix D.1: replaced in this order, then left out in this order.
_REPLACED = (
    ("an ", ""),
    ("a ", ""),
    (".$", "$"),
    ("\\$", ""),
    ("\\ ", ""),
    (" ", ""),
    ("mbox", "text"),
    (",\\text{and}", ","),
    ("\\text{and}", ","),
    ("\\text{m}", "\\text{}"),
)
_LEFT_OUT = (
    *("square", "ways", "integers", "dollars", "mph", "inches", "hours", "km", "units", "\\ldots"),
    *("sue", "points", "feet", "minutes", "digits", "cents", "degrees", "cm", "gm", "pounds"),
    *("meters", "meals", "edges", "students", "childrentickets", "multiples", "\\text{s}"),
    *("\\text{.}", "\\text{\ns}", "\\text{}^2", "\\text{}^3", "\\text{\n}", "\\text{}"),
    *("\\mathrm{th}", "^\\circ", "^{\\circ}", "\\;", ",\\!", "{,}", '"', "\\dots"),
)
# What is matched, and what stays of it.
_KEPT = (
    (re.compile(r".*?\$(.*?)\$.*"), r"$\1$"),
    (re.compile(r"\\text\{(.*?)\}"), r"\1"),
    (re.compile(r"\\textbf\{(.*?)\}"), r"\1"),
    (re.compile(r"\\overline\{(.*?)\}"), r"\1"),
    (re.compile(r"\\boxed\{(.*)\}"), r"\1"),
    (re.compile(r"frac([^{])(.)"), r"frac{\1}{\2}"),
    (re.compile(r"sqrt([^{])"), r"sqrt{\1}"),
)


def _plain_answer(text: str) -> str:
    """What stands behind the last "=", without words for units, text commands and dollar signs."""
    text = text.rpartition("=")[2]
    for old, new in _REPLACED:
        text = text.replace(old, new)
    for word in _LEFT_OUT:
        text = text.replace(word, "")
    for pattern, kept in _KEPT:
        text = pattern.sub(kept, text)
    text = text.replace("$", "")
    without_commas = text.replace(",", "")
    return (without_commas if without_commas.isdigit() else text).strip()
