"""Is a record of ours of the same work as one that was published in version 1? Field by field, since no digest is common.

Version 1 names its models by revision, and its work by a few numbers; plan and prompts it names by digests of its own
program. So what both say is compared, and what only digests could prove is told apart: data and recipe.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from miniverl.bench.version1 import version1

Json = Mapping[str, Any]

_RECIPE = (
    "interrupt_after_updates",
    "logical_batch",
    "optimizer_updates",
    "policy_loss",
    "prompt_limit",
    "prompts_available",
    "prompts_consumed",
    "response_limit",
)
_ROLES = {"student": "policy", "teacher": "teacher"}


def is_same(a: Json, b: Json) -> bool:
    """Whether one of them is of version 1, the other is not, and all that both say of their work is equal."""
    originals = [version1(a), version1(b)]
    if sum(each is not None for each in originals) != 1:
        return False
    ours, published = (a, originals[1]) if originals[0] is None else (b, originals[0])
    assert published is not None
    return dict(_of_ours(ours)) == dict(_of_version1(published))


def data(record: Json) -> str:
    """The digest that it names its training rows by: over a file in version 1, over their content since."""
    original = version1(record)
    if original is not None:
        return f"file {original['recipe']['input_parquet_sha256'][:12]}"
    return f"rows {record['recipe']['train_sha256'][:12]}"


def _of_version1(record: Json) -> Iterator[tuple[str, Any]]:
    hardware, recipe = record["hardware"], record["recipe"]
    yield "verl", record["verl"]["commit"]
    yield from _device(hardware)
    yield "estimator", recipe["estimator"]
    yield from ((name, recipe[name]) for name in _RECIPE)
    for role, model in record["models"].items():
        named = _ROLES[role]
        yield named, (model["model_id"], model["revision"], model["quantization"])
        if "lora" in model:
            lora = model["lora"]
            yield f"{named}.lora", (lora["r"], lora["alpha"], sorted(lora["target_modules"]))


def _of_ours(record: Json) -> Iterator[tuple[str, Any]]:
    recipe = record["recipe"]
    distillation = recipe["compiled"].get("distillation")
    yield "verl", record["verl"]["commit"]
    yield from _device(record["hardware"])
    yield "estimator", distillation["loss"] if distillation else recipe["estimator"]
    yield from ((name, recipe[name]) for name in _RECIPE)
    for role, model in record["models"].items():
        repository = (model["source"] or "").partition("@")[0]
        yield role, (repository, model["revision"], model.get("quantization"))
        if model.get("lora"):
            lora = model["lora"]
            yield f"{role}.lora", (lora["rank"], lora["alpha"], sorted(lora["target_modules"]))


def _device(hardware: Json) -> Iterator[tuple[str, Any]]:
    memory_gib = hardware["vram_gib"]
    is_known = isinstance(memory_gib, int | float)
    yield "gpu", (hardware["gpu"], hardware["gpu_count"])
    yield "memory", round(memory_gib) if is_known else memory_gib
