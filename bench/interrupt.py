"""Ctrl-C in a run: the first lets the step end and saves it, a second ends the run now.

SIGTERM and SIGHUP count alike. While no step has begun there is nothing to finish, and the first ends it.
"""

import json
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from miniverl.bench.runner import Listener, Outcome

_HEEDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_WAITING = "Finishing this step, and saving it. Ctrl-C again stops now."


class Interrupt:
    """Counts the signals, hears the journal, and asks the worker in `folder` once."""

    def __init__(self, folder: Path, listen: Listener, write: Callable[[str], None]) -> None:
        self._folder = folder
        self._listen = listen
        self._write = write
        self._count = 0
        self._has_begun = False
        self._has_asked = False

    def note(self, number: int, frame: FrameType | None) -> None:
        """The handler of a signal."""
        self._count += 1

    def hear(self, event: Mapping[str, Any]) -> None:
        """Every event of the journal, on its way to the listener."""
        self._listen(event)
        self._has_begun |= event["event"] == "step_started"

    def outcome(self) -> Outcome | None:
        """How the launch is to be ended at once; None where it goes on, be it to the end of its step."""
        if self._count == 0:
            return None
        if self._count > 1 or not self._has_begun:
            reason = "Stopped by Ctrl-C"
            return Outcome(status="interrupted", reason_code="interrupted", reason=reason)
        if not self._has_asked:
            self._has_asked = True
            # The runner reaps its child later than this: the number is still the worker's.
            os.kill(
                json.loads((self._folder / "worker.json").read_text("utf-8"))["pid"], signal.SIGINT
            )
            self._write(_WAITING)
        return None


@contextmanager
def heard(interrupt: Interrupt) -> Iterator[None]:
    """Inside the block the signals are `interrupt`'s; those that are ignored, as nohup has it, stay so."""
    before = {number: signal.getsignal(number) for number in _HEEDED}
    heeded = {number: was for number, was in before.items() if was is not signal.SIG_IGN}
    for number in heeded:
        signal.signal(number, interrupt.note)
    try:
        yield
    finally:
        for number, was in heeded.items():
            signal.signal(number, was)
