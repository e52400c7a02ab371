"""Whether a launch hangs together: clocks that run forward, counts within their bounds, one story throughout.

Derived numbers are compared elsewhere.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from miniverl.bench.finding import Coded, Mistake, coded, pointer
from miniverl.bench.launch_values import RATES, is_number

Json = Mapping[str, Any]

_ROUNDING_SECONDS = 1e-4
# A busy machine may stop the process between taking a time and writing the event that tells it.
_STAMP_DELAY_SECONDS = 2.0


def launch_mistakes(record: Json) -> Iterator[Coded]:
    """Every mistake in `launches`."""
    for index, launch in enumerate(record["launches"]):
        for code, mistake in _of_launch(launch, record):
            yield code, _below(mistake, "launches", index)
    yield from coded("clock_order", _starts(record["launches"]))
    yield from coded("contradiction", _ordinals(record["launches"]))


def _below(mistake: Mistake, *path: str | int) -> Mistake:
    """The mistake of a part, in the whole."""
    return mistake._replace(field=pointer(*path) + mistake.field)


def _starts(launches: Sequence[Json]) -> Iterator[Mistake]:
    for index, (one, other) in enumerate(pairwise(launches), start=1):
        if other["created_monotonic_seconds"] < one["created_monotonic_seconds"]:
            field = pointer("launches", index, "created_monotonic_seconds")
            yield Mistake(
                field, other["created_monotonic_seconds"], "before the launch that precedes it"
            )


def _ordinals(launches: Sequence[Json]) -> Iterator[Mistake]:
    for index, launch in enumerate(launches):
        if launch["ordinal"] != index + 1:
            field = pointer("launches", index, "ordinal")
            yield Mistake(field, launch["ordinal"], f"expected {index + 1}", index + 1)


def _of_launch(launch: Json, record: Json) -> Iterator[Coded]:
    yield from coded("contradiction", _end(launch))
    yield from coded("contradiction", _start(launch, record))
    yield from coded("clock_order", _marks(launch))
    yield from coded("contradiction", _step_numbers(launch, record["workload"]["warmup_steps"]))
    for index, step in enumerate(launch["steps"]):
        for code, mistakes in (
            ("clock_order", _step_times(step)),
            ("wrong_count", _step_counts(step, record["recipe"])),
        ):
            yield from coded(code, (_below(each, "steps", index) for each in mistakes))
    yield from coded("memory_order", _memory(launch))
    yield from coded("wrong_telemetry", _telemetry(launch["telemetry"]))


def _end(launch: Json) -> Iterator[Mistake]:
    created, ended = launch["created_monotonic_seconds"], launch["ended_monotonic_seconds"]
    if ended < created:
        yield Mistake("/ended_monotonic_seconds", ended, "before the process was created")
    is_finished = launch["is_finished"]
    if is_finished and launch["failure"] is not None:
        yield Mistake("/failure", launch["failure"]["code"], "the launch finished its run")
    if is_finished == (launch["outputs"] is None):
        yield Mistake("/outputs", launch["outputs"], f"is_finished is {is_finished}")


def _start(launch: Json, record: Json) -> Iterator[Mistake]:
    """What the run said of itself, against what the record says of it."""
    started = launch["started"]
    if started is None:
        if launch["steps"]:
            yield Mistake("/started", None, "the launch has steps")
        return
    if launch["role"] != "resumed" and started["resumed_step"] is not None:
        yield Mistake(
            "/started/resumed_step", started["resumed_step"], f"the role is {launch['role']}"
        )
    told = {
        "recipe_sha256": record["recipe"]["recipe_sha256"],
        "num_steps": record["recipe"]["num_steps"],
        "threads": record["environment"]["threads"],
    }
    for name, value in told.items():
        if started[name] != value:
            field = f"/started/{name}"
            yield Mistake(field, started[name], f"the record says {value!r}", value)
    if started["device"].partition(":")[0] != record["hardware"]["device"]:
        hardware = record["hardware"]["device"]
        yield Mistake(
            "/started/device", started["device"], f"the record's hardware says {hardware!r}"
        )
    policy = record["models"]["policy"]
    for index, load in enumerate(launch["model_loads"]):
        for name in ("parameters", "trainable_parameters"):
            if load["role"] == "policy" and load[name] != policy.get(name, load[name]):
                field = pointer("model_loads", index, name)
                yield Mistake(field, load[name], f"the record's policy has {policy[name]!r}")
        if load["trainable_parameters"] > load["parameters"]:
            field = pointer("model_loads", index, "trainable_parameters")
            yield Mistake(field, load["trainable_parameters"], "more than all parameters")


def _marks(launch: Json) -> Iterator[Mistake]:
    """Nothing happens before what precedes it, or after the end."""
    lived = launch["ended_monotonic_seconds"] - launch["created_monotonic_seconds"]
    started = (
        [("/started/at_seconds", launch["started"]["at_seconds"])] if launch["started"] else []
    )
    chain = [
        ("/interpreter_at_seconds", launch["interpreter_at_seconds"]),
        ("/imports_done_at_seconds", launch["imports_done_at_seconds"]),
        *started,
        *_at(launch, "model_loads"),
        *_step_marks(launch["steps"]),
    ]
    yield from _forward([mark for mark in chain if is_number(mark[1])], lived)
    for name in ("checkpoints", "validations", "warnings", "outside_steps"):
        yield from _forward(_at(launch, name), lived)


def _at(launch: Json, name: str) -> list[tuple[str, Any]]:
    return [
        (pointer(name, index, "at_seconds"), each["at_seconds"])
        for index, each in enumerate(launch[name])
    ]


def _step_marks(steps: Sequence[Json]) -> Iterator[tuple[str, Any]]:
    for index, step in enumerate(steps):
        for name in ("started_at_seconds", "finished_at_seconds"):
            yield pointer("steps", index, name), step[name]


def _forward(marks: Sequence[tuple[str, float]], lived: float) -> Iterator[Mistake]:
    for (_, before), (field, at) in pairwise(marks):
        if at < before:
            yield Mistake(field, at, f"before {before}, when what precedes it happened")
    for field, at in marks:
        if at > lived + _ROUNDING_SECONDS:
            yield Mistake(field, at, f"after the end of the launch at {lived:.6f}")


def _step_numbers(launch: Json, warmup_steps: int) -> Iterator[Mistake]:
    steps = launch["steps"]
    first = 1 + ((launch["started"] or {}).get("resumed_step") or 0)
    for index, step in enumerate(steps):
        if step["step"] != first + index:
            field, expected = pointer("steps", index, "step"), first + index
            yield Mistake(field, step["step"], f"expected {expected}", expected)
        if step["is_warmup"] != (index < warmup_steps):
            field = pointer("steps", index, "is_warmup")
            yield Mistake(
                field, step["is_warmup"], f"the workload has {warmup_steps} warm-up steps"
            )
        if step["is_finished"] != is_number(step["seconds"]):
            field = pointer("steps", index, "seconds")
            yield Mistake(field, step["seconds"], f"is_finished is {step['is_finished']}")
        if not step["is_finished"] and index < len(steps) - 1:
            yield Mistake(pointer("steps", index, "is_finished"), False, "a later step was started")
        if step["is_finished"] != is_number(step["finished_at_seconds"]):
            field = pointer("steps", index, "finished_at_seconds")
            yield Mistake(
                field, step["finished_at_seconds"], f"is_finished is {step['is_finished']}"
            )
    if launch["is_finished"] and launch["started"]:
        done, planned = first - 1 + len(steps), launch["started"]["num_steps"]
        if done != planned:
            yield Mistake(
                "/steps", f"{len(steps)} steps", f"the run of {planned} steps is finished"
            )


def _step_times(step: Json) -> Iterator[Mistake]:
    """Phases begin within their step; those that end within it take no longer than it."""
    start, end = step["started_at_seconds"], step["finished_at_seconds"]
    for name, phase in step["phases"].items():
        if phase["at_seconds"] - phase["seconds"] < start - _ROUNDING_SECONDS:
            reason = f"longer than from the start of the step at {start} to its end"
            yield Mistake(pointer("phases", name, "seconds"), phase["seconds"], reason)
    if not (is_number(step["seconds"]) and is_number(end)):
        return
    if abs(end - start - step["seconds"]) > _STAMP_DELAY_SECONDS:
        yield Mistake(
            "/seconds", step["seconds"], f"it was started at {start} and finished at {end}"
        )
    inside = [p["seconds"] for p in step["phases"].values() if p["at_seconds"] <= end]
    if math.fsum(inside) > step["seconds"] + _ROUNDING_SECONDS:
        yield Mistake("/seconds", step["seconds"], f"its phases take {math.fsum(inside):.6f}")


def _step_counts(step: Json, recipe: Json) -> Iterator[Mistake]:
    """Tokens and responses within what one batch can hold."""
    responses = recipe["logical_batch"] * recipe["samples_per_prompt"]
    # A filter samples more groups than it keeps.
    groups = step["metrics"].get("groups_drawn", recipe["logical_batch"])
    drawn = round(groups) * recipe["samples_per_prompt"]
    times = {"update": recipe["compiled"]["update"]["epochs"]}
    for name in RATES.keys() & step["phases"].keys():
        found, held = step["phases"][name]["tokens"], drawn if name == "rollout" else responses
        limit = held * recipe["response_limit"] * times.get(name, 1)
        if found > limit:
            field = pointer("phases", name, "tokens")
            yield Mistake(
                field, found, f"more than {held} responses of the recipe's limit: {limit}"
            )
    for name, phase in step["phases"].items():
        # A response alone is decoded twice.
        held = max(2, drawn) if name == "rollout" else responses
        if name != "validation" and phase.get("most_rows", 0) > held:
            field = pointer("phases", name, "most_rows")
            yield Mistake(field, phase["most_rows"], f"the recipe's batch has {held}")
    work = step["work"]
    if "status" in work:
        return
    if work["responses"] != responses:
        reason = f"the recipe's batch has {responses}"
        yield Mistake("/work/responses", work["responses"], reason, responses)
    if work["finished_responses"] > work["responses"]:
        yield Mistake(
            "/work/finished_responses", work["finished_responses"], "more than the responses"
        )
    if len(work["prompt_ids"]) > recipe["logical_batch"]:
        found = f"{len(work['prompt_ids'])} prompts"
        yield Mistake(
            "/work/prompt_ids", found, f"the recipe's batch has {recipe['logical_batch']}"
        )
    rollout = step["phases"].get("rollout")
    is_other = rollout and rollout["tokens"] != work["response_tokens"]
    if is_other and (drawn == responses or rollout["tokens"] < work["response_tokens"]):
        reason = f"the rollout counted {rollout['tokens']}"
        yield Mistake("/work/response_tokens", work["response_tokens"], reason)


def _memory(launch: Json) -> Iterator[Mistake]:
    memory, series = launch["memory"], launch["telemetry"]["series"]
    allocated, reserved = memory["peak_allocated_bytes"], memory["peak_reserved_bytes"]
    if is_number(allocated) and is_number(reserved) and reserved < allocated:
        yield Mistake(
            "/memory/peak_reserved_bytes", reserved, f"less than the {allocated} allocated"
        )
    for kind in ("allocated", "reserved", "process", "device", "rss"):
        peak = memory[f"peak_{kind}_bytes"]
        seen = [*series.get(f"{kind}_bytes", [])]
        for step in launch["steps"]:
            seen += [
                step["memory"][name]
                for name in (f"peak_{kind}_bytes", f"{kind}_bytes")
                if name in step["memory"]
            ]
        if seen and (not is_number(peak) or peak < max(seen)):
            yield Mistake(f"/memory/peak_{kind}_bytes", peak, f"a sample shows {max(seen)}")
    for index, (one, other) in enumerate(pairwise(launch["steps"]), start=1):
        for name in one["memory"].keys() & other["memory"].keys():
            if name.startswith("peak_") and other["memory"][name] < one["memory"][name]:
                field = pointer("steps", index, "memory", name)
                yield Mistake(field, other["memory"][name], "less than the peak of the step before")


def _telemetry(telemetry: Json) -> Iterator[Mistake]:
    series = telemetry["series"]
    num_samples = len(series["at_seconds"])
    for name, values in series.items():
        if len(values) != num_samples:
            found = f"{len(values)} samples"
            yield Mistake(f"/telemetry/series/{name}", found, f"at_seconds has {num_samples}")
    for index, (one, other) in enumerate(pairwise(series["at_seconds"]), start=1):
        if other < one:
            yield Mistake(
                pointer("telemetry", "series", "at_seconds", index), other, f"before {one}"
            )
    taken = telemetry.get("samples_taken", num_samples)
    if taken < num_samples:
        reason = f"the series have {num_samples}"
        yield Mistake("/telemetry/samples_taken", taken, reason, f"at least {num_samples}")
    if (telemetry["status"] == "not_measured") != (num_samples == 0):
        yield Mistake("/telemetry/status", telemetry["status"], f"there are {num_samples} samples")
    if (telemetry["status"] == "invalid") != bool(telemetry["reasons"]):
        yield Mistake(
            "/telemetry/reasons", telemetry["reasons"], f"the status is {telemetry['status']}"
        )
