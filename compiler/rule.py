"""A rule judges the leaves that its pattern names, and is itself the code that lowers them.

Class, label, recipe path, reason and value come from this one object; no other table repeats them.
A table of rules must match every leaf of the composed tree exactly once, and write every recipe path once.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any

from miniverl.compiler import legacy
from miniverl.compiler.follows import FOLLOWS
from miniverl.compiler.suggest import did_you_mean


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
class Verdict:
    """What a rule says of a value.

    `label` is what the report shows as `local_target`; `target` the recipe path that `lowered` is
    written to. They differ where a label names a mechanism and not a number of the recipe.
    `not_run` is why the engine does not run what is accepted; there is no recipe then.
    """

    classification: Class
    reason: str
    label: str | None = None
    target: str | None = None
    lowered: Any = None
    fix: str | None = None
    warning: str | None = None
    not_run: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding(Verdict):
    """One leaf, judged: the verdict, of what it is, and where that was set."""

    field: str
    value: Any
    origin: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Context:
    """What a judgement may look at besides the value itself."""

    leaves: Mapping[str, Any]  # the whole composed config
    defaults: Mapping[str, Any]  # the tree as upstream ships it, without overrides
    bindings: Mapping[
        str, Any
    ]  # what the user bound: "model", "train", "validation", "reward", ...

    def is_default(self, field: str) -> bool:
        """Whether nobody set the leaf: it holds upstream's default, or what the leaf it follows holds."""
        if field not in self.defaults:
            return False
        value = self.leaves[field]
        followed = FOLLOWS.get(field)
        return value == self.defaults[field] or (
            followed is not None and value == self.leaves[followed]
        )


Judge = Callable[[str, Any, Context], Verdict]
Condition = Callable[[Context], bool]


@dataclass(frozen=True, slots=True)
class Rule:
    """`pattern` is a dotted path; `*` matches any run of characters, dots too, as in fnmatch."""

    pattern: str
    judge: Judge

    def covers(self, field: str) -> bool:
        if "*" not in self.pattern:
            return field == self.pattern
        return fnmatchcase(field, self.pattern)


@dataclass(frozen=True, kw_only=True, slots=True)
class Limit:
    """Which values a leaf may hold; any other is rejected as `otherwise`, with `because` and `fix`."""

    accepts: Callable[[Any], bool]
    because: str
    fix: str
    otherwise: Class = Class.UNSUPPORTED


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
    limit: Limit | None = None,
    read_if: Condition | None = None,
    unread: str = "",
) -> Rule:
    """Writes `to(value)` to the recipe path `target`; where `read_if` fails, nothing reads the leaf."""

    def judge(field: str, value: Any, context: Context) -> Verdict:
        if read_if is not None and not read_if(context):
            return _unread(field, unread, context)
        if limit is not None and not limit.accepts(value):
            return reject(limit)
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


def refuses(pattern: str, otherwise: Class, *, because: str, fix: str) -> Rule:
    """No value is accepted."""
    verdict = Verdict(classification=otherwise, reason=because, fix=fix)
    return Rule(pattern, lambda field, value, context: verdict)


def reject(limit: Limit) -> Verdict:
    """The verdict on a value outside of `limit`."""
    return Verdict(classification=limit.otherwise, reason=limit.because, fix=limit.fix)


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


def only_if(condition: Condition, unread: str, *rules: Rule) -> tuple[Rule, ...]:
    """The rules, for as long as `condition` holds; otherwise nothing reads any of their leaves."""

    def guarded(rule: Rule) -> Rule:
        def judge(field: str, value: Any, context: Context) -> Verdict:
            if not condition(context):
                return _unread(field, unread, context)
            return rule.judge(field, value, context)

        return Rule(rule.pattern, judge)

    return tuple(map(guarded, rules))


def once(rule: Rule) -> Rule:
    """Does not reject a copy again for what the leaf that it follows is rejected for already."""

    def judge(field: str, value: Any, context: Context) -> Verdict:
        verdict = rule.judge(field, value, context)
        followed = FOLLOWS.get(field)
        if verdict.classification in REJECTING and followed and context.leaves[followed] == value:
            return Verdict(
                classification=Class.INFORMATIONAL,
                reason=f"a copy of {followed}, which is rejected",
            )
        return verdict

    return Rule(rule.pattern, judge)


def behind(pattern: str, is_on: Condition, *, off: str, on: str) -> Rule:
    """Leaves of a mechanism whose switch is rejected, once, when it is on: they add no rejection."""

    def judge(field: str, value: Any, context: Context) -> Verdict:
        if not is_on(context):
            return _unread(field, off, context)
        return Verdict(classification=Class.INFORMATIONAL, reason=on)

    return Rule(pattern, judge)


def section(pattern: str, *rules: Rule, appended: tuple[Rule, ...] = ()) -> Rule:
    """A sub-tree under one pattern: the first of `rules` whose own pattern matches judges the leaf.

    A leaf that upstream's tree lacks, and that `appended` does not name, is refused: upstream refuses it too,
    or drops it in silence.
    """

    def judge(field: str, value: Any, context: Context) -> Verdict:
        candidates = rules if field in context.defaults else appended
        rule = next((rule for rule in candidates if rule.covers(field)), None)
        if rule is None:
            return Verdict(
                classification=Class.UNSUPPORTED,
                reason="no such leaf in upstream's tree, and nothing there reads it",
                fix=legacy.fix(field) or did_you_mean(field, context.defaults, f"Remove {field}"),
            )
        return rule.judge(field, value, context)

    return Rule(pattern, judge)


def set_in_vain(field: str, context: Context) -> str | None:
    """The warning on a leaf that nothing reads, where somebody set it all the same."""
    return None if context.is_default(field) else f"{field} is set, and nothing reads it"


def _unread(field: str, reason: str, context: Context) -> Verdict:
    return Verdict(
        classification=Class.INFORMATIONAL, reason=reason, warning=set_in_vain(field, context)
    )
