"""The run folder: one process at a time, one run in it, and where that run goes on."""

import errno
import fcntl
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from miniverl.engine import checkpoint
from miniverl.engine.checkpoint import State
from miniverl.engine.events import Event, Warned
from miniverl.engine.journal import cut_back
from miniverl.engine.problem import CannotHere, Problem, Refused, WrongCall
from miniverl.engine.whole import sweep

LOGS = ("trajectories.jsonl", "metrics.jsonl", "validation.jsonl", "teacher_targets.jsonl")
EXPORTS = ("adapter", "model", "critic")

_DISK = {
    getattr(errno, name)
    for name in ("EACCES", "EDQUOT", "EFBIG", "EIO", "ENAMETOOLONG", "ENOSPC", "EPERM", "EROFS")
}


@contextmanager
def written(out: Path) -> Iterator[None]:
    """What the disk refuses while a run writes into `out` is CannotHere, with the folder named."""
    try:
        yield
    except OSError as error:
        is_elsewhere = error.filename is not None and not Path(error.filename).is_relative_to(out)
        if error.errno not in _DISK or is_elsewhere:
            raise
        raise CannotHere([_unwritable(out, error)]) from error


@contextmanager
def locked(out: Path) -> Iterator[None]:
    """Hold the run folder; made if it is not there. Raises Refused while another process holds it."""
    out.mkdir(parents=True, exist_ok=True)
    with (out / "run.lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            raise Refused([_held(out, file.read().strip())]) from error
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def require_new(out: Path) -> None:
    """Raises WrongCall if the folder holds a run already."""
    taken = [name for name in (*LOGS, *EXPORTS, "checkpoints") if (out / name).exists()]
    if taken:
        raise WrongCall(
            [
                Problem(
                    field="out",
                    value=str(out),
                    origin="command line",
                    reason=f"holds a run already: {', '.join(taken)}",
                    fix="Resume it, or choose another folder",
                )
            ]
        )


def restart(
    out: Path, recipe_sha256: str, identity: Mapping[str, str], warn: Callable[[Event], None]
) -> tuple[Path, State] | None:
    """The checkpoint to go on from, with the logs cut back to it; None for a run that starts at its beginning.

    What later, unusable checkpoints and longer logs hold is moved to recovery/, never deleted. Raises what
    `checkpoint.newest` raises, and then changes nothing.
    """
    found = checkpoint.newest(out, recipe_sha256, identity, warn)
    sweep(out)
    if (out / "checkpoints").exists():
        sweep(out / "checkpoints")
    step = 0 if found is None else found[1].step
    for path in checkpoint.newer_than(out / "checkpoints", step):
        _move_aside(path, out / "recovery")
    for name in LOGS:
        length = 0 if found is None else found[1].logs[name].bytes
        cut = cut_back(out / name, length, out / "recovery")
        if cut:
            message = f"{cut} bytes of {name} behind step {step} were moved to recovery"
            warn(Warned(code="log_cut_back", message=message))
    return found


def is_exported(out: Path) -> bool:
    """Whether the run wrote its result, which is the last thing it does."""
    return any((out / name).exists() for name in ("adapter", "model"))


def _move_aside(path: Path, recovery: Path) -> None:
    recovery.mkdir(exist_ok=True)
    number = sum(1 for each in recovery.iterdir() if each.name.startswith(path.name))
    os.rename(path, recovery / f"{path.name}.{number}")


def _unwritable(out: Path, error: OSError) -> Problem:
    return Problem(
        field="run folder",
        value=str(out),
        origin="command line",
        reason=f"it cannot be written: {error.strerror}",
        fix="Make room or give the right to write; a resumed run goes on from its last checkpoint",
    )


def _held(out: Path, holder: str) -> Problem:
    return Problem(
        field="out",
        value=str(out),
        origin="command line",
        reason=f"process {holder or 'unknown'} is running in this folder",
        fix="Wait for it to end, or choose another folder",
    )
