"""Two sides against each other: first whether they may be compared, then what differs, then by how much.

A side is one record, or several of the same work: their launches are taken together, and a launch is the unit. A
cause is named only where exactly one treatment field differs.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from miniverl.bench import published_work
from miniverl.bench.clocks import steady_mhz
from miniverl.bench.comparability import comparability
from miniverl.bench.exits import Exit
from miniverl.bench.verdict import (
    CONFIDENCE,
    MEMORY_MARGIN,
    MIN_LAUNCHES,
    TIME_MARGIN,
    Metric,
    Values,
    Verdict,
    judge,
    overall,
)
from miniverl.bench.version1 import version1

Json = Mapping[str, Any]

CLOCK_SHIFT = "clock_shift"


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """A field that is not equal; None: that side does not have it."""

    field: str
    a: Any
    b: Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """`cause`: a treatment field, clock_shift, "none", or "confounded (fields)"."""

    workload: str
    verdict: Verdict
    reason: str
    cause: str
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
    return compare_sides([a], [b], time_margin=time_margin, memory_margin=memory_margin)


def compare_sides(
    a: Sequence[Json],
    b: Sequence[Json],
    *,
    time_margin: float = TIME_MARGIN,
    memory_margin: float = MEMORY_MARGIN,
) -> Comparison:
    """Compare all records of one side with all of the other; those of one side have one key."""
    of_a, of_b = [comparability(each) for each in a], [comparability(each) for each in b]
    key_differences = (*_statuses(a, b), *_differences(of_a[0]["key"], of_b[0]["key"]))
    treatment = _pooled(of_a), _pooled(of_b)
    differing = tuple(_differences(*treatment))
    workload: str = of_a[0]["key"]["workload"]
    same_work = {each["status"] for each in (*a, *b)} == {"measured"} and all(
        published_work.is_same(one, other) for one in a for other in b
    )
    if same_work:
        metrics = judge(
            values_of(a), values_of(b), time_margin=time_margin, memory_margin=memory_margin
        )
        return Comparison(
            workload=workload,
            verdict="descriptive",
            reason=f"Data differ: {published_work.data(a[0])}, {published_work.data(b[0])}. All else that both say of their "
            "work is equal; nothing is judged",
            cause=_cause({"data", *(each.field for each in differing)}),
            key_differences=(),
            treatment_differences=differing,
            metrics=metrics,
            notes=(*_notes("A", a, set()), *_notes("B", b, set())),
        )
    if key_differences:
        fields = ", ".join(difference.field for difference in key_differences)
        return Comparison(
            workload=workload,
            verdict="not_comparable",
            reason=f"These must be equal and are not: {fields}",
            cause="none",
            key_differences=key_differences,
            treatment_differences=differing,
            metrics=(),
            notes=(),
        )
    metrics = judge(
        values_of(a), values_of(b), time_margin=time_margin, memory_margin=memory_margin
    )
    verdict, reason = overall(metrics)
    is_shift = _is_clock_shift(metrics)
    mixed = [{n for n, v in side.items() if isinstance(v, _Several)} for side in treatment]
    return Comparison(
        workload=workload,
        verdict=verdict,
        reason=f"{reason}. In cycles nothing is left of it" if is_shift else reason,
        cause=CLOCK_SHIFT if is_shift else _cause({each.field for each in differing}.union(*mixed)),
        key_differences=(),
        treatment_differences=differing,
        metrics=metrics,
        notes=(*_notes("A", a, mixed[0]), *_notes("B", b, mixed[1])),
    )


def values_of(records: Sequence[Json]) -> list[Values]:
    """The values of each straight launch; a version 1 record has one launch, and only its medians."""
    return [each for record in records for each in _values(record)]


def _values(record: Json) -> Iterator[Values]:
    original = version1(record)
    if original is not None:
        yield Values(values=original["measurements"], mhz=None)
        return
    pairs = zip(record["measurements"]["launches"], record["launches"], strict=True)
    for values, launch in pairs:
        if values["role"] == "straight":
            yield Values(values=values, mhz=steady_mhz(launch))


class _Several(str):
    """The values of a field that is not the same in all records of one side."""


def _pooled(sides: Sequence[Json]) -> dict[str, Any]:
    """The treatment of a side."""
    names = dict.fromkeys(name for each in sides for name in each["treatment"])
    pooled: dict[str, Any] = {}
    for name in names:
        found = list(dict.fromkeys(each["treatment"].get(name) for each in sides))
        pooled[name] = found[0] if len(found) == 1 else _Several(" | ".join(map(str, found)))
    return pooled


def _statuses(a: Sequence[Json], b: Sequence[Json]) -> Iterator[Difference]:
    of_a, of_b = ({each["status"] for each in side} for side in (a, b))
    if of_a | of_b != {"measured"}:
        told_a, told_b = (", ".join(sorted(side)) for side in (of_a, of_b))
        yield Difference(field="status", a=told_a, b=told_b)


def _differences(a: Any, b: Any, *path: str) -> Iterator[Difference]:
    """Fields by dotted name, at any depth."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        for name in sorted(a.keys() | b.keys()):
            yield from _differences(a.get(name), b.get(name), *path, name)
    elif a != b:
        yield Difference(field=".".join(path), a=a, b=b)


def _is_clock_shift(metrics: Sequence[Metric]) -> bool:
    """Every steady metric that changed has changed with the clock alone."""
    changed = [each for each in metrics if each.verdict in ("improved", "regressed")]
    return bool(changed) and all(each.is_clock_shift for each in changed)


def _cause(fields: set[str]) -> str:
    if not fields:
        return "none"
    return next(iter(fields)) if len(fields) == 1 else f"confounded ({', '.join(sorted(fields))})"


def _notes(side: str, records: Sequence[Json], mixed: set[str]) -> Iterator[str]:
    """What a reader should hold against the numbers."""
    if mixed:
        yield f"{side}: not the same in all its records: {', '.join(sorted(mixed))}"
    for record in records:
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
