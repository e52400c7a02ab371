"""A rule judges the leaves that its pattern names, and is itself the code that lowers them.

Class, label, recipe path, reason and value come from this one object; no other table repeats them.
A table of rules must match every leaf of the composed tree exactly once, and write every recipe path once.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Context:
    """What a judgement may look at besides the value itself."""

    leaves: Mapping[str, Any]  # the whole composed config
    defaults: Mapping[str, Any]  # the tree as upstream ships it, without overrides
    bindings: Mapping[
        str, Any
    ]  # what the user bound: "model", "train", "validation", "reward", ...

    def is_default(self, field: str) -> bool:
        return field in self.defaults and self.leaves[field] == self.defaults[field]


Judge = Callable[[str, Any, Context], Verdict]
Condition = Callable[[Context], bool]


@dataclass(frozen=True, slots=True)
class Rule:
    """`pattern` is a dotted path; `*` matches any run of characters, dots too, as in fnmatch."""

    pattern: str
    judge: Judge


def same(value: Any) -> Any:
    """The value itself: what an exact leaf is lowered to."""
    return value


def lowers(
    pattern: str,
    target: str,
    reason: str,
    *,
    classification: Class = Class.EXACT,
    to: Callable[[Any], Any] = same,
    label: str | None = None,
    read_if: Condition | None = None,
    unread: str = "",
) -> Rule:
    """Writes `to(value)` to the recipe path `target`; where `read_if` fails, nothing reads the leaf."""

    def judge(field: str, value: Any, context: Context) -> Verdict:
        if read_if is not None and not read_if(context):
            return _unread(field, unread, context)
        return Verdict(
            classification=classification,
            reason=reason,
            label=label or target,
            target=target,
            lowered=to(value),
        )

    return Rule(pattern, judge)


def notes(pattern: str, classification: Class, reason: str, *, label: str | None = None) -> Rule:
    """Accepts any value: it does not reach the recipe."""
    verdict = Verdict(classification=classification, reason=reason, label=label)
    return Rule(pattern, lambda field, value, context: verdict)


def dead(pattern: str, reason: str) -> Rule:
    """Composed upstream and read by nothing there; a warning when it was set all the same."""
    return Rule(pattern, lambda field, value, context: _unread(field, reason, context))


def requires(
    pattern: str,
    *accepted: Any,
    reason: str,
    otherwise: Class,
    because: str,
    fix: str,
    classification: Class = Class.EXACT,
    label: str | None = None,
    read_if: Condition | None = None,
    unread: str = "",
) -> Rule:
    """Accepts the named values only; any other is rejected as `otherwise`, with `because` and `fix`."""

    def judge(field: str, value: Any, context: Context) -> Verdict:
        if read_if is not None and not read_if(context):
            return _unread(field, unread, context)
        if any(value == one and type(value) is type(one) for one in accepted):
            return Verdict(classification=classification, reason=reason, label=label)
        return Verdict(classification=otherwise, reason=because, label=label, fix=fix)

    return Rule(pattern, judge)


def _unread(field: str, reason: str, context: Context) -> Verdict:
    set_in_vain = None if context.is_default(field) else f"{field} is set, and nothing reads it"
    return Verdict(classification=Class.INFORMATIONAL, reason=reason, warning=set_in_vain)
