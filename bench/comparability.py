"""Which records may be compared, and what then is the difference that is measured.

The key must be equal: the same work on the same device. The treatment may differ: the software under test.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

import rfc8785

from miniverl.bench.version1 import version1

Json = Mapping[str, Any]


def comparability(record: Json) -> dict[str, Any]:
    """The derived block of a record; one of version 1, or migrated from it, has the same from what it published."""
    original = version1(record)
    if original is None:
        key, treatment = _key(record), _treatment(record)
    else:
        key, treatment = _key_v1(original), _treatment_v1(original)
    return {"key": key, "key_sha256": sha256_of(key), "treatment": treatment}


def sha256_of(value: Any) -> str:
    """sha256 over the RFC 8785 bytes."""
    return hashlib.sha256(rfc8785.dumps(value)).hexdigest()


def _key(record: Json) -> dict[str, Any]:
    hardware, workload, compiled = (
        record["hardware"],
        record["workload"],
        record["recipe"]["compiled"],
    )
    is_gpu = hardware["device"] == "cuda"
    memory_gib = hardware["vram_gib"] if is_gpu else hardware["memory_gib"]
    return {
        "workload": workload["name"],
        "workload_version_sha256": workload["version_sha256"],
        "recipe_sha256": sha256_of(compiled),
        "inputs": {each["pin"]: each["sha256"] for each in record["inputs"]},
        "device": hardware["device"],
        "device_model": (hardware["gpu"] if is_gpu else None) or hardware["cpu_model"],
        "device_count": hardware["gpu_count"] if is_gpu else hardware["cpu_count"],
        "device_memory_gib": memory_gib if isinstance(memory_gib, dict) else round(memory_gib),
        "threads": record["environment"]["threads"],
        "precision": {
            "parameters": compiled["policy"]["parameter_dtype"],
            "compute": compiled["policy"]["compute_dtype"],
            "rollout": compiled["rollout"]["dtype"],
        },
        "schedule": {
            name: workload[name]
            for name in ("warmup_steps", "interrupt_after_update", "checks_resume")
        },
    }


def _treatment(record: Json) -> dict[str, str | None]:
    """Flat, so that a differing field has one name; what says another field again is left out."""
    hardware, environment = record["hardware"], record["environment"]
    container = environment["container"]
    packages = {n: version for n, version in environment["packages"].items() if n != "miniverl"}
    return {
        "driver": hardware["driver"],
        "cuda_runtime": hardware["cuda_runtime"],
        "os": environment["os"],
        "kernel": environment["kernel"],
        "python": environment["python"],
        "container": container and (container["digest"] or container["image"]),
        "code": record["workload_driver_sha256"],
        **{f"packages.{name}": version for name, version in packages.items()},
        **{f"env.{name}": value for name, value in environment["env"].items()},
    }


def _key_v1(record: Json) -> dict[str, Any]:
    """Version 1 states no workload version: the compiled plan and the inputs stand for it.

    A model is known by its revision, so its input is the digest of that.
    """
    hardware, models, recipe = record["hardware"], record["models"], record["recipe"]
    return {
        "workload": record["kind"],
        "recipe_sha256": recipe["compiled_plan_sha256"],
        "inputs": {
            "train": recipe["input_parquet_sha256"],
            **{model["model_id"]: sha256_of(model["revision"]) for model in models.values()},
        },
        "device": "cuda",
        "device_model": hardware["gpu"],
        "device_count": hardware["gpu_count"],
        "device_memory_gib": round(hardware["vram_gib"]),
        "precision": {
            f"{role}.{name}": str(model[name])
            for role, model in models.items()
            for name in ("dtype", "quantization", "attn_implementation")
        },
        "schedule": {
            "checks_resume": True,
            "interrupt_after_update": recipe["interrupt_after_updates"],
        },
    }


def _treatment_v1(record: Json) -> dict[str, str | None]:
    hardware = record["hardware"]
    return {
        "driver": hardware["driver"],
        "cuda_runtime": hardware["cuda_runtime"],
        "code": record["workload_driver_sha256"],
        **{
            f"packages.{name}": hardware[name]
            for name in ("bitsandbytes", "peft", "torch", "transformers")
        },
    }
