"""Everything in a record that follows from the rest of it. One function, used to write a record and to check it.

`derived(record)` has the shape of a record: merged into the measured fields it completes them, and compared
with a finished record it says which numbers do not follow. The shapes are in schemas/record-v2.json, which a
record has passed before it comes here.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from miniverl.bench.comparability import comparability, sha256_of
from miniverl.bench.launch_values import (
    COLD_START_PARTS,
    GIB,
    is_number,
    launch_values,
    mean_or_status,
)
from miniverl.bench.measure import NOT_MEASURED, NOT_SUPPORTED
from miniverl.bench.roofline import roofline

Json = Mapping[str, Any]

# A record gives the median over its straight launches of these values, and of these groups of values.
_MEDIANS = (
    "cold_startup_seconds",
    "time_to_first_rollout_seconds",
    "time_to_first_teacher_targets_seconds",
    "time_to_first_update_seconds",
    "steady_steps",
    "steady_state_drift",
    "peak_allocated_gib",
    "peak_reserved_gib",
    "peak_process_gib",
    "peak_device_gib",
    "peak_rss_gib",
    "mean_rss_gib",
    "checkpoint_bytes",
    "prompts_consumed",
    "distinct_prompts_consumed",
    "response_tokens",
)
_GROUPS = ("cold_start", "steady_state_median_seconds", "steady_state_median_throughput")
_DECIMALS = 6


def derived(record: Json) -> dict[str, Any]:
    """The derived fields of every block, except the digests of the record itself."""
    prompts_per_step = record["recipe"]["compiled"]["data"]["prompts_per_step"]
    values = [launch_values(launch, prompts_per_step) for launch in record["launches"]]
    return {
        "recipe": _recipe(record),
        "models": _models(record),
        "measurements": _measurements(record, values),
        "artifacts": _artifacts(record["artifacts"]["files"]),
        **roofline(record),
        "resource_contract": _resource_contract(record, values),
        "resume": _resume(record, values),
        "comparability": comparability(record),
    }


def _recipe(record: Json) -> dict[str, Any]:
    compiled = record["recipe"]["compiled"]
    prompts_per_step: int = compiled["data"]["prompts_per_step"]
    num_steps = _num_steps(record)
    return {
        "recipe_sha256": sha256_of(compiled),
        "estimator": compiled["advantage"]["estimator"],
        "policy_loss": compiled["policy_loss"]["name"],
        "learning_rate": compiled["optimizer"]["learning_rate"],
        "logical_batch": prompts_per_step,
        "samples_per_prompt": compiled["rollout"]["samples_per_prompt"],
        "prompt_limit": compiled["data"]["max_prompt_tokens"],
        "response_limit": compiled["rollout"]["max_response_tokens"],
        "num_steps": num_steps,
        "optimizer_updates": _times(num_steps, _updates_per_step(compiled)),
        "interrupt_after_updates": record["workload"]["interrupt_after_update"],
        "train_sha256": compiled["data"]["train_sha256"],
        "prompts_consumed": _times(num_steps, prompts_per_step),
    }


def _num_steps(record: Json) -> Any:
    """What a launch said, since the end of the data may come first; otherwise what the recipe asks for."""
    said = [launch["started"]["num_steps"] for launch in record["launches"] if launch["started"]]
    asked = record["recipe"]["compiled"]["steps"]["num_steps"]
    if said:
        return said[0]
    return NOT_MEASURED if asked is None else asked


def _updates_per_step(compiled: Json) -> int:
    prompts_per_step: int = compiled["data"]["prompts_per_step"]
    prompts_per_mini_batch: int = compiled["update"]["prompts_per_mini_batch"]
    epochs: int = compiled["update"]["epochs"]
    return math.ceil(prompts_per_step / prompts_per_mini_batch) * epochs


def _times(count: Any, factor: int) -> Any:
    return count * factor if is_number(count) else count


def _models(record: Json) -> dict[str, Any]:
    """Of every role that the recipe has: the policy, and whom it learns from or with."""
    compiled = record["recipe"]["compiled"]
    parts = {"policy": compiled["policy"], "critic": compiled.get("critic")}
    parts["reward_model"] = compiled["reward"].get("model")
    for teacher in (compiled.get("distillation") or {}).get("teachers", ()):
        parts["teacher" if teacher["key"] is None else f"teacher.{teacher['key']}"] = teacher
    rollout_dtype = {"policy": {"rollout_dtype": compiled["rollout"]["dtype"]}}
    return {
        role: _model(role, part, record) | rollout_dtype.get(role, {})
        for role, part in parts.items()
        if part is not None and role in record["models"]
    }


def _model(role: str, part: Json, record: Json) -> dict[str, Any]:
    """A model that is only asked has one type, and nothing that is trained."""
    loads = [
        load
        for launch in record["launches"]
        for load in launch["model_loads"]
        if load["role"] == role
    ]
    if "dtype" in part:
        kind = {"parameter_dtype": part["dtype"], "compute_dtype": part["dtype"]}
    else:
        kind = {name: part[name] for name in ("parameter_dtype", "compute_dtype", "lora")}
    return {
        "weights_sha256": part["weights_sha256"],
        "parameters": loads[0]["parameters"] if loads else NOT_MEASURED,
        "trainable_parameters": loads[0]["trainable_parameters"] if loads else NOT_MEASURED,
        **kind,
    }


def _measurements(record: Json, values: Sequence[Json]) -> dict[str, Any]:
    straight = [each for each in values if each["role"] == "straight"]
    first = next((each for each in record["launches"] if each["role"] == "straight"), None)
    files = record["artifacts"]["files"]
    adapter = [files[name]["bytes"] for name in files if name.startswith("adapter/")]
    groups = {group: _medians([each[group] for each in straight]) for group in _GROUPS}
    return {
        **{name: _median([each[name] for each in straight]) for name in _MEDIANS},
        **groups,
        "cold_start": dict.fromkeys(COLD_START_PARTS, NOT_MEASURED) | groups["cold_start"],
        "adapter_bytes": sum(adapter) if adapter else NOT_MEASURED,
        "total_run_bytes": record["artifacts"]["total_run_bytes"],
        "training_metrics": _training_metrics(first) if first else {},
        "validation_metrics": _validation_metrics(first) if first else {},
        "launches": list(values),
    }


def _median(values: Sequence[Any]) -> Any:
    """The median of those that are numbers; without any, the status of the first."""
    numbers = [value for value in values if is_number(value)]
    if numbers:
        return round(statistics.median(numbers), _DECIMALS)
    return values[0] if values else NOT_MEASURED


def _medians(groups: Sequence[Json]) -> dict[str, Any]:
    names = {name: None for group in groups for name in group}
    return {name: _median([group[name] for group in groups if name in group]) for name in names}


def _training_metrics(launch: Json) -> dict[str, Any]:
    steps = [step["metrics"] for step in launch["steps"] if step["is_finished"]]
    names = {name: None for metrics in steps for name in metrics}
    return {name: _trend([metrics[name] for metrics in steps if name in metrics]) for name in names}


def _trend(values: Sequence[Any]) -> dict[str, Any]:
    """Mean, and the last third against the first; the standard error needs two values in each."""
    third = len(values) // 3
    first, last = values[:third], values[len(values) - third :]
    trend: dict[str, Any] = {
        "mean": mean_or_status(values),
        "first_third_mean": mean_or_status(first) if first else NOT_MEASURED,
        "last_third_mean": mean_or_status(last) if last else NOT_MEASURED,
        "change": NOT_MEASURED,
        "change_standard_error": NOT_MEASURED,
    }
    if is_number(trend["first_third_mean"]) and is_number(trend["last_third_mean"]):
        trend["change"] = _nine_digits(trend["last_third_mean"] - trend["first_third_mean"])
        if third >= 2:
            variances = statistics.variance(first) + statistics.variance(last)
            trend["change_standard_error"] = _nine_digits(math.sqrt(variances / third))
    return trend


def _nine_digits(number: float) -> float:
    return float(f"{number:.9g}")


def _validation_metrics(launch: Json) -> dict[str, Any]:
    validations = launch["validations"]
    if not validations:
        return {}
    before, after = validations[0]["metrics"], validations[-1]["metrics"]
    return {
        name: {"before": before[name], "after": after[name]} for name in before if name in after
    }


def _artifacts(files: Json) -> dict[str, Any]:
    def sha256(name: str) -> str | None:
        return files[name]["sha256"] if name in files else None

    return {
        "checkpoint_hashes": {
            name.rpartition("/")[2]: each["sha256"]
            for name, each in files.items()
            if name.startswith("checkpoints/")
        },
        "standard_peft_adapter_sha256": sha256("adapter/adapter_model.safetensors"),
        "trajectory_sha256": sha256("trajectories.jsonl"),
    }


def _resource_contract(record: Json, values: Sequence[Json]) -> dict[str, Any]:
    contract = record["resource_contract"]
    is_gpu = record["hardware"]["device"] == "cuda"
    seconds = round(math.fsum(each["seconds"] for each in values), _DECIMALS)
    hour_limit = contract["device_hour_limit"]
    longest_hours = max((each["seconds"] for each in values), default=0.0) / 3600
    disk_bytes = record["artifacts"]["total_run_bytes"]
    disk_gib = disk_bytes / GIB if is_number(disk_bytes) else disk_bytes
    return {
        "total_device_seconds": seconds,
        "gpu_hour_limit": hour_limit if is_gpu else NOT_SUPPORTED,
        "total_gpu_workload_seconds": seconds if is_gpu else NOT_SUPPORTED,
        "device_hours_within_limit": _within(longest_hours, hour_limit),
        "peak_reserved_within_limit": _within(
            _largest(each["peak_reserved_gib"] for each in values),
            contract["peak_reserved_limit_gib"],
        ),
        "peak_rss_within_limit": _within(
            _largest(each["peak_rss_gib"] for each in values), contract["peak_rss_limit_gib"]
        ),
        "disk_within_limit": _within(disk_gib, contract["disk_limit_gib"]),
    }


def _largest(values: Iterable[Any]) -> Any:
    return max((value for value in values if is_number(value)), default=NOT_MEASURED)


def _within(used: Any, limit: Any) -> Any:
    """Whether the limit was kept, or why that cannot be said."""
    if not is_number(limit):
        return limit
    return used <= limit if is_number(used) else used


def _resume(record: Json, values: Sequence[Json]) -> dict[str, Any]:
    return _identity(record["resume"]) | _continuation(record, values)


def _identity(resume: Json) -> dict[str, Any]:
    """What is equal, from the names of the files that differ."""

    def is_equal(*parts: str) -> Any:
        if resume["status"] == "not_checked":
            return NOT_MEASURED
        return not any(part in name for name in resume["differing_files"] for part in parts)

    return {
        "adapter_and_optimizer_byte_identical": is_equal("adapter", "model.", "optimizer"),
        "training_state_fields_identical": is_equal("state.json"),
        "trajectories_byte_identical": is_equal("trajectories.jsonl"),
        "excluded_run_identity_field": None,
    }


def _continuation(record: Json, values: Sequence[Json]) -> dict[str, Any]:
    """Where the resumed launch went on, and how far it came."""
    names = ("global_optimizer_steps", "task_cursor")
    unknown = dict.fromkeys(
        (*names, "interrupt_checkpoint_bytes", "resume_load_seconds"), NOT_MEASURED
    )
    pairs = zip(record["launches"], values, strict=True)
    resumed = [pair for pair in pairs if pair[0]["role"] == "resumed" and pair[0]["started"]]
    if not resumed:
        return unknown
    launch, own_values = resumed[0]
    from_step: int = launch["started"]["resumed_step"] or 0
    steps = from_step + own_values["steps_finished"]
    compiled = record["recipe"]["compiled"]
    saved = [
        checkpoint["bytes"]
        for each in record["launches"]
        for checkpoint in each["checkpoints"]
        if each["role"] == "interrupted" and checkpoint["step"] == from_step
    ]
    known: dict[str, Any] = {
        "global_optimizer_steps": steps * _updates_per_step(compiled),
        "task_cursor": steps * compiled["data"]["prompts_per_step"],
    }
    if saved:
        known["interrupt_checkpoint_bytes"] = saved[-1]
    if launch["steps"]:
        load = launch["steps"][0]["started_at_seconds"] - launch["started"]["at_seconds"]
        known["resume_load_seconds"] = round(load, _DECIMALS)
    return unknown | known
