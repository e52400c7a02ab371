"""What two sets of launches say of a metric: a verdict by Welch's interval against a margin.

It starts from 'inconclusive' and leaves it only with evidence, which takes five launches on each side. Fewer are
described, not judged. A change of a steady metric is looked at once more in cycles, where clocks were sampled.
"""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from miniverl.bench.launch_values import is_number
from miniverl.bench.stats import Welch, holm, welch

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
_SHOWN = (
    "time_to_first_rollout_seconds",
    "time_to_first_teacher_targets_seconds",
    "peak_reserved_gib",
    "peak_process_gib",
    "peak_device_gib",
)
# What one metric says, the whole comparison says, in this order.
_TOLD: dict[Verdict, str] = {
    "regressed": "Worse by more than the margin",
    "improved": "Better by more than the margin",
    "inconclusive": "Cannot be told apart from the margin",
    "same": "Within the margin",
}
WORST_FIRST: tuple[Verdict, ...] = (
    "regressed",
    "not_comparable",
    "inconclusive",
    "improved",
    "same",
    "descriptive",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Values:
    """The values of one launch, and the clock it ran at in its steady steps, where that is known."""

    values: Json
    mhz: float | None


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
    # That it is within the margin, corrected for the number of metrics.
    p_value: float | None = None
    launches_needed: int | None = None  # on each side, to tell a change of the margin
    ratio_in_cycles: float | None = None  # of a change, where both sides sampled their clocks
    is_clock_shift: bool | None = None  # of a change: in cycles nothing is left of it


def judge(
    a: Sequence[Values], b: Sequence[Values], *, time_margin: float, memory_margin: float
) -> tuple[Metric, ...]:
    """Every metric that both sides have, the judged ones first."""
    described: list[Metric] = []
    tests: dict[int, Welch] = {}
    for name in _names([*a, *b]):
        of_a, of_b = numbers(a, name), numbers(b, name)
        if not of_a or not of_b:
            continue
        if name in JUDGED and min(len(of_a), len(of_b)) >= MIN_LAUNCHES:
            tests[len(described)] = welch(of_a, of_b)
        margin = memory_margin if name.endswith("_gib") else time_margin
        described.append(_described(name, of_a, of_b, margin))
    certain = holm([p_outside(test, described[i].margin) for i, test in tests.items()])
    for (index, test), p_value in zip(tests.items(), certain, strict=True):
        described[index] = _in_cycles(_judged(described[index], test, p_value), a, b)
    return tuple(described)


def overall(metrics: Sequence[Metric]) -> tuple[Verdict, str]:
    """The verdict of all metrics together, and the sentence that tells it."""
    judged = [metric for metric in metrics if metric.verdict != "descriptive"]
    if not judged:
        return "descriptive", f"A verdict needs {MIN_LAUNCHES} launches on each side"
    for verdict, told in _TOLD.items():
        names = [metric.name for metric in judged if metric.verdict == verdict]
        if names:
            return verdict, f"{told}: {', '.join(names)}"
    raise AssertionError("every judged metric has one of these verdicts")


def numbers(launches: Sequence[Values], name: str) -> list[float]:
    """The metric of each launch that has it. A logarithm needs more than 0."""
    found = [_number(each.values, name) for each in launches]
    return [number for number in found if number is not None]


def p_outside(test: Welch, margin: float) -> float:
    """Two-sided p-value against 'the ratio lies within the margin'; the margin is even in logarithms."""
    reach = math.log1p(margin)
    return min(1.0, 2 * min(test.p_above(reach), test.p_below(-reach)))


def _number(values: Json, name: str) -> float | None:
    group, _, field = name.partition(".")
    found = values.get(group, {}).get(field) if field else values.get(group)
    return float(found) if is_number(found) and found > 0 else None


def _names(launches: Sequence[Values]) -> list[str]:
    """The judged metrics first, then whatever else the launches have."""
    groups = [
        f"{group}.{name}"
        for group in _SHOWN_GROUPS
        for each in launches
        for name in each.values[group]
    ]
    return list(dict.fromkeys((*JUDGED, *groups, *_SHOWN)))


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


def _in_cycles(metric: Metric, a: Sequence[Values], b: Sequence[Values]) -> Metric:
    """A change of a steady metric, asked again of time x clock: is anything left of it?"""
    if metric.verdict not in ("improved", "regressed") or not metric.name.startswith("steady_"):
        return metric
    of_a, of_b = list(_cycles(metric, a)), list(_cycles(metric, b))
    if len(of_a) < metric.launches_a or len(of_b) < metric.launches_b:
        return metric  # some launch did not sample its clock
    test, reach = welch(of_a, of_b), math.log1p(metric.margin)
    is_gone = abs(test.difference) <= reach and p_outside(test, metric.margin) > 1 - CONFIDENCE
    return replace(metric, ratio_in_cycles=math.exp(test.difference), is_clock_shift=is_gone)


def _cycles(metric: Metric, launches: Sequence[Values]) -> Iterator[float]:
    """Of a time, the cycles it takes; of a rate, what is done in a cycle."""
    for each in launches:
        number = _number(each.values, metric.name)
        if number is not None and each.mhz is not None:
            yield number / each.mhz if metric.better == "higher" else number * each.mhz
