"""Signals that ask a measurement to end: they are noted, and heeded where the launch can be ended cleanly.

Nothing is raised at a random line, so the record is written whatever comes, and however often.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from miniverl.bench.runner import Outcome

_REASONS = {
    signal.SIGINT: ("interrupted", "Stopped by Ctrl-C"),
    signal.SIGTERM: ("terminated", "Ended from outside by SIGTERM"),
    signal.SIGHUP: ("hung_up", "Its terminal was closed (SIGHUP)"),
}


class Stop:
    """Whether somebody has asked; the first signal counts, a second one changes nothing."""

    def __init__(self) -> None:
        self._number: int | None = None

    def note(self, number: int, frame: FrameType | None) -> None:
        self._number = self._number or number

    def outcome(self) -> Outcome | None:
        """How the launch ends for it; None where nobody has asked."""
        if self._number is None:
            return None
        code, reason = _REASONS[signal.Signals(self._number)]
        return Outcome(status="interrupted", reason_code=code, reason=reason)


@contextmanager
def heard() -> Iterator[Stop]:
    """Inside the block the signals are noted; those that are ignored, as nohup has it, stay so."""
    stop = Stop()
    before = {number: signal.getsignal(number) for number in _REASONS}
    heeded = {number: was for number, was in before.items() if was is not signal.SIG_IGN}
    for number in heeded:
        signal.signal(number, stop.note)
    try:
        yield stop
    finally:
        for number, was in heeded.items():
            signal.signal(number, was)
