"""The run folder: one process at a time, one run in it, and where that run goes on."""

import errno
import fcntl
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from miniverl.engine import checkpoint, disk, recovery
from miniverl.engine.checkpoint import State
from miniverl.engine.events import Event, Warned
from miniverl.engine.journal import cut_back
from miniverl.engine.problem import CannotHere, Problem, Refused, WrongCall
from miniverl.engine.whole import sweep

LOGS = ("trajectories.jsonl", "metrics.jsonl", "validation.jsonl", "teacher_targets.jsonl")
EXPORTS = ("adapter", "model", "critic")

_DISK = {
    getattr(errno, name)
    for name in (
        *("EACCES", "EPERM", "EROFS"),
        *("EDQUOT", "EFBIG", "EIO", "ENOSPC", "ESTALE"),
        # Somebody removed the folder, or has a file where it should be.
        *("EEXIST", "ENAMETOOLONG", "ENOENT", "ENOTDIR"),
    )
}


@contextmanager
def written(out: Path) -> Iterator[None]:
    """What the disk refuses while a run writes into `out` is CannotHere, with the folder named."""
    try:
        yield
    except OSError as error:
        if error.errno not in _DISK or not _is_of(out, error.filename):
            raise
        raise CannotHere([_unwritable(out, error)]) from error


@contextmanager
def locked(out: Path) -> Iterator[None]:
    """Hold the run folder; made if it is not there. Raises Refused while another process holds it."""
    disk.make_folder(out)
    lock = out / "run.lock"
    with disk.opened(lock) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Refused([_held(out, lock.read_text("utf-8").strip())]) from error
        disk.truncate(lock, 0)
        disk.append(file, str(os.getpid()).encode())
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
    out: Path,
    recipe_sha256: str,
    identity: Mapping[str, str],
    warn: Callable[[Event], None],
    allow_changed: Collection[str] = (),
) -> tuple[Path, State] | None:
    """The checkpoint to go on from, with the logs cut back to it; None for a run that starts at its beginning.

    What later, unusable checkpoints and longer logs hold is moved to recovery/, never deleted. Raises what
    `checkpoint.newest` raises, and then changes nothing.
    """
    found = checkpoint.newest(out, recipe_sha256, identity, warn, allow_changed)
    sweep(out)
    if (out / "checkpoints").exists():
        sweep(out / "checkpoints")
    step = 0 if found is None else found[1].step
    for path in checkpoint.newer_than(out / "checkpoints", step):
        recovery.move(path, out / "recovery")
    for name in LOGS:
        length = 0 if found is None else found[1].logs[name].bytes
        cut = cut_back(out / name, length, out / "recovery")
        if cut:
            message = f"{cut} bytes of {name} behind step {step} were moved to recovery"
            warn(Warned(code="log_cut_back", message=message))
    return found


def move_exports_aside(out: Path, warn: Callable[[Event], None]) -> None:
    """What a run exported at its end, before its last checkpoints were lost."""
    for name in EXPORTS:
        if (out / name).exists():
            recovery.move(out / name, out / "recovery")
            message = f"{name} came of a checkpoint that is not there, and was moved to recovery"
            warn(Warned(code="export_moved", message=message))


def is_exported(out: Path) -> bool:
    """Whether the run wrote its result, which is the last thing it does."""
    return any((out / name).exists() for name in ("adapter", "model"))


def _is_of(out: Path, filename: str | None) -> bool:
    """Whether an error about that file, or about an open one, is about the run folder or one above it."""
    return filename is None or Path(filename).is_relative_to(out) or out.is_relative_to(filename)


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
