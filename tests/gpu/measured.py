"""Whole runs on this device: straight, killed with SIGKILL and resumed, compared byte for byte, their samples kept."""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from seeded import Carried, carried, model

from miniverl.bench import environment, gpu, measure, runner, sampling, stack
from miniverl.bench.resume import compare_runs
from miniverl.bench.runner import GIB, Interruption, Launch, Limits, Outcome
from miniverl.bench.sampling import Sampling
from miniverl.compiler.whole import write_json, write_text
from miniverl.engine import recipe as recipes
from miniverl.engine.decoder import Decoder
from miniverl.engine.identity import make_deterministic
from miniverl.engine.models import load_policy
from miniverl.engine.recipe import Policy
from miniverl.engine.sample import Sampling as Drawing
from miniverl.engine.sample import generate
from miniverl.engine.trajectory import Prompt

_DTYPES = {"cpu": "float32", "cuda": "bfloat16"}
_THREADS = 2
_KILLED_AT_SHARE = 0.37  # of the step behind the last one that ended


def resume(*, carry: Path, out: Path, device: str) -> dict[str, object]:
    """Distillation of small models, 8 updates, killed in the fifth."""
    return _runs("tiny-opd-k1", carry, out, device)


def opd(*, carry: Path, out: Path, device: str) -> dict[str, object]:
    name = {"cuda": "qwen3-0.6b-opd-k1-shape", "cpu": "tiny-opd-k1"}[device]
    return _runs(name, carry, out, device)


def grpo(*, carry: Path, out: Path, device: str) -> dict[str, object]:
    name = {"cuda": "qwen3-0.6b-grpo-shape", "cpu": "tiny-grpo-nf4"}[device]
    return _runs(name, carry, out, device)


def _runs(name: str, carry: Path, out: Path, device: str) -> dict[str, object]:
    chosen = carried(name, _DTYPES[device], carry, out)
    folder = out / "runs" / f"{name}-{time.strftime('%H%M%S')}"
    machine = _machine(device)
    kill = Interruption(
        after_step=chosen.stated["interrupt_after_update"], step_share=_KILLED_AT_SHARE
    )
    launches, failed = [], None
    for ordinal, (role, run, interruption) in enumerate(
        (
            ("straight", "straight", None),
            ("interrupted", "resumed", kill),
            ("resumed", "resumed", None),
        ),
        start=1,
    ):
        seen = _launch(chosen, folder / run, role, device, interruption, machine["card"])
        launches.append(_measured(seen, ordinal, chosen))
        wanted = "killed" if role == "interrupted" else "finished"
        if seen.outcome.status != wanted:
            failed = f"{role}: {seen.outcome.status}, {seen.outcome.reason}"
            break
    check = None if failed else compare_runs(folder / "straight", folder / "resumed")
    is_exact = check is not None and check.status == "exact_match"
    kept = {
        "launches": launches,
        "artifacts": measure.artifacts(folder / "straight", folder),
        "machine": machine,
        "resume": None if check is None else asdict(check),
        "kill_delay_seconds": None if failed else _delay(launches[0], kill),
        "workload": name,
        "dtype": _DTYPES[device],
    }
    write_json(out / f"{name}.measured.json", kept)
    return {
        "passes": is_exact,
        "workload": name,
        "told": failed or _sentence(launches[0], is_exact, name, check),
    }


def _sentence(launch: Mapping[str, Any], is_exact: bool, name: str, check: object) -> str:
    steps = sorted(step["seconds"] for step in launch["steps"] if not step["is_warmup"])
    peak = launch["memory"]["peak_reserved_bytes"]
    held = f", {peak / GIB:.2f} GiB reserved" if isinstance(peak, int) else ""
    same = "equal" if is_exact else f"DIFFERENT ({check})"
    return (
        f"{name}: killed and resumed bytes {same}; steady step {steps[len(steps) // 2]:.2f} s{held}"
    )


def _delay(launch: Mapping[str, Any], kill: Interruption) -> float:
    (step,) = (each for each in launch["steps"] if each["step"] == kill.after_step)
    return round(float(kill.step_share * step["seconds"]), 6)


def _launch(
    chosen: Carried,
    folder: Path,
    role: Any,
    device: str,
    interruption: Interruption | None,
    card: int | None,
) -> Launch:
    if role != "resumed":
        folder.mkdir(parents=True)
        write_text(folder / "recipe.json", recipes.dumps(chosen.recipe))
        write_json(
            folder / "bindings.json", {name: str(path) for name, path in chosen.paths.items()}
        )
    stated = chosen.stated
    arguments = ["--device", device, "--threads", str(_THREADS)]
    if device == "cuda":
        arguments += ["--pool-bytes", str(int(stated["peak_reserved_gib"] * GIB))]
    return runner.launch(
        folder,
        role,
        arguments=[*arguments, *(["--resume"] if role == "resumed" else [])],
        environment=runner.worker_environment(_THREADS),
        limits=Limits(
            seconds=stated["device_hours"] * 3600,
            held_bytes={"peak_rss_bytes": 64 * GIB},
            disk_bytes=int(stated["disk_gib"] * GIB),
        ),
        interruption=interruption,
        sampling=Sampling(card=card),
        listen=lambda event: None,
        stopped=_never,
        # -P would leave out PYTHONPATH's scripts, not PYTHONPATH: the checkout is found by it.
    )


def _never() -> Outcome | None:
    return None


def _measured(seen: Launch, ordinal: int, chosen: Carried) -> dict[str, Any]:
    doubts = sampling.doubts(
        seen.samples,
        created_monotonic=seen.created_monotonic,
        ended_monotonic=seen.ended_monotonic,
        has_died=seen.has_sampler_died,
        every_seconds=1.0,
    )
    is_planned = seen.outcome.status in ("finished", "killed")
    failure = (
        None if is_planned else (seen.outcome.reason_code or "failed", str(seen.outcome.reason))
    )
    return measure.launch(
        seen.folder,
        role=seen.role,
        ordinal=ordinal,
        pid=seen.pid,
        created_monotonic=seen.created_monotonic,
        interpreter_monotonic=seen.interpreter_monotonic,
        ended_monotonic=seen.ended_monotonic,
        exit_code=seen.exit_code,
        failure=failure,
        warmup_steps=chosen.stated["warmup_steps"],
        peak_bytes={} if seen.peak_rss_bytes is None else {"rss": seen.peak_rss_bytes},
        samples=seen.samples,
        telemetry_reasons=doubts,
        every_seconds=1.0,
    )


def _machine(device: str) -> dict[str, Any]:
    """The record's blocks about where it ran."""
    found = gpu.detect()
    card = found.cards[0] if device == "cuda" and found.cards else None
    foreign = stack.Stack(name="foreign", lock_sha256=None, matches=None, differences=())
    variables = runner.worker_environment(_THREADS)
    return {
        "card": None if card is None else card.index,
        "hardware": environment.hardware(device, card, found),
        "environment": environment.environment(foreign, _THREADS, variables),
        "driver_answers": found.why_none is None,
    }


def speed(*, carry: Path, out: Path, device: str) -> dict[str, object]:
    """Tokens a second of our decoder and of transformers' generate, on one model, one batch after the other."""
    from transformers import AutoModelForCausalLM

    make_deterministic(device, _THREADS)
    name = {"cuda": "qwen3-0.6b-shape", "cpu": "tiny-qwen3"}[device]
    folder, dtype = model(name, carry, out), getattr(torch, _DTYPES[device])
    policy = load_policy(_plain(_DTYPES[device]), folder, adapter_seed=1, device=device)
    own = Decoder(policy, dtype)
    own.load()
    theirs = AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, attn_implementation="sdpa", local_files_only=True
    ).to(device)
    found: dict[str, object] = {"passes": True, "model": name}
    for rows in (4, 32):
        ours = _seconds(lambda rows=rows: _decode(own, rows), device)
        other = _seconds(lambda rows=rows: _generate(theirs, rows, device), device)
        tokens = rows * _NEW
        found[f"rows {rows}"] = {
            "own_tokens_per_second": tokens / ours,
            "transformers_tokens_per_second": tokens / other,
            "ratio": other / ours,
            "weight_bytes_per_second": own.num_bytes * _NEW / ours,
        }
    told = ", ".join(
        f"{facts['ratio']:.1f} times generate at {key}"  # type: ignore[index]
        for key, facts in found.items()
        if key.startswith("rows")
    )
    found["told"] = f"{name}: our decoder is {told}"
    return found


_NEW = 64


def _plain(dtype: str) -> Policy:
    return Policy(
        weights_sha256="",
        parameter_dtype=dtype,  # type: ignore[arg-type]
        compute_dtype=dtype,  # type: ignore[arg-type]
        lora=None,
        checkpoints_activations=False,
    )


def _prompt(row: int) -> Prompt:
    return Prompt(
        prompt_id=row,
        messages=(),
        tokens=tuple(range(5, 37)),
        ground_truth="",
        data_source="",
        extra={},
    )


def _decode(own: Decoder, rows: int) -> None:
    prompts = [_prompt(row) for row in range(rows)]
    drawing = Drawing(
        samples_per_prompt=1,
        max_tokens=_NEW,
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        end_tokens=(),
    )
    generate(own, prompts, drawing, seed=1, policy_version=0)


@torch.inference_mode()
def _generate(theirs: Any, rows: int, device: str) -> None:
    prompts = torch.arange(5, 37, device=device).repeat(rows, 1)
    theirs.generate(
        input_ids=prompts,
        attention_mask=torch.ones_like(prompts),
        do_sample=True,
        min_new_tokens=_NEW,
        max_new_tokens=_NEW,
    )


def _seconds(work: Callable[[], None], device: str) -> float:
    """The better of two, behind one that warms up."""
    times = []
    for _ in range(3):
        started = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return min(times[1:])
