"""How a comparison came to its verdict, in lines for people: the rules, each metric's numbers, and the cause."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from miniverl.bench import units
from miniverl.bench.compare import CLOCK_SHIFT, Comparison
from miniverl.bench.launch_values import is_number
from miniverl.bench.verdict import CONFIDENCE, JUDGED, MIN_LAUNCHES, Metric

Json = Mapping[str, Any]


def explanation(comparison: Comparison, a: Sequence[Json], b: Sequence[Json]) -> Iterator[str]:
    """`a` and `b`: the records of each side."""
    yield ""
    yield f"A launch counts once; a verdict takes {MIN_LAUNCHES} launches on each side."
    yield f"Intervals hold {CONFIDENCE:.0%} of the time (Welch, on logarithms); p-values are Holm's."
    yield "A change must lie beyond the margin beyond doubt; `same` has its whole interval within it."
    for metric in comparison.metrics:
        yield _told(metric)
    yield "Regressions are judged by allocated memory; the contract is about what was reserved:"
    for side, records in (("A", a), ("B", b)):
        for record in records:
            yield f"  {side}: {_contract(record)}"
    yield _cause(comparison)


def _told(metric: Metric) -> str:
    told = f"{metric.name}: {metric.verdict}"
    if metric.interval is None:
        why = "is shown only" if metric.name not in JUDGED else "has too few launches"
        return f"{told}: {why}, B over A {metric.ratio:.4f}"
    low, high = metric.interval
    told += f", margin {metric.margin:.1%}, B over A {metric.ratio:.4f} in {low:.4f} to {high:.4f}"
    told += f", p {metric.p_value:.3g}, {metric.launches_a} and {metric.launches_b} launches"
    if metric.verdict == "inconclusive":
        told += f", {metric.launches_needed} on each side would tell"
    if metric.ratio_in_cycles is not None:
        left = "nothing is left of it" if metric.is_clock_shift else "the change stays"
        told += f"; in cycles {metric.ratio_in_cycles:.4f}: {left}"
    return told


def _contract(record: Json) -> str:
    measured, contract = record["measurements"], record["resource_contract"]
    peak, limit = measured["peak_reserved_gib"], contract["peak_reserved_limit_gib"]
    name = "reserved"
    if not is_number(peak):
        peak, limit = measured.get("peak_rss_gib"), contract.get("peak_rss_limit_gib")
        name = "resident"
    return f"{name} {units.gib(peak)} of {units.gib(limit)}"


def _cause(comparison: Comparison) -> str:
    match comparison.cause:
        case "none":
            return "Nothing of what is recorded of the software differs."
        case cause if cause == CLOCK_SHIFT:
            return "The launches ran at other clocks, and in cycles they are the same."
        case cause if cause.startswith("confounded"):
            return "More than one field differs, so none of them is named as the cause."
        case cause:
            return f"Only {cause} differs, so a change comes from it, or from what is not recorded."
