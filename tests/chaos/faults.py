"""What goes wrong in one process of a run, and how it is made to: by standing in front of engine/disk.py and others.

A fault is written as PLACE:NUMBER:WHAT.

    second:0.7:kill             SIGKILL from outside after 0.7 s; or `term`: SIGTERM
    operation:31:before         SIGKILL before the 31st operation on the disk; or `torn`: half way through it;
                                `after`: behind it; `power`: instead of it, and what was not synced is gone
    operation:31:full           from there on the disk takes half of that and nothing more (ENOSPC);
                                or `readonly`: it refuses whatever comes (EROFS); `error`: that one (EIO)
    phase:12:kill               SIGKILL at the end of the 12th phase; or `oom`: torch runs out of memory there
    optimizer_step:5:kill       between two mini-batches; or `oom`
"""

import errno
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import torch
from power import Unsynced
from torch.optim.optimizer import register_optimizer_step_post_hook

from miniverl.engine import disk
from miniverl.engine.clock import Clock

WHAT = {
    "second": ("kill", "term"),
    "operation": ("before", "torn", "after", "power", "full", "readonly", "error"),
    "phase": ("kill", "oom"),
    "optimizer_step": ("kill", "oom"),
}
OPERATIONS = (
    *("append", "copy", "make_folder", "opened", "remove", "rename"),
    *("sync", "truncate", "write", "write_tensors"),
)
_ERRORS = {"full": errno.ENOSPC, "readonly": errno.EROFS, "error": errno.EIO}
NEED_ROOM = {"append", "copy", "make_folder", "opened", "write", "write_tensors"}


@dataclass(frozen=True, slots=True)
class Fault:
    place: str
    number: float
    what: str

    def __str__(self) -> str:
        return f"{self.place}:{self.number:g}:{self.what}"

    @classmethod
    def parse(cls, text: str) -> "Fault":
        place, number, what = text.split(":")
        if what not in WHAT[place]:
            raise ValueError(f"{text}: {place} knows {', '.join(WHAT[place])}")
        return cls(place, float(number), what)


@dataclass(slots=True)
class Met:
    """What a process has come by so far: the names of its operations, how many phases, how many optimizer steps."""

    operations: list[str] = field(default_factory=list)
    phases: int = 0
    optimizer_steps: int = 0


def install(fault: Fault | None, graveyard: Path) -> Met:
    """From now on this process counts, and `fault` happens in it. `graveyard`: where a power cut finds what was removed."""
    met = Met()
    unsynced = Unsynced(graveyard) if fault is not None and fault.what == "power" else None
    for name in OPERATIONS:
        setattr(disk, name, _operation(name, getattr(disk, name), fault, met, unsynced))
    Clock.phase = _phase(Clock.phase, fault, met)  # type: ignore[method-assign]
    register_optimizer_step_post_hook(_optimizer_step(fault, met))
    return met


def _operation(
    name: str, operate: Callable[..., Any], fault: Fault | None, met: Met, unsynced: Unsynced | None
) -> Callable[..., Any]:
    def standing(*arguments: Any, **named: Any) -> Any:
        met.operations.append(name)
        number = len(met.operations)
        if fault is not None and fault.place == "operation":
            if number == fault.number:
                _happen(name, operate, fault.what, arguments, named, unsynced)
            elif number > fault.number and _stays_refused(name, fault.what):
                _refuse(fault.what, arguments[0])
        if unsynced is not None:
            return unsynced.operated(name, operate, *arguments, **named)
        done = operate(*arguments, **named)
        if fault == Fault("operation", number, "after"):
            _kill()
        return done

    return standing


def _happen(
    name: str,
    operate: Callable[..., Any],
    what: str,
    arguments: tuple[Any, ...],
    named: dict[str, Any],
    unsynced: Unsynced | None,
) -> None:
    """Returns where the operation is still to be done."""
    if what == "before":
        _kill()
    if what == "torn":
        _half(name, operate, arguments, named)
        _kill()
    if what == "power":
        assert unsynced is not None
        unsynced.lose()
        _kill()
    if what in ("error", "readonly") or (what == "full" and name in NEED_ROOM):
        if what != "readonly":
            _half(name, operate, arguments, named)
        _refuse(what, arguments[0])


def _half(
    name: str, operate: Callable[..., Any], arguments: tuple[Any, ...], named: dict[str, Any]
) -> None:
    """A part of an operation that has parts."""
    if name in ("append", "write"):
        target, content = arguments
        operate(target, content[: len(content) // 2])
    elif name in ("write_tensors", "copy"):
        operate(*arguments, **named)
        target = arguments[0 if name == "write_tensors" else 1]
        os.truncate(target, target.stat().st_size // 2)
    elif name == "remove" and arguments[0].is_dir():
        for path in sorted(arguments[0].iterdir())[1::2]:
            path.unlink()


def _stays_refused(name: str, what: str) -> bool:
    return what == "readonly" or (what == "full" and name in NEED_ROOM)


def _refuse(what: str, where: Any) -> NoReturn:
    number = _ERRORS[what]
    # An open file's error names no path, as the kernel's does not.
    raise OSError(number, os.strerror(number), *([str(where)] if isinstance(where, Path) else []))


def _phase(phase: Callable[..., Any], fault: Fault | None, met: Met) -> Callable[..., Any]:
    @contextmanager
    def standing(*arguments: Any, **named: Any) -> Iterator[Any]:
        with phase(*arguments, **named) as counted:
            yield counted
            met.phases += 1
            if _is_met(fault, "phase", met.phases):
                _end(fault)

    return standing


def _optimizer_step(fault: Fault | None, met: Met) -> Callable[..., None]:
    def hook(*_: object) -> None:
        met.optimizer_steps += 1
        if _is_met(fault, "optimizer_step", met.optimizer_steps):
            _end(fault)

    return hook


def _is_met(fault: Fault | None, place: str, number: int) -> bool:
    return fault is not None and (fault.place, fault.number) == (place, number)


def _end(fault: Fault | None) -> None:
    assert fault is not None
    if fault.what == "oom":
        raise torch.OutOfMemoryError("chaos: CUDA out of memory")
    _kill()


def _kill() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("not reached")
