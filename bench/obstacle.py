"""What keeps a workload from being launched here: the card, the stack, too little disk, too little memory."""

import shutil
from pathlib import Path

from miniverl.bench import capacity, environment, gpu, stack
from miniverl.bench.facts import Blocked
from miniverl.bench.gpu import Chosen, Found
from miniverl.bench.gpu_profile import GIB, profiles
from miniverl.bench.nvml import Status
from miniverl.bench.workload import Contract
from miniverl.compiler.capacity import PROCESS_BYTES
from miniverl.compiler.lower import Compiled
from miniverl.engine.problem import CannotHere, Problem


def device(name: str | None, as_is: bool, found: Found) -> tuple[Chosen, Blocked | None]:
    """The device that was asked for; where it is not here, its profile and why. Raises WrongCall as `gpu.choose`."""
    try:
        return gpu.choose(name, as_is, found), None
    except CannotHere as error:
        assert name is not None, "without a name, the processor will do"
        code = "no_cuda_in_torch" if found.cards and not found.torch_has_cuda else "no_such_card"
        profile = profiles()[name]
        chosen = Chosen(profile=profile, card=None, is_official=True, note=None)
        return chosen, Blocked(code=code, problems=tuple(error.problems))


def of_stack(running: stack.Stack) -> Blocked | None:
    """Where it is not the locked one."""
    try:
        stack.require(running)
    except CannotHere as error:
        return Blocked(code="stack_differs", problems=tuple(error.problems))
    return None


def of_driver(running: stack.Stack, chosen: Chosen, found: Found) -> Blocked | None:
    """Where driver or stack are too old for one another, or for the card."""
    if chosen.card is None:
        return None
    problems = stack.card_problems(running.name, found.driver, chosen.profile)
    if not problems:
        return None
    is_stack = problems[0].field == "stack"
    code = "stack_too_old" if is_stack else "driver_too_old"
    return Blocked(code=code, problems=tuple(problems))


def of_room(compiled: Compiled, chosen: Chosen, contract: Contract, out: Path) -> Blocked | None:
    """What is too small here; None where nothing is known to be."""
    return _disk(contract, out) or _memory(compiled, chosen)


def _disk(contract: Contract, out: Path) -> Blocked | None:
    there = next(path for path in (out, *out.absolute().parents) if path.exists())
    free_gib = shutil.disk_usage(there).free / GIB
    if free_gib >= contract.disk_gib:
        return None
    problem = Problem(
        field="disk",
        value=f"{free_gib:.1f} GiB",
        origin=str(out),
        reason=f"A launch may write {contract.disk_gib:g} GiB, and {free_gib:.1f} GiB are free",
        fix="Free some, or choose another disk with --out",
    )
    return Blocked(code="no_disk", problems=(problem,))


def _memory(compiled: Compiled, chosen: Chosen) -> Blocked | None:
    """By the count of compiler/capacity.py; of a known card, over what its profile leaves to a launch."""
    card, limits = chosen.card, chosen.profile.limits
    memory_bytes = environment.memory_bytes() if card is None else card.memory_bytes
    if isinstance(memory_bytes, Status):
        return None
    if card is not None and limits is not None:
        memory_bytes = min(memory_bytes, int(limits.reserved_gib * GIB) + PROCESS_BYTES)
    answer = capacity.answer(compiled, {}, gpu=chosen.profile.name, memory_bytes=memory_bytes)
    if answer["answer"] not in ("does_not_fit", "fits_with_nf4_lora"):
        return None
    needed, there = answer["peak_bytes"] / GIB, memory_bytes / GIB
    problem = Problem(
        field="memory",
        value=f"{there:.1f} GiB",
        origin=chosen.profile.name if card is None else card.name,
        reason=f"The {answer['peak_phase']} phase takes {needed:.1f} GiB, and {there:.1f} GiB are there",
        fix=_smaller(compiled, memory_bytes),
    )
    return Blocked(code="does_not_fit", problems=(problem,))


def _smaller(compiled: Compiled, memory_bytes: int) -> str:
    fitting = capacity.smallest_change(compiled, memory_bytes)
    if fitting is None:
        return "No override makes it fit: choose a smaller workload, or a machine with more memory"
    stated, peak = " ".join(fitting.stated), fitting.peak_bytes / GIB
    return f"With {stated} it takes {peak:.1f} GiB: state that in a workload of yours that extends this one"
