"""A record of version 1 in the shape of version 2: one function of its bytes, so that anyone can repeat it.

Nothing is invented. What version 1 says stands under its name of version 2; what it does not say is not_measured,
null or absent, as the schema has it for a record with `migrated_from`. The original stands in there as text.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

from miniverl.bench.comparability import comparability
from miniverl.bench.launch_values import COLD_START_PARTS
from miniverl.bench.measure import NOT_MEASURED
from miniverl.bench.record import KIND, seal
from miniverl.engine.strict import strict_json

Json = Mapping[str, Any]

_PACKAGES = ("bitsandbytes", "peft", "torch", "transformers")
_UNSAID_MEASUREMENTS = (
    "mean_rss_gib",
    "peak_device_gib",
    "peak_process_gib",
    "peak_rss_gib",
    "response_tokens",
    "steady_state_drift",
    "steady_steps",
)


_SAME = (
    "measured_at",
    "miniverl_version",
    "profile",
    "profile_identity",
    "scientific_scope",
    "source_commit",
    "status",
    "verl",
    "workload_driver_sha256",
)
_NOTE = {
    "code": "migrated",
    "severity": "info",
    "message": "Migrated from schema version 1: the medians of one launch, without samples. Descriptive only.",
}


def migrated(text: str) -> dict[str, Any]:
    """The record of version 2 for the bytes of a valid one of version 1."""
    original: Json = strict_json(text)
    known = {
        "schema_version": 2,
        "kind": KIND,
        "ext": {},
        "migrated_from": {
            "schema_version": 1,
            "sha256": hashlib.sha256(text.encode()).hexdigest(),
            "text": text,
        },
        **{name: original[name] for name in _SAME},
        "reason": None,
        "reason_code": None,
        "source_dirty": None,
        "workload": _workload(original),
        "models": {role: _model(model) for role, model in original["models"].items()},
        "inputs": [_train(original["recipe"])],
        "recipe": _recipe(original["recipe"]),
        "hardware": _hardware(original["hardware"]),
        "environment": _environment(original["hardware"]),
        "comparability": comparability(original),
        "launches": [],
        "measurements": _measurements(original["measurements"]),
        "resource_contract": _contract(original["resource_contract"]),
        "resume": _resume(original["resume"]),
        "determinism": dict.fromkeys(
            ("same_process", "new_process", "batch_invariant"), "not_measured"
        ),
        "artifacts": _artifacts(original),
        "findings": [_NOTE],
    }
    return seal(known)


def _workload(original: Json) -> dict[str, Any]:
    return {
        "name": original["kind"],
        "launches": 1,
        "checks_resume": True,
        "interrupt_after_update": original["recipe"]["interrupt_after_updates"],
    }


def _model(model: Json) -> dict[str, Any]:
    said = {
        "pin": None,
        "source": model["model_id"],
        "revision": model["revision"],
        "licence": None,
        "quantization": model["quantization"],
    }
    return said | ({"lora": model["lora"]} if "lora" in model else {})


def _train(recipe: Json) -> dict[str, Any]:
    return {
        "pin": "train",
        "kind": "data",
        "sha256": recipe["input_parquet_sha256"],
        "digest_of": "file",
        "pin_state": "bound",
        "bytes": NOT_MEASURED,
        "rows": NOT_MEASURED,
        "licence": None,
        "source": None,
    }


def _recipe(recipe: Json) -> dict[str, Any]:
    same = (
        "estimator",
        "interrupt_after_updates",
        "logical_batch",
        "optimizer_updates",
        "policy_loss",
        "prompt_limit",
        "prompts_available",
        "prompts_consumed",
        "response_limit",
    )
    return {name: recipe[name] for name in same} | {
        "num_steps": NOT_MEASURED,
        "report_sha256": None,
        "source_config_sha256": None,
    }


def _hardware(hardware: Json) -> dict[str, Any]:
    same = ("cuda_runtime", "driver", "gpu", "gpu_count", "vram_gib")
    return {name: hardware[name] for name in same} | {
        "device": "cuda",
        "memory_gib": NOT_MEASURED,
    }


def _environment(hardware: Json) -> dict[str, Any]:
    return {
        "packages": {name: hardware[name] for name in _PACKAGES},
        "stack": None,
        "lock_sha256": None,
        "stack_matches_lock": None,
        "container": None,
    }


def _measurements(measured: Json) -> dict[str, Any]:
    same = (
        "adapter_bytes",
        "checkpoint_bytes",
        "cold_startup_seconds",
        "distinct_prompts_consumed",
        "peak_allocated_gib",
        "peak_reserved_gib",
        "prompts_consumed",
        "steady_state_median_seconds",
        "steady_state_median_throughput",
        "time_to_first_rollout_seconds",
        "time_to_first_teacher_targets_seconds",
        "time_to_first_update_seconds",
        "total_run_bytes",
    )
    return {
        **{name: measured[name] for name in same},
        **dict.fromkeys(_UNSAID_MEASUREMENTS, NOT_MEASURED),
        "cold_start": dict.fromkeys(COLD_START_PARTS, NOT_MEASURED),
        "training_metrics": {},
        "validation_metrics": {},
        "launches": [],
    }


def _contract(contract: Json) -> dict[str, Any]:
    """The hours of all launches together are within the limit, so those of each are."""
    same = ("gpu_hour_limit", "peak_reserved_limit_gib", "peak_reserved_within_limit")
    seconds = contract["total_gpu_workload_seconds"]
    unsaid = ("disk_limit_gib", "disk_within_limit", "peak_rss_limit_gib", "peak_rss_within_limit")
    return {
        **{name: contract[name] for name in same},
        **dict.fromkeys(unsaid, NOT_MEASURED),
        "device_hour_limit": contract["gpu_hour_limit"],
        "device_hours_within_limit": True,
        "total_device_seconds": seconds,
        "total_gpu_workload_seconds": seconds,
    }


def _resume(resume: Json) -> dict[str, Any]:
    return {
        **resume,
        "reason": None,
        "differing_files": [],
        "first_difference": None,
        "kill_delay_seconds": NOT_MEASURED,
    }


def _artifacts(original: Json) -> dict[str, Any]:
    total = original["measurements"]["total_run_bytes"]
    return {**original["artifacts"], "files": {}, "total_run_bytes": total}
