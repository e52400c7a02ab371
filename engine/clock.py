"""The clock of a run: how long each phase of a step took, the device's work included, and the memory peaks."""

import resource
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass

import torch

from miniverl.engine.events import Event, Phase, PhaseFinished
from miniverl.engine.packed import num_packed_tokens
from miniverl.engine.trajectory import Trajectory


@dataclass(slots=True)
class Counted:
    """What a phase sets: the response tokens that it produced, scored or trained on, and in what batches."""

    tokens: int = 0
    batches: int = 0
    most_rows: int = 0
    most_tokens: int = 0

    def rows(self, num_rows: int) -> None:
        """That many were decoded at once."""
        self.most_rows = max(self.most_rows, num_rows)

    def bins(self, computed: Iterable[Sequence[Trajectory]]) -> None:
        """These were computed one after the other."""
        for members in computed:
            self.batches += 1
            self.most_rows = max(self.most_rows, len(members))
            self.most_tokens = max(self.most_tokens, num_packed_tokens(members))


class Clock:
    def __init__(self, journal: Callable[[Event], None], device: torch.device) -> None:
        self.tell = journal
        self._device = device

    @contextmanager
    def phase(self, phase: Phase, step: int, *, before: float = 0.0) -> Iterator[Counted]:
        """Time the block and tell the journal when it is over; `before` are seconds of it that went before."""
        counted, started = Counted(), time.perf_counter()
        yield counted
        if self._device.type == "cuda":
            torch.cuda.synchronize()
        seconds = before + time.perf_counter() - started
        self.tell(PhaseFinished(step=step, phase=phase, seconds=seconds, **asdict(counted)))


def peak_bytes(device: torch.device) -> dict[str, int]:
    """Peaks of this process so far: resident memory, and what CUDA's allocator used and reserved."""
    peaks = {"peak_rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
    if device.type == "cuda":
        peaks["peak_allocated"] = torch.cuda.max_memory_allocated()
        peaks["peak_reserved"] = torch.cuda.max_memory_reserved()
    return peaks
