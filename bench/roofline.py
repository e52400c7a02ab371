"""How near each phase of a step comes to what the machine can do, from counted work and measured limits.

The least time of a phase is the longer of two: its bytes at the measured bandwidth, its operations at the measured
peak. Both are counted at least: weights are read once for each physical batch, or decoded token; nothing spills.
"""

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from miniverl.engine.footprint import (
    DTYPE_BYTES,
    FAMILIES,
    ModelShape,
    body_flops_per_token,
    cache_bytes_per_token,
    head_flops_per_token,
    model_shape,
    optimizer_bytes,
    trained_parameters,
    update_flops_per_token,
    weight_bytes,
)
from miniverl.engine.recipe import Dtype, Lora, Quantization

Json = Mapping[str, Any]

_DIGITS = 6  # that are significant
# Phase -> the model in it, where the record states its sizes.
_MODELS = {
    "score_old": "policy",
    "score_reference": "policy",
    "score_teacher": "teacher",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """What one phase of one step has to read, write and compute, and in which type."""

    bytes: float
    flops: float
    dtype: str


def roofline(record: Json) -> dict[str, Any]:
    """The derived block; empty for a record that states no machine."""
    if "roofline" not in record:
        return {}
    machine, shapes = record["roofline"]["machine"], record["roofline"]["shapes"]
    known = {role: ModelShape(**sizes) for role, sizes in shapes.items()}
    straight = [each for each in record["launches"] if each["role"] == "straight"]
    launches = [_medians(each, record["recipe"]["compiled"], known, machine) for each in straight]
    names = {name: None for launch in launches for name in launch}
    return {
        "roofline": {
            "phases": {
                name: _over([one[name] for one in launches if name in one]) for name in names
            }
        }
    }


def stated(machine: Json, paths: Mapping[str, Path | None]) -> dict[str, Any]:
    """What a record states for it: the machine's limits, and the sizes of the models that are bound to `paths`."""
    roles = {"policy": "model", "teacher": "teacher"}
    configs = {
        role: json.loads((path / "config.json").read_text("utf-8"))
        for role, bound in roles.items()
        if (path := paths.get(bound))
    }
    shapes = {
        role: asdict(model_shape(config, "config.json"))
        for role, config in configs.items()
        if config["model_type"] in FAMILIES  # of others the work is not known
    }
    return {"machine": dict(machine), "shapes": shapes}


def phase_work(step: Json, compiled: Json, shapes: Mapping[str, ModelShape]) -> dict[str, Work]:
    """Phase -> its work, of a step whose trajectories are those that were sampled in it."""
    phases, work = step["phases"], step["work"]
    has_counts = "response_attended_tokens" in work and "rollout" in phases and "policy" in shapes
    if not has_counts or phases["rollout"]["tokens"] != work["response_tokens"]:
        return {}  # a filter sampled more than it kept
    policy, rollout = compiled["policy"], compiled["rollout"]
    sampled = weight_bytes(shapes["policy"], rollout["dtype"], rollout.get("weights"))
    found = {"rollout": _rollout(work, shapes["policy"], rollout["dtype"], sampled)}
    for name, role in _MODELS.items():
        if name in phases and role in shapes:
            dtype, shape = policy["compute_dtype"], shapes[role]
            read = weight_bytes(shape, dtype, _quantization(compiled, role))
            found[name] = _forward(work, shape, dtype, read * phases[name].get("batches", 1))
    if "update" in phases:
        found["update"] = _update(work, shapes["policy"], compiled, phases["update"])
    return found


def _quantization(compiled: Json, role: str) -> Quantization | None:
    """Of the frozen weights of a role, which are then read as they are held."""
    held: Json = compiled["policy"]
    if role == "teacher":
        held = compiled["distillation"]["teachers"][0]
    quantization: Quantization | None = held.get("quantization")
    return quantization


def _medians(
    launch: Json, compiled: Json, shapes: Mapping[str, ModelShape], machine: Json
) -> dict[str, dict[str, Any]]:
    """Over the steady steps of one launch."""
    steps: dict[str, list[dict[str, Any]]] = {}
    for step in launch["steps"]:
        if step["is_finished"] and not step["is_warmup"]:
            for name, work in phase_work(step, compiled, shapes).items():
                for point in _points(work, step["phases"][name]["seconds"], machine):
                    steps.setdefault(name, []).append(point)
    return {name: _over(points) for name, points in steps.items()}


def _points(work: Work, seconds: float, machine: Json) -> Iterator[dict[str, Any]]:
    """Where the step lies below its roof; nothing for a type whose peak was not measured."""
    peak = machine["matmul_flops_per_second"].get(work.dtype)
    if peak is None or seconds == 0:
        return
    reading = work.bytes / machine["memory_bytes_per_second"]
    computing = work.flops / peak
    least = max(reading, computing)
    yield {
        "bytes": work.bytes,
        "flops": work.flops,
        "seconds": seconds,
        "least_seconds": least,
        "bound": "memory" if reading >= computing else "compute",
        "share": least / seconds,
    }


def _over(points: Sequence[Json]) -> dict[str, Any]:
    """Medians; what most are bound by."""
    numbers = ("bytes", "flops", "seconds", "least_seconds", "share")
    medians = {name: statistics.median(point[name] for point in points) for name in numbers}
    bound = statistics.mode(point["bound"] for point in points)
    return {name: float(f"{v:.{_DIGITS}g}") for name, v in medians.items()} | {"bound": bound}


def _rollout(work: Json, shape: ModelShape, dtype: Dtype, weights: int) -> Work:
    """One prefill of each prompt, then a token a row: weights and every row's cache are read for each."""
    decoded, prompts = work["response_tokens"], len(work["prompt_ids"])
    attended = work["prompt_attended_tokens"] + work["response_attended_tokens"]
    flops = _body_flops(shape, work["prompt_tokens"] + decoded, attended)
    flops += head_flops_per_token(shape) * (decoded + prompts)
    read = weights * (1 + work["longest_response"])
    cache = cache_bytes_per_token(shape, dtype) * work["response_attended_tokens"]
    return Work(bytes=read + cache, flops=flops, dtype=dtype)


def _forward(work: Json, shape: ModelShape, dtype: Dtype, read: int) -> Work:
    """Prompts are shared by their responses; the head is for responses alone."""
    tokens = work["prompt_tokens"] + work["response_tokens"]
    attended = work["prompt_attended_tokens"] + work["response_attended_tokens"]
    flops = _body_flops(shape, tokens, attended)
    flops += head_flops_per_token(shape) * work["response_tokens"]
    return Work(bytes=read, flops=flops, dtype=dtype)


def _update(work: Json, shape: ModelShape, compiled: Json, phase: Json) -> Work:
    """Forward and backward of every epoch; gradients and both moments of what is trained, once an update."""
    policy, update = compiled["policy"], compiled["update"]
    dtype: Dtype = policy["compute_dtype"]
    kept_in: Dtype = policy["parameter_dtype"]
    lora = None if policy["lora"] is None else _lora(policy["lora"])
    tokens = work["prompt_tokens"] + work["response_tokens"]
    attended = work["prompt_attended_tokens"] + work["response_attended_tokens"]
    per_token = update_flops_per_token(
        shape,
        lora,
        checkpoints_activations=policy["checkpoints_activations"],
        mean_tokens=attended / tokens,
    )
    head = head_flops_per_token(shape) * (3 if lora is None else 2)
    flops = update["epochs"] * (per_token * tokens + head * work["response_tokens"])
    prompts = compiled["data"]["prompts_per_step"]
    updates = update["epochs"] * -(-prompts // update["prompts_per_mini_batch"])
    trained = trained_parameters(shape, lora)
    # Gradients written and read; weights and moments read and written.
    moments = optimizer_bytes(trained, kept_in)
    kept = updates * (4 * trained * DTYPE_BYTES[kept_in] + 2 * moments)
    held = weight_bytes(shape, dtype, policy.get("quantization"))
    read = 2 * held * phase.get("batches", updates)
    return Work(bytes=read + kept, flops=flops, dtype=dtype)


def _body_flops(shape: ModelShape, tokens: int, attended: int) -> float:
    return tokens * body_flops_per_token(shape, mean_tokens=attended / tokens)


def _lora(plain: Json) -> Lora:
    names = ("target_modules", "excluded_modules")
    return Lora(**{**plain, **{name: tuple(plain[name]) for name in names}})
