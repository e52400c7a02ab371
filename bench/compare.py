"""Two records against each other: first whether they may be compared, then what differs, then by how much.

The unit is a launch. A verdict needs five of them on each side: Welch's interval for the ratio of geometric
means against a margin, starting from 'inconclusive' and leaving it only with evidence. Fewer launches are
described, not judged. A cause is named only where exactly one treatment field differs.
"""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from miniverl.bench.comparability import comparability
from miniverl.bench.exits import Exit
from miniverl.bench.launch_values import is_number
from miniverl.bench.stats import Welch, holm, welch
from miniverl.bench.version1 import version1

Json = Mapping[str, Any]
Verdict = Literal["improved", "same", "regressed", "inconclusive", "descriptive", "not_comparable"]

MIN_LAUNCHES = 5
CONFIDENCE = 0.95
TIME_MARGIN = 0.03
MEMORY_MARGIN = 0.01

# Paths into a launch's values that a verdict is given for. Reserved memory depends on the order of
# allocations, so memory is judged by what was allocated; the other numbers are shown.
JUDGED = (
    "steady_state_median_seconds.step",
    "steady_state_median_throughput.rollout_tokens_per_second",
    "steady_state_median_throughput.update_positions_per_second",
    "cold_startup_seconds",
    "time_to_first_update_seconds",
    "peak_allocated_gib",
    "peak_rss_gib",
)
_SHOWN_GROUPS = ("steady_state_median_seconds", "steady_state_median_throughput")
# What one metric says, the whole comparison says, in this order.
_TOLD: dict[Verdict, str] = {
    "regressed": "Worse by more than the margin",
    "improved": "Better by more than the margin",
    "inconclusive": "Cannot be told apart from the margin",
    "same": "Within the margin",
}
_SHOWN = (
    "time_to_first_rollout_seconds",
    "time_to_first_teacher_targets_seconds",
    "peak_reserved_gib",
    "peak_process_gib",
    "peak_device_gib",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """A field that is not equal; None: that side does not have it."""

    field: str
    a: Any
    b: Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """One number on both sides. `ratio` is B over A, of geometric means over launches."""

    name: str
    better: Literal["lower", "higher"]
    verdict: Verdict
    margin: float
    a: float
    b: float
    launches_a: int
    launches_b: int
    ratio: float
    interval: tuple[float, float] | None = None  # for the ratio
    p_value: float | None = (
        None  # that it is within the margin, corrected for the number of metrics
    )
    launches_needed: int | None = None  # on each side, to tell a change of the margin


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    verdict: Verdict
    reason: str
    cause: str  # a treatment field, "none", or "confounded (fields)"
    key_differences: tuple[Difference, ...]
    treatment_differences: tuple[Difference, ...]
    metrics: tuple[Metric, ...]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        plain = asdict(self)
        return plain | {"confidence": CONFIDENCE, "min_launches": MIN_LAUNCHES}

    def exit_code(self, *, strict: bool) -> Exit:
        """`strict`: an inconclusive comparison is a no, too."""
        refused = {"regressed", "not_comparable"} | ({"inconclusive"} if strict else set())
        return Exit.NO if self.verdict in refused else Exit.DONE


def compare(
    a: Json,
    b: Json,
    *,
    time_margin: float = TIME_MARGIN,
    memory_margin: float = MEMORY_MARGIN,
) -> Comparison:
    """Compare two valid records. `a` is the baseline: a ratio above 1 says that B's number is larger."""
    of_a, of_b = comparability(a), comparability(b)
    key_differences = (*_statuses(a, b), *_differences(of_a["key"], of_b["key"]))
    treatment = tuple(_differences(of_a["treatment"], of_b["treatment"]))
    if key_differences:
        fields = ", ".join(difference.field for difference in key_differences)
        return Comparison(
            verdict="not_comparable",
            reason=f"These must be equal and are not: {fields}",
            cause="none",
            key_differences=key_differences,
            treatment_differences=treatment,
            metrics=(),
            notes=(),
        )
    metrics = _metrics(_values(a), _values(b), time_margin, memory_margin)
    verdict, reason = _overall(metrics)
    return Comparison(
        verdict=verdict,
        reason=reason,
        cause=_cause(treatment),
        key_differences=(),
        treatment_differences=treatment,
        metrics=metrics,
        notes=tuple(_notes(a, b)),
    )


def _statuses(a: Json, b: Json) -> Iterator[Difference]:
    if {a["status"], b["status"]} != {"measured"}:
        yield Difference(field="status", a=a["status"], b=b["status"])


def _differences(a: Any, b: Any, *path: str) -> Iterator[Difference]:
    """Fields by dotted name, at any depth."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        for name in sorted(a.keys() | b.keys()):
            yield from _differences(a.get(name), b.get(name), *path, name)
    elif a != b:
        yield Difference(field=".".join(path), a=a, b=b)


def _cause(treatment: Sequence[Difference]) -> str:
    fields = [difference.field for difference in treatment]
    if not fields:
        return "none"
    return fields[0] if len(fields) == 1 else f"confounded ({', '.join(fields)})"


def _values(record: Json) -> list[Json]:
    """The values of each launch; a version 1 record has one, and only its medians."""
    original = version1(record)
    if original is not None:
        return [original["measurements"]]
    launches = record["measurements"]["launches"]
    return [values for values in launches if values["role"] == "straight"]


def _metrics(
    a: Sequence[Json], b: Sequence[Json], time_margin: float, memory_margin: float
) -> tuple[Metric, ...]:
    described: list[Metric] = []
    tests: dict[int, Welch] = {}
    for name in _names([*a, *b]):
        of_a, of_b = _numbers(a, name), _numbers(b, name)
        if not of_a or not of_b:
            continue
        if name in JUDGED and min(len(of_a), len(of_b)) >= MIN_LAUNCHES:
            tests[len(described)] = welch(of_a, of_b)
        margin = memory_margin if name.endswith("_gib") else time_margin
        described.append(_described(name, of_a, of_b, margin))
    certain = holm([_p_outside(test, described[i].margin) for i, test in tests.items()])
    for (index, test), p_value in zip(tests.items(), certain, strict=True):
        described[index] = _judged(described[index], test, p_value)
    return tuple(described)


def _names(values: Sequence[Json]) -> list[str]:
    """The judged metrics first, then whatever else the launches have."""
    groups = [
        f"{group}.{name}" for group in _SHOWN_GROUPS for each in values for name in each[group]
    ]
    return list(dict.fromkeys((*JUDGED, *groups, *_SHOWN)))


def _numbers(values: Sequence[Json], name: str) -> list[float]:
    """The metric of each launch that has it. A logarithm needs more than 0."""
    group, _, field = name.partition(".")
    found = [each.get(group, {}).get(field) if field else each.get(group) for each in values]
    return [number for number in found if is_number(number) and number > 0]


def _described(name: str, a: Sequence[float], b: Sequence[float], margin: float) -> Metric:
    mean_a, mean_b = statistics.geometric_mean(a), statistics.geometric_mean(b)
    return Metric(
        name=name,
        better="higher" if name.endswith("_per_second") else "lower",
        verdict="descriptive",
        margin=margin,
        a=mean_a,
        b=mean_b,
        launches_a=len(a),
        launches_b=len(b),
        ratio=mean_b / mean_a,
    )


def _p_outside(test: Welch, margin: float) -> float:
    """Two-sided p-value against 'the ratio lies within the margin'; the margin is even in logarithms."""
    reach = math.log1p(margin)
    return min(1.0, 2 * min(test.p_above(reach), test.p_below(-reach)))


def _judged(metric: Metric, test: Welch, p_value: float) -> Metric:
    """`same` needs the whole interval within the margin; a change needs to lie beyond it, beyond doubt."""
    reach = math.log1p(metric.margin)
    low, high = test.interval(CONFIDENCE)
    verdict: Verdict = "inconclusive"
    if -reach <= low and high <= reach:
        verdict = "same"
    elif p_value <= 1 - CONFIDENCE:
        is_larger = test.difference > 0
        verdict = "regressed" if is_larger == (metric.better == "lower") else "improved"
    return replace(
        metric,
        verdict=verdict,
        interval=(math.exp(low), math.exp(high)),
        p_value=p_value,
        launches_needed=_launches_needed(metric, test, reach),
    )


def _launches_needed(metric: Metric, test: Welch, reach: float) -> int:
    """On each side, until the interval is as narrow as the margin, were the spread to stay as it is."""
    pairs = 2 / (1 / metric.launches_a + 1 / metric.launches_b)
    deviation = test.standard_error * math.sqrt(pairs / 2)
    normal_quantile = statistics.NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    return max(MIN_LAUNCHES, math.ceil(2 * (normal_quantile * deviation / reach) ** 2))


def _overall(metrics: Sequence[Metric]) -> tuple[Verdict, str]:
    judged = [metric for metric in metrics if metric.verdict != "descriptive"]
    if not judged:
        reason = f"A verdict needs {MIN_LAUNCHES} launches on each side"
        return "descriptive", reason
    for verdict, told in _TOLD.items():
        names = [metric.name for metric in judged if metric.verdict == verdict]
        if names:
            return verdict, f"{told}: {', '.join(names)}"
    raise AssertionError("every judged metric has one of these verdicts")


def _notes(a: Json, b: Json) -> Iterator[str]:
    """What a reader should hold against the numbers."""
    for side, record in (("A", a), ("B", b)):
        if record["resume"]["status"] == "mismatch":
            yield f"{side}: the resumed run did not match the straight one"
        if version1(record) is not None:
            yield f"{side}: version 1 holds the medians of one launch and no samples"
            continue
        if record["class"] != "reference":
            yield f"{side}: the record is {record['class']}"
        for launch in record["launches"]:
            if launch["role"] == "straight" and launch["telemetry"]["status"] == "invalid":
                reasons = ", ".join(launch["telemetry"]["reasons"])
                yield f"{side}: telemetry of launch {launch['ordinal']} is invalid: {reasons}"
