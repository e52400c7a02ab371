"""Glob patterns of `case`, `[[ == ]]` and `${x#...}`, and brace expansion.

A pattern runs as a set of states over the text, so that no pattern can take longer than text x pattern.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from miniverl.compiler.shell_syntax import Literal, Parameter, Part

MAX_WORK = 1_000_000
MAX_BRACED = 1_000

_CLASSES = {
    "alnum": "a-zA-Z0-9",
    "alpha": "a-zA-Z",
    "digit": "0-9",
    "lower": "a-z",
    "upper": "A-Z",
    "space": r"\s",
    "punct": r"!-/:-@\[-`{-~",
    "xdigit": "0-9A-Fa-f",
}
_SEQUENCE = re.compile(
    r"(?:(-?\d{1,9})\.\.(-?\d{1,9})|([A-Za-z])\.\.([A-Za-z]))(?:\.\.(-?\d{1,9}))?$"
)


class TooMuchWork(Exception):
    """A pattern or a brace expansion that would take too long."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """Steps: `*`, a regular expression for one character, in order."""

    steps: tuple[str, ...]

    def ends(self, text: str, start: int = 0) -> Iterator[int]:
        """The offsets up to which the pattern fits, shortest first."""
        if (len(text) - start + 1) * (len(self.steps) + 1) > MAX_WORK:
            raise TooMuchWork
        matchers = [None if step == "*" else re.compile(step, re.DOTALL) for step in self.steps]
        states = self._reachable({0})
        for at in range(start, len(text) + 1):
            if len(matchers) in states:
                yield at
            if not states or at == len(text):
                return
            states = self._reachable(set(_after(matchers, states, text[at])))

    @property
    def fits_anything(self) -> bool:
        return bool(self.steps) and set(self.steps) == {"*"}

    def fits(self, text: str) -> bool:
        """The whole text fits."""
        return len(text) in self.ends(text)

    def _reachable(self, states: set[int]) -> set[int]:
        """With those that a `*` reaches by standing for nothing."""
        for state in sorted(states):
            while state < len(self.steps) and self.steps[state] == "*":
                state += 1
                states.add(state)
        return states


def _after(
    matchers: Sequence[re.Pattern[str] | None], states: set[int], character: str
) -> Iterator[int]:
    """The states that a character leads to."""
    for state in states:
        if state < len(matchers):
            matcher = matchers[state]
            if matcher is None:
                yield state
            elif matcher.fullmatch(character):
                yield state + 1


def pattern(parts: Sequence[tuple[str, bool]]) -> Pattern | None:
    """From pieces of text, each quoted or not; None for extended patterns, `@(a|b)`: not read."""
    text = "".join(piece for piece, _ in parts)
    quoted = [is_quoted for piece, is_quoted in parts for _ in piece]
    steps: list[str] = []
    at = 0
    while at < len(text):
        character = text[at]
        at += 1
        if quoted[at - 1]:
            steps.append(re.escape(character))
        elif character in "?*+@!" and text.startswith("(", at) and not quoted[at]:
            return None
        elif character == "\\" and at < len(text):
            steps.append(re.escape(text[at]))
            at += 1
        elif character == "*":
            steps.append("*")
        elif character == "?":
            steps.append(".")
        elif character == "[" and (found := _bracket(text, quoted, at)):
            steps.append(found[0])
            at = found[1]
        else:
            steps.append(re.escape(character))
    return Pattern(tuple(steps))


def replaced(text: str, old: Pattern, new: str, *, everywhere: bool, anchor: str) -> str:
    """`${text/old/new}`: the longest match at the first place, or at every place."""
    if len(text) * len(text) * (len(old.steps) + 1) > MAX_WORK * 4:
        raise TooMuchWork
    out: list[str] = []
    at = 0
    while at <= len(text):
        ends = list(old.ends(text, at)) if anchor != "#" or at == 0 else []
        if anchor == "%":
            ends = [end for end in ends if end == len(text)]
        if ends and (ends[-1] > at or anchor):
            out.append(new)
            at = max(ends[-1], at)
            if not everywhere:
                break
        else:
            out.append(text[at : at + 1])
            at += 1
    return "".join(out) + text[at:]


def trimmed(text: str, affix: Pattern, operator: str) -> str:
    """`${text#affix}` and its three kin."""
    if operator.startswith("%"):
        # Every step stands for one character or is a `*`, so that a suffix is a prefix read backwards.
        backwards = Pattern(affix.steps[::-1])
        return trimmed(text[::-1], backwards, operator.replace("%", "#"))[::-1]
    ends = list(affix.ends(text))
    if not ends:
        return text
    return text[ends[-1] if operator == "##" else ends[0] :]


def braced(parts: Sequence[Part]) -> list[list[Part]]:
    """The words that `a{b,c}` and `{1..3}` stand for; one word when there is nothing to expand."""
    if not any(isinstance(one, Literal) and not one.is_quoted and "{" in one.text for one in parts):
        return [list(parts)]
    return [_renamed(word) for word in _expanded([atom for part in parts for atom in _atoms(part)])]


def _atoms(part: Part) -> Iterator[Part]:
    """Unquoted text character by character, everything else whole."""
    if isinstance(part, Literal) and not part.is_quoted:
        yield from (Literal(character, False) for character in part.text)
    else:
        yield part


def _renamed(atoms: Sequence[Part]) -> list[Part]:
    """With `$x1` for the `$x` and the `1` of `$x{1,2}`: braces are expanded before variables are."""
    renamed: list[Part] = []
    for atom in atoms:
        last = renamed[-1] if renamed else None
        if (
            isinstance(last, Parameter)
            and not last.is_quoted
            and last.source == f"${last.name}"
            and last.name.isidentifier()
            and isinstance(atom, Literal)
            and not atom.is_quoted
            and re.match(r"\w", atom.text, re.ASCII)
        ):
            name = last.name + atom.text
            renamed[-1] = replace(last, name=name, source=f"${name}")
        else:
            renamed.append(atom)
    return renamed


def _expanded(atoms: list[Part]) -> list[list[Part]]:
    for start, atom in enumerate(atoms):
        if not _is(atom, "{"):
            continue
        commas, end = _commas(atoms, start)
        if end is None:
            continue
        inside = atoms[start + 1 : end]
        if commas:
            bounds = [start, *commas, end]
            choices = [one for a, b in pairwise(bounds) for one in _expanded(atoms[a + 1 : b])]
        else:
            choices = [[Literal(one, False)] for one in _sequence(inside)]
        if choices:
            tails = _expanded(atoms[end + 1 :])
            if len(choices) * len(tails) > MAX_BRACED:
                raise TooMuchWork
            return [[*atoms[:start], *choice, *tail] for choice in choices for tail in tails]
    return [atoms]


def _commas(atoms: list[Part], start: int) -> tuple[list[int], int | None]:
    """The commas between the brace at `start` and the one that closes it, and that one."""
    level = 0
    commas: list[int] = []
    for at in range(start, len(atoms)):
        if _is(atoms[at], "{"):
            level += 1
        elif _is(atoms[at], "}"):
            level -= 1
            if level == 0:
                return commas, at
        elif level == 1 and _is(atoms[at], ","):
            commas.append(at)
    return commas, None


def _sequence(atoms: list[Part]) -> list[str]:
    """The items of `1..5..2` or of `a..e`; none when it is no sequence."""
    text = "".join(one.text for one in atoms if isinstance(one, Literal) and not one.is_quoted)
    found = _SEQUENCE.match(text)
    if found is None or len(text) != len(atoms):
        return []
    is_number = found[1] is not None
    first, last = (int(found[1]), int(found[2])) if is_number else (ord(found[3]), ord(found[4]))
    step = abs(int(found[5] or 1)) or 1
    if abs(last - first) // step >= MAX_BRACED:
        raise TooMuchWork
    items = range(first, last + 1, step) if last >= first else range(first, last - 1, -step)
    if not is_number:
        return [chr(one) for one in items]
    pads = any(re.match(r"-?0\d", one) for one in (found[1], found[2]))
    width = max(len(found[1]), len(found[2])) if pads else 0
    return [f"{one:0{width}d}" for one in items]


def _is(atom: Part, character: str) -> bool:
    return isinstance(atom, Literal) and not atom.is_quoted and atom.text == character


def _bracket(text: str, quoted: Sequence[bool], at: int) -> tuple[str, int] | None:
    """The regular expression of `[...]` whose bracket opens before `at`, and the offset after it."""
    negates = text.startswith(("!", "^"), at)
    body: list[str] = []
    start = at = at + negates
    while at < len(text):
        if text[at] == "]" and at > start and not quoted[at]:
            expression = f"[{'^' if negates else ''}{''.join(body)}]"
            return (expression, at + 1) if _compiles(expression) else None
        named = re.compile(r"\[:(\w+):\]").match(text, at)
        if named and not quoted[at]:
            body.append(_CLASSES.get(named[1], ""))
            at = named.end()
        else:
            is_range = text[at] == "-" and not quoted[at]
            body.append("-" if is_range else re.escape(text[at]))
            at += 1
    return None


def _compiles(expression: str) -> bool:
    try:
        re.compile(expression)
    except re.error:
        return False
    return True
