"""Whether a compiled launch fits into a device that need not be here: a GPU profile's memory, or this machine's."""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from miniverl.bench.gpu_profile import profiles
from miniverl.compiler import capacity, smaller
from miniverl.compiler.lower import Compiled
from miniverl.compiler.suggest import did_you_mean
from miniverl.engine.problem import Problem, WrongCall

_FOLDERS = ("model", "critic", "reward_model", "teacher")


def assessed(compiled: Compiled, gpu: str, given: Mapping[str, Path]) -> Compiled:
    """The compilation with `execution.capacity`; a launch that is not accepted stays as it is.

    `given` are config.json files, or folders with one, of models that are not bound. Raises WrongCall for an unknown
    profile and for what is no config.json.
    """
    memory_bytes = _memory_bytes(gpu)
    if not compiled.lowered:
        return compiled
    counted = answer(compiled, given, gpu=gpu, memory_bytes=memory_bytes)
    execution: dict[str, Any] = {**compiled.execution, "capacity": counted}
    if counted["answer"] == "does_not_fit" and execution["status"] != "not_assessed":
        execution["status"] = "does_not_fit"
    report = {**compiled.report, "execution": execution}
    return replace(compiled, execution=execution, report=report)


def answer(
    compiled: Compiled, given: Mapping[str, Path], *, gpu: str, memory_bytes: int
) -> dict[str, Any]:
    """Whether the compiled launch fits into so much memory; what `gpu` is called stands in it."""
    return capacity.assess(
        compiled.lowered, _configs(compiled, given), gpu=gpu, memory_bytes=memory_bytes
    )


def smallest_change(compiled: Compiled, memory_bytes: int) -> smaller.Fitting | None:
    """What to state on top of the compiled launch so that it fits into so much memory; None: nothing does."""
    return smaller.smallest(compiled.lowered, _configs(compiled, {}), memory_bytes=memory_bytes)


def lines(compiled: Compiled) -> Iterator[str]:
    """The answer for people: what fits, by how much, and what takes most."""
    answer = compiled.execution.get("capacity")
    if answer is None:
        return
    if answer["answer"] == "unknown" and "peak_bytes" not in answer:
        models = ", ".join(f"--model-config {role}=config.json" for role in answer["missing"])
        yield f"capacity    unknown on {answer['gpu']}: no model is bound; give {models}"
        return
    yield f"capacity    {_sentence(answer)}"
    largest = sorted(answer["parts"], key=lambda part: -part["bytes"])[:5]
    for part in largest:
        yield f"  {_gib(part['bytes']):>10}  {part['role']}: {part['part']}"
    if answer["missing"]:
        yield f"  not counted: {', '.join(answer['missing'])}, of which no config.json is known"


def _sentence(answer: Mapping[str, Any]) -> str:
    peak, memory = _gib(answer["peak_bytes"]), _gib(answer["memory_bytes"])
    held = f"{peak} in {answer['peak_phase']}, of {memory} on {answer['gpu']}"
    free = _gib(abs(answer["free_bytes"]))
    small = answer["nf4_lora"]
    smaller = f"with NF4 and LoRA {_gib(small['peak_bytes'])}"
    if answer["answer"] == "fits":
        return f"fits: {held}; {free} are left"
    if answer["answer"] == "unknown":
        return f"unknown: at least {held}"
    if answer["answer"] == "fits_with_nf4_lora":
        return f"does not fit by {free}, and fits {smaller}: {held}"
    return f"does not fit: {held}; {free} too much, and {smaller}"


def _gib(count: int) -> str:
    return f"{count / capacity.GIB:.2f} GiB"


def _memory_bytes(gpu: str) -> int:
    """Of the profile; of this machine where the profile is of no card in particular."""
    known = profiles()
    if gpu not in known:
        fix = did_you_mean(gpu, known, f"Known: {', '.join(known)}")
        raise WrongCall([_problem("--gpu", gpu, "there is no such GPU profile", fix)])
    stated = known[gpu].memory_gib
    if stated is not None:
        return int(stated * capacity.GIB)
    if known[gpu].device == "cpu":
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    fix = "Name a card whose memory is known, such as 4080"
    raise WrongCall(
        [_problem("--gpu", gpu, "this profile is of any card, whatever its memory", fix)]
    )


def _configs(compiled: Compiled, given: Mapping[str, Path]) -> dict[str, Mapping[str, Any]]:
    """config.json of every model that is bound, or given in its place."""
    bound = {
        role: path
        for role, path in compiled.paths.items()
        if path is not None and role.partition(".")[0] in _FOLDERS
    }
    return {role: _config(role, path) for role, path in {**bound, **given}.items()}


def _config(role: str, path: Path) -> Mapping[str, Any]:
    file = path / "config.json" if path.is_dir() else path
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        said = error.strerror if isinstance(error, OSError) else "it is not JSON"
        fix = "Give the config.json of the model"
        raise WrongCall([_problem(f"config.json of {role}", str(file), str(said), fix)]) from error
    return config if isinstance(config, dict) else {}


def _problem(field: str, value: str, reason: str, fix: str) -> Problem:
    return Problem(field=field, value=value, origin="command line", reason=reason, fix=fix)
