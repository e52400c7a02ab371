"""A plain YAML scalar as upstream's loader types it: YAML 1.1 as PyYAML reads it, with OmegaConf's floats.

So `1e-6` is a float, `1_000` is 1000, `010` is 8, `1:30` is 90, `off` is False, and a date stays text
(omegaconf/_utils.py, get_yaml_loader; yaml/resolver.py). tests/compiler compares both.
"""

import math
import re
from functools import reduce

Scalar = bool | int | float | str | None

_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_TRUTH = {
    spelling: truth
    for truth, names in ((True, ("yes", "true", "on")), (False, ("no", "false", "off")))
    for name in names
    for spelling in (name, name.capitalize(), name.upper())
}
_FLOAT = re.compile(
    r"""[-+]?[0-9][0-9_]*\.[0-9_]*(?:[eE][-+][0-9]+)?
    | [-+]?[0-9]+(?:_[0-9]+)*\.[0-9_]*(?:[eE][-+]?[0-9]+)?
    | [-+]?[0-9]+(?:_[0-9]+)*[eE][-+]?[0-9]+
    | \.[0-9][0-9_]*(?:[eE][-+][0-9]+)?
    | [-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+\.[0-9_]*
    | [-+]?\.(?:inf|Inf|INF)
    | \.(?:nan|NaN|NAN)""",
    re.VERBOSE,
)
_INT = re.compile(
    r"""[-+]?0b[01_]+
    | [-+]?0[0-7_]+
    | [-+]?(?:0|[1-9][0-9_]*)
    | [-+]?0x[0-9a-fA-F_]+
    | [-+]?[1-9][0-9_]*(?::[0-5]?[0-9])+""",
    re.VERBOSE,
)


def plain(text: str) -> Scalar:
    """The value of an unquoted scalar; raises ValueError where upstream's loader stops at a number."""
    if text in _NULL:
        return None
    if text in _TRUTH:
        return _TRUTH[text]
    if _FLOAT.fullmatch(text):
        return _float(text.replace("_", "").lower())
    if _INT.fullmatch(text):
        return _int(text.replace("_", ""))
    return text


def _float(text: str) -> float:
    sign, text = _signed(text)
    if text in (".inf", ".nan"):
        return math.inf * sign if text == ".inf" else math.nan
    return sign * reduce(lambda whole, part: whole * 60 + float(part), text.split(":"), 0.0)


def _int(text: str) -> int:
    sign, text = _signed(text)
    if text == "0":
        return 0
    if text.startswith("0b"):
        return sign * int(text, 2)
    if text.startswith("0x"):
        return sign * int(text, 16)
    if text.startswith("0"):
        return sign * int(text, 8)
    return sign * reduce(lambda whole, part: whole * 60 + int(part), text.split(":"), 0)


def _signed(text: str) -> tuple[int, str]:
    return -1 if text.startswith("-") else 1, text.lstrip("+-")
