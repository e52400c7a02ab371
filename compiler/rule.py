"""A rule judges the leaves that its pattern names, and is itself the code that lowers them.

Class, label, recipe path, reason and value come from this one object; no other table repeats them.
A table of rules must match every leaf of the composed tree exactly once, and write every recipe path once.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

Leaves = Mapping[str, Any]


class Class(StrEnum):
    """What becomes of a leaf here."""

    EXACT = "exact"
    CONFORMANT = "semantically_conformant"
    LOWERED = "locally_lowered"
    DISTRIBUTED = "distributed_only"
    INFORMATIONAL = "informational_only"
    NOT_IMPLEMENTED = "not_implemented"  # upstream runs it, we do not yet
    UNSUPPORTED = "unsupported"  # the pin itself cannot run it, or it has no meaning on one device


REJECTING = frozenset({Class.NOT_IMPLEMENTED, Class.UNSUPPORTED})


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One leaf, judged.

    `label` is what the report shows as `local_target`; `target` the recipe path that `lowered` is
    written to. They differ where a label names a mechanism and not a number of the recipe.
    """

    field: str
    value: Any
    origin: str
    classification: Class
    reason: str
    label: str | None = None
    target: str | None = None
    lowered: Any = None
    fix: str | None = None
    warning: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What a rule says of a value; the judge adds field, value and origin to make it a Finding."""

    classification: Class
    reason: str
    label: str | None = None
    target: str | None = None
    lowered: Any = None
    fix: str | None = None
    warning: str | None = None


Judge = Callable[[Any, Leaves], Verdict]
"""Judges one leaf's value; the other leaves are there for conditions ("only read when ...")."""


@dataclass(frozen=True, slots=True)
class Rule:
    """`pattern` is a dotted path; `*` matches within and across its parts, as in fnmatch."""

    pattern: str
    judge: Judge
