"""Every leaf of a source is judged by the first rule that matches it; a leaf that none matches is refused."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from fnmatch import translate
from typing import Any

from miniverl.compiler import legacy
from miniverl.compiler.rule import REJECTING, Class, Context, Finding, Rule, Verdict
from miniverl.compiler.rules.limits import LARGEST_WHOLE
from miniverl.compiler.source import Source
from miniverl.compiler.suggest import did_you_mean
from miniverl.engine.problem import Problem

_WILDCARD = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True)
class Table:
    """Rules in their order; patterns without wildcards are looked up, the others tried one by one."""

    rules: tuple[Rule, ...]
    _exact: dict[str, int]
    _patterns: tuple[tuple[int, str, re.Pattern[str]], ...]  # number, literal beginning, whole

    @classmethod
    def of(cls, rules: Sequence[Rule]) -> "Table":
        exact: dict[str, int] = {}
        patterns = []
        for number, rule in enumerate(rules):
            beginning = _WILDCARD.split(rule.pattern)[0]
            if beginning != rule.pattern:
                patterns.append((number, beginning, re.compile(translate(rule.pattern))))
            else:
                exact.setdefault(rule.pattern, number)
        return cls(tuple(rules), exact, tuple(patterns))

    def judge(self, field: str, value: Any, context: Context) -> Verdict:
        """The verdict of the first rule that matches; a field that none matches is refused."""
        number = self.first_match(field)
        if number is None:
            otherwise = f"Remove {field}: nothing is known to read it"
            return Verdict(
                classification=Class.UNSUPPORTED,
                reason="no rule covers this field",
                fix=legacy.fix(field) or did_you_mean(field, context.defaults, otherwise),
            )
        return self.rules[number].judge(field, value, context)

    def first_match(self, field: str) -> int | None:
        """The number of the rule that judges `field`; None when there is none."""
        exact = self._exact.get(field, len(self.rules))
        matching = (
            number
            for number, beginning, pattern in self._patterns
            if field.startswith(beginning) and pattern.match(field)
        )
        number = min(exact, next(matching, len(self.rules)))
        return number if number < len(self.rules) else None


def context_of(source: Source, bindings: dict[str, object]) -> Context:
    """What rules may look at. A leaf that an override took away holds upstream's default there."""
    return Context(
        leaves={**source.defaults, **source.leaves}, defaults=source.defaults, bindings=bindings
    )


def judge(source: Source, table: Table, context: Context) -> tuple[Finding, ...]:
    """One finding for each leaf of the source, and one for each leaf that was taken away; sorted by field."""
    findings = [_judged(field, source, table, context) for field in source.leaves]
    findings.extend(_taken_away(field, source) for field in _missing(source))
    return tuple(sorted(findings, key=lambda finding: finding.field))


def problems_of(findings: Sequence[Finding]) -> tuple[Problem, ...]:
    """What has to change before the launch is accepted."""
    return tuple(
        Problem(
            field=finding.field,
            value=finding.value,
            origin=finding.origin,
            reason=finding.reason,
            fix=finding.fix or f"Remove {finding.field}",
        )
        for finding in findings
        if finding.classification in REJECTING
    )


def _judged(field: str, source: Source, table: Table, context: Context) -> Finding:
    value = source.leaves[field]
    verdict = table.judge(field, value, context)
    if type(verdict.lowered) is int and abs(verdict.lowered) > LARGEST_WHOLE:
        verdict = Verdict(
            classification=Class.UNSUPPORTED,
            reason="beyond 2^53 - 1 a whole number is not the same to every reader of a recipe",
            fix=f"Set {field} to a smaller number",
        )
    return Finding(
        field=field,
        value=value if source.stated is None else source.stated.get(field, value),
        origin=source.origins[field],
        **{each.name: getattr(verdict, each.name) for each in fields(verdict)},
    )


def _missing(source: Source) -> Iterator[str]:
    """Leaves of upstream's tree that the source lacks, without those that only became a branch."""
    branches = {field.rpartition(".")[0] for field in source.leaves}
    for field in source.defaults:
        if field not in source.leaves and field not in branches:
            yield field


def _taken_away(field: str, source: Source) -> Finding:
    return Finding(
        field=field,
        value=None,
        origin=source.origins[field],
        classification=Class.UNSUPPORTED,
        reason="it is missing, and upstream reads it",
        fix=source.mends_missing,
    )
