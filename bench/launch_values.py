"""What follows from one launch: when things first happened, its steady state, its memory, its totals.

A launch is the unit of comparison: medians are over its own steady steps, that is its finished steps after
the warm-up. The shapes are `launch` and `launch_values` in schemas/record-v2.json.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeGuard

from miniverl.bench.measure import NOT_MEASURED, NOT_SUPPORTED

Json = Mapping[str, Any]

GIB = 1 << 30
# A phase's published name, where it is not its own.
PUBLISHED_NAMES = {"update": "actor_update", "score_teacher": "teacher_scoring"}
# Phase -> the published name of the rate at which it handles response tokens.
RATES = {
    "rollout": "rollout_tokens_per_second",
    "score_old": "old_scored_positions_per_second",
    "score_reference": "reference_scored_positions_per_second",
    "score_teacher": "teacher_scored_positions_per_second",
    "update": "update_positions_per_second",
}
COLD_START_PARTS = (
    "interpreter_seconds",
    "imports_seconds",
    "run_start_seconds",
    "model_load_seconds",
    "before_first_step_seconds",
    "first_rollout_seconds",
    "first_update_seconds",
)

_SECONDS = 6  # decimals
_OTHERS = 4


def launch_values(launch: Json, prompts_per_step: int) -> dict[str, Any]:
    """The derived numbers of one launch."""
    finished = [step for step in launch["steps"] if step["is_finished"]]
    steady = [step for step in finished if not step["is_warmup"]]
    works = [step["work"] for step in finished if "status" not in step["work"]]
    checkpoints = [each["bytes"] for each in launch["checkpoints"]]
    lived = launch["ended_monotonic_seconds"] - launch["created_monotonic_seconds"]
    return {
        "ordinal": launch["ordinal"],
        "role": launch["role"],
        "seconds": round(lived, _SECONDS),
        **_first_times(launch),
        "steady_steps": len(steady),
        "steady_state_median_seconds": _median_seconds(steady),
        "steady_state_median_throughput": _median_throughput(steady),
        "steady_state_drift": _drift([step["seconds"] for step in steady]),
        **_memory(launch),
        "checkpoint_bytes": checkpoints[-1] if checkpoints else NOT_MEASURED,
        "checkpoint_bytes_written": sum(checkpoints),
        "steps_finished": len(finished),
        "prompts_consumed": len(finished) * prompts_per_step,
        "distinct_prompts_consumed": (
            len({prompt for work in works for prompt in work["prompt_ids"]})
            if works
            else NOT_MEASURED
        ),
        "response_tokens": _sum(works, "response_tokens"),
        "finished_responses": _sum(works, "finished_responses"),
        **_totals(launch),
        "metrics_mean": _means(step["metrics"] for step in finished),
        "validation_metrics_mean": _means(each["metrics"] for each in launch["validations"]),
        **_counted(launch["steps"], works),
        **sampled(launch["telemetry"], lived),
    }


def mean(numbers: Sequence[float]) -> float:
    return math.fsum(numbers) / len(numbers)


def is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _first_times(launch: Json) -> dict[str, Any]:
    """Cold start, its parts, and the times to the first rollout, teacher targets and update."""
    started = launch["started"]["at_seconds"] if launch["started"] else NOT_MEASURED
    loads = [load["at_seconds"] for load in launch["model_loads"]]
    loaded = max([*loads, started]) if loads and is_number(started) else NOT_MEASURED
    steps = launch["steps"]
    first_step = steps[0]["started_at_seconds"] if steps else NOT_MEASURED
    rollout, update = _first_end(steps, "rollout"), _first_end(steps, "update")
    marks = (
        launch["interpreter_at_seconds"],
        launch["imports_done_at_seconds"],
        started,
        loaded,
        first_step,
        rollout,
        update,
    )
    teacher = _first_end(steps, "score_teacher")
    return {
        "cold_startup_seconds": loaded,
        "cold_start": _parts(marks),
        "time_to_first_rollout_seconds": rollout,
        "time_to_first_teacher_targets_seconds": teacher if is_number(teacher) else NOT_SUPPORTED,
        "time_to_first_update_seconds": update,
    }


def _first_end(steps: Sequence[Json], phase: str) -> Any:
    ends = [step["phases"][phase]["at_seconds"] for step in steps if phase in step["phases"]]
    return min(ends) if ends else NOT_MEASURED


def _parts(marks: Sequence[Any]) -> dict[str, Any]:
    """Each part lasts from the last mark that is known to its own, so that the parts add up."""
    parts: dict[str, Any] = {}
    before = 0.0
    for name, mark in zip(COLD_START_PARTS, marks, strict=True):
        parts[name] = round(mark - before, _SECONDS) if is_number(mark) else NOT_MEASURED
        before = mark if is_number(mark) else before
    return parts


def _median_seconds(steady: Sequence[Json]) -> dict[str, float]:
    """Phase -> median seconds over the steps that have the phase; `step` is the whole step."""
    samples: dict[str, list[float]] = {}
    for step in steady:
        samples.setdefault("step", []).append(step["seconds"])
        for name, phase in step["phases"].items():
            samples.setdefault(PUBLISHED_NAMES.get(name, name), []).append(phase["seconds"])
    return {name: round(statistics.median(each), _SECONDS) for name, each in samples.items()}


def _median_throughput(steady: Sequence[Json]) -> dict[str, float]:
    """Rate -> median of tokens per second; `response_tokens_per_second` divides by the whole step."""
    samples: dict[str, list[float]] = {}
    for step in steady:
        phases = step["phases"]
        for name in (phase for phase in RATES if phase in phases):
            if phases[name]["tokens"] > 0 and phases[name]["seconds"] > 0:
                rate = phases[name]["tokens"] / phases[name]["seconds"]
                samples.setdefault(RATES[name], []).append(rate)
        if "rollout" in phases and step["seconds"] > 0:
            rate = phases["rollout"]["tokens"] / step["seconds"]
            samples.setdefault("response_tokens_per_second", []).append(rate)
    return {name: round(statistics.median(each), _OTHERS) for name, each in samples.items()}


def _drift(seconds: Sequence[float]) -> Any:
    """Median of the second half over median of the first half; needs two steps in each."""
    half = len(seconds) // 2
    if half < 2:
        return NOT_MEASURED
    return round(statistics.median(seconds[-half:]) / statistics.median(seconds[:half]), _OTHERS)


def _memory(launch: Json) -> dict[str, Any]:
    kinds = ("allocated", "reserved", "process", "device", "rss")
    peaks = {f"peak_{kind}_gib": launch["memory"][f"peak_{kind}_bytes"] for kind in kinds}
    rss = launch["telemetry"]["series"].get("rss_bytes")
    return {
        **{name: _gib(peak) if is_number(peak) else peak for name, peak in peaks.items()},
        "mean_rss_gib": _gib(mean(rss)) if rss else NOT_MEASURED,
    }


def _counted(steps: Sequence[Json], works: Sequence[Json]) -> dict[str, Any]:
    """What the roofline counts with, over every step; records from before it have none of it."""
    names = [f"{kind}_tokens" for kind in ("prompt", "prompt_attended", "response_attended")]
    names.append("longest_response")
    totals: dict[str, Any] = {}
    if works and all(name in work for work in works for name in names):
        totals["total_work"] = {name: _sum(works, name) for name in names}
    batches: dict[str, dict[str, int]] = {"total_batches": {}, "most_rows": {}, "most_tokens": {}}
    for own_name, phase in ((n, p) for step in steps for n, p in step["phases"].items()):
        name = PUBLISHED_NAMES.get(own_name, own_name)
        if "batches" in phase:
            total = batches["total_batches"]
            total[name] = total.get(name, 0) + phase["batches"]
        for kind in ("most_rows", "most_tokens"):
            if kind in phase:
                batches[kind][name] = max(batches[kind].get(name, 0), phase[kind])
    return totals | {kind: found for kind, found in batches.items() if found}


def sampled(telemetry: Json, lived_seconds: float) -> dict[str, Any]:
    """What the sampled series say; records from before readings were listed have none of it."""
    if "fields" not in telemetry:
        return {}
    series, fields = telemetry["series"], telemetry["fields"]
    at = series["at_seconds"]

    def of(name: str, say: Callable[[Sequence[float]], float]) -> Any:
        values = series.get(name)
        status = fields.get(name, "not_measured")
        absent = NOT_MEASURED if status == "measured" else {"status": status}
        return float(f"{say(values):.9g}") if values else absent

    counted = of("energy_joules", lambda joules: joules[-1] - joules[0])
    added = of("power_watts", lambda watts: _integral(at, watts))
    is_known = is_number(counted) and is_number(added) and counted > 0
    gaps = [later - earlier for earlier, later in pairwise(at)]
    taken = telemetry.get("samples_taken", len(at))  # records from before it was counted have fewer
    return {
        "telemetry": {
            "coverage": round(taken * telemetry["every_seconds"] / lived_seconds, _OTHERS),
            "longest_gap_seconds": round(max(gaps), _SECONDS) if gaps else NOT_MEASURED,
            "energy_joules": counted,
            "energy_from_power_joules": added,
            "energy_agreement": round(added / counted, _OTHERS) if is_known else NOT_MEASURED,
            "mean_power_watts": of("power_watts", mean),
            "mean_sm_clock_mhz": of("sm_clock_mhz", mean),
            "max_temperature_celsius": of("temperature_celsius", max),
            "mean_cpu_mhz": of("cpu_mhz", mean),
            "mean_load": of("load_average", mean),
        }
    }


def _integral(at: Sequence[float], values: Sequence[float]) -> float:
    """By trapezoids."""
    points = zip(at, values, strict=True)
    return math.fsum((t1 - t0) * (v0 + v1) / 2 for (t0, v0), (t1, v1) in pairwise(points))


def _gib(num_bytes: float) -> float:
    return round(num_bytes / GIB, _OTHERS)


def _totals(launch: Json) -> dict[str, dict[str, float]]:
    """Seconds and tokens by phase over every step, and what was spent outside of steps."""
    seconds: dict[str, list[float]] = {"step": []}
    tokens: dict[str, int] = {}
    phases = [(name, phase) for step in launch["steps"] for name, phase in step["phases"].items()]
    phases += [(phase["phase"], phase) for phase in launch["outside_steps"]]
    for own_name, phase in phases:
        name = PUBLISHED_NAMES.get(own_name, own_name)
        seconds.setdefault(name, []).append(phase["seconds"])
        tokens[name] = tokens.get(name, 0) + phase["tokens"]
    seconds["step"] = [step["seconds"] for step in launch["steps"] if step["is_finished"]]
    seconds["model_load"] = [load["seconds"] for load in launch["model_loads"]]
    return {
        "total_seconds": {n: round(math.fsum(each), _SECONDS) for n, each in seconds.items()},
        "total_tokens": dict(tokens),
    }


def _means(of: Iterable[Json]) -> dict[str, Any]:
    """Metric -> mean over those that have a number for it; where one is not finite, the mean is not."""
    samples: dict[str, list[Any]] = {}
    for metrics in of:
        for name, value in metrics.items():
            samples.setdefault(name, []).append(value)
    return {name: mean_or_status(values) for name, values in samples.items()}


def mean_or_status(values: Sequence[Any]) -> Any:
    """The mean, or the status of the first value that is not a number."""
    missing = [value for value in values if not is_number(value)]
    return missing[0] if missing else float(f"{mean(values):.9g}")


def _sum(works: Sequence[Json], name: str) -> Any:
    return sum(work[name] for work in works) if works else NOT_MEASURED
