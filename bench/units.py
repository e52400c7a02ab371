"""How numbers are written for people: three or four digits and a unit, or the word for why there is none.

Used by the tables in the terminal and by the page, so that a number looks the same in both.
"""

from collections.abc import Callable, Mapping
from typing import Any

from miniverl.bench.launch_values import is_number

_ABSENT = {
    "not_supported": "not supported",
    "not_measured": "not measured",
    "no_permission": "no permission",
    "not_finite": "not finite",
}

# The phases of a step in their order, with those around it; the journal's names and the ones people read.
PHASES = {
    "rollout": "rollout",
    "reward": "reward",
    "score_old": "old log-probs",
    "score_reference": "reference",
    "score_values": "values",
    "score_teacher": "teacher",
    "advantage": "advantage",
    "critic_update": "critic update",
    "update": "update",
    "checkpoint": "checkpoint",
    "validation": "validation",
    "restore": "restore",
}


def seconds(value: Any) -> str:
    return _or_absent(value, _seconds)


def gib(value: Any) -> str:
    return _or_absent(value, lambda number: f"{number:.2f} GiB")


def size(value: Any) -> str:
    """Bytes in the decimal units that disks and downloads are sold in."""
    return _or_absent(value, _size)


def per_second(value: Any) -> str:
    return _or_absent(value, lambda number: f"{digits(number)} /s")


def count(value: Any) -> str:
    return _or_absent(value, lambda number: f"{number:,.0f}".replace(",", " "))


def metric(value: Any) -> str:
    return _or_absent(value, digits)


def absent(value: Any) -> str:
    """A value that is no measured number: the word for a status, a dash for nothing."""
    return _or_absent(value, str)


def digits(number: float) -> str:
    """Four significant digits, without a power of ten where people read none."""
    text = f"{number:.4g}"
    return f"{number:.0f}" if "e+" in text and abs(number) < 1e6 else text


def ratio(value: float) -> str:
    """A ratio as a change: 1.034 is +3.4 %."""
    return f"{100 * (value - 1):+.1f} %".replace("-", "\N{MINUS SIGN}")


def by_name(name: str, value: Any) -> str:
    """The value of a field whose name carries its unit."""
    last = name.rpartition(".")[2]
    if last.endswith("_per_second"):
        return per_second(value)
    if last.endswith("_seconds") or "_seconds." in name:
        return seconds(value)
    if last.endswith("_gib"):
        return gib(value)
    if last.endswith("_bytes"):
        return size(value)
    return metric(value)


def difference(first: Mapping[str, Any]) -> str:
    """Where two files differ first, of a record's `first_difference`."""
    return f"{first['file']}, byte {first['byte']} ({first['place']})"


def title(name: str) -> str:
    """A field's name in words, without its unit: steady_state_median_seconds.step is 'step'."""
    last = name.rpartition(".")[2]
    for unit in ("_seconds", "_gib", "_bytes"):
        last = last.removesuffix(unit)
    return last.replace("_per_second", "").replace("_", " ")


def _or_absent(value: Any, write: Callable[[float], str]) -> str:
    if is_number(value):
        return write(value)
    if isinstance(value, Mapping):
        return _ABSENT[value["status"]]
    return "-" if value is None else str(value)


def _seconds(number: float) -> str:
    if number >= 90:
        return f"{int(number) // 60} min {number % 60:.0f} s"
    if number >= 0.1 or number == 0:
        return f"{number:.3g} s"
    return f"{1000 * number:.3g} ms"


def _size(number: float) -> str:
    for unit, step in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= step:
            return f"{number / step:.3g} {unit}"
    return f"{number:.0f} B"
