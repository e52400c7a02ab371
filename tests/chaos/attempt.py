"""A process of a run, as its parent sees it: forked from one that has imported everything, or a fresh interpreter."""

import os
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

from child import CANNOT_HERE, DONE, OUT_OF_MEMORY, go_on
from faults import Fault

_POLL_SECONDS = 0.002
_CHILD = Path(__file__).with_name("child.py")
# How a process may end that its fault has met; any may also come to the run's end before.
_ENDS = {
    **dict.fromkeys(("kill", "before", "torn", "after", "power"), -signal.SIGKILL),
    "term": -signal.SIGTERM,
    **dict.fromkeys(("full", "readonly", "error"), CANNOT_HERE),
    "oom": OUT_OF_MEMORY,
}


class Unexpected(Exception):
    """A process ended as none may."""


def attempt(folder: Path, fault: Fault | None, *, is_fresh: bool) -> tuple[bool, float]:
    """Whether the run came to its end, and the seconds that this took."""
    started = time.monotonic()
    log = folder.with_name(f"{folder.name}.log")
    process = _fresh(folder, fault, log) if is_fresh else _forked(folder, fault, log)
    if fault is not None and fault.place == "second":
        status = _signalled(process, started + fault.number, _ENDS[fault.what])
    else:
        status = os.waitpid(process, 0)[1]
    end = os.waitstatus_to_exitcode(status)
    if end == DONE:
        return True, time.monotonic() - started
    if fault is None or end != _ENDS[fault.what]:
        raise Unexpected(f"{fault}: the process ended with {end}; {_last_line(log)}")
    return False, time.monotonic() - started


def _forked(folder: Path, fault: Fault | None, log: Path) -> int:
    process = os.fork()
    if process:
        return process
    try:
        with log.open("ab") as file:
            os.dup2(file.fileno(), 2)
        os._exit(go_on(folder, fault))
    finally:  # a crash: told as an interpreter tells it, and no more of the parent runs here
        traceback.print_exc()
        os._exit(1)


def _fresh(folder: Path, fault: Fault | None, log: Path) -> int:
    command = [sys.executable, str(_CHILD), str(folder), *([str(fault)] if fault else [])]
    with log.open("ab") as file:
        return subprocess.Popen(command, stderr=file).pid


def _signalled(process: int, at: float, end: int) -> int:
    """The wait status of a process that gets a signal at that time of CLOCK_MONOTONIC, unless it ended before."""
    while time.monotonic() < at:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return status
        time.sleep(_POLL_SECONDS)
    os.kill(process, -end)
    return os.waitpid(process, 0)[1]


def _last_line(log: Path) -> str:
    lines = log.read_text("utf-8").strip().splitlines()
    return lines[-1] if lines else "it said nothing"
