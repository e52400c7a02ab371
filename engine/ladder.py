"""What a run does where memory does not suffice: the same work, in smaller parts, down to the smallest.

    sampling   rows decoded at once, halved                        the same bytes
    updates    activations computed again instead of kept          the same bytes
    scoring, updates    tokens of a bin, halved                    the same but for the order of sums

A try that failed leaves nothing: its exception, with the frames that hold its tensors, is gone before the next one
begins, and the allocator is emptied. There is no generator to put back (engine/seeds.py), and no optimizer step is part
of a try. Each rung is told, remembered in the checkpoints, and never climbed again. An optimizer step that does not
fit ends the run as before: it may have changed some of the weights.
"""

import gc
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, TypeVar

import torch

from miniverl.engine.events import Downshifted, Event, Phase, Warned
from miniverl.engine.models import Model
from miniverl.engine.packed import num_packed_tokens
from miniverl.engine.problem import CannotHere, Problem
from miniverl.engine.sample import MIN_ROWS
from miniverl.engine.score import bins
from miniverl.engine.trajectory import Trajectory

T = TypeVar("T")
# Of the CPU's allocator, which raises a RuntimeError (c10/core/impl/alloc_cpu.cpp).
_CPU_MESSAGE = re.compile(r"DefaultCPUAllocator: (not enough memory|can't allocate memory)")
_NO_SMALLER = "it is as small as it can be"


class Ladder:
    """How far down each phase is; `remembered` are the rungs of an earlier process of the run."""

    def __init__(
        self,
        tell: Callable[[Event], None],
        device: torch.device,
        remembered: Iterable[Downshifted] = (),
    ) -> None:
        self._tell = tell
        self._device = device
        self._release: list[Callable[[], None]] = []
        self.downshifts = list(remembered)

    def releases(self, release: Callable[[], None]) -> None:
        """Before each further try, let go what nothing needs any more."""
        self._release.append(release)

    def rows(self, phase: Phase, step: int, most: int, attempt: Callable[[int], T]) -> T:
        """What `attempt` gives for `most` rows at once, or for as many as fit. Raises CannotHere below two."""
        while True:
            size = min(most, self._reached(phase, "rows", most))
            found, failed = _tried(attempt, size)
            if failed is None:
                return found[0]
            if size <= MIN_ROWS:
                raise CannotHere([self._does_not_fit(phase, step, f"{size} rows", failed)])
            self._step_down(phase, step, "rows", size, max(MIN_ROWS, size // 2))

    def tokens(
        self,
        phase: Phase,
        step: int,
        trajectories: Sequence[Trajectory],
        most: int,
        attempt: Callable[[int], T],
        *,
        trained: Model | None = None,
    ) -> T:
        """What `attempt` gives in bins of up to `most` tokens, or of as many as fit.

        A `trained` model first keeps no activations. Raises CannotHere where the longest trajectory has a bin of its
        own and does not fit.
        """
        least = max(num_packed_tokens([each]) for each in trajectories)
        while True:
            if trained is not None and self._reached(phase, "recomputes", 0):
                trained.checkpoints_activations = True
            size = min(most, self._reached(phase, "tokens", most))
            found, failed = _tried(attempt, size)
            if failed is None:
                return found[0]
            largest = max(map(num_packed_tokens, bins(trajectories, size)))
            if trained is not None and not trained.checkpoints_activations:
                self._step_down(phase, step, "recomputes", 0, 1)
            elif largest <= least:
                raise CannotHere([self._does_not_fit(phase, step, f"{largest} tokens", failed)])
            else:
                self._step_down(phase, step, "tokens", size, max(least, largest // 2))
                self._tell(_split(phase, step))

    def _reached(self, phase: Phase, what: str, otherwise: int) -> int:
        """The lowest rung so far."""
        rungs = [each.now for each in self.downshifts if (each.phase, each.what) == (phase, what)]
        return rungs[-1] if rungs else otherwise

    def _step_down(
        self,
        phase: Phase,
        step: int,
        what: Literal["rows", "tokens", "recomputes"],
        then: int,
        now: int,
    ) -> None:
        for release in self._release:
            release()
        gc.collect()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        self.downshifts.append(Downshifted(step=step, phase=phase, what=what, then=then, now=now))
        self._tell(self.downshifts[-1])

    def _does_not_fit(self, phase: Phase, step: int, what: str, failed: str) -> Problem:
        has = ""
        if self._device.type == "cuda":
            free, total = torch.cuda.mem_get_info(self._device)
            has = f"; the device has {total / 2**30:.2f} GiB, of which {free / 2**30:.2f} are free"
        return Problem(
            field=phase,
            value=what,
            origin=f"step {step}",
            reason=f"out of memory, and {_NO_SMALLER}: {failed}{has}",
            fix="Free memory on the device or take a larger one and resume; or start a new run with a smaller model, "
            "weights of 4 bits, or shorter responses",
        )


def is_out_of_memory(error: RuntimeError) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or bool(_CPU_MESSAGE.search(str(error)))


def _tried(attempt: Callable[[int], T], size: int) -> tuple[list[T], str | None]:
    """What it gave, or why it did not fit. Behind this the exception and its frames are gone."""
    try:
        return [attempt(size)], None
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return [], str(error).splitlines()[0]


def _split(phase: Phase, step: int) -> Warned:
    message = (
        f"{phase} computes in smaller bins from step {step} on, since memory did not suffice: "
        "from there on the bytes are those of a run without it but for the order of sums"
    )
    return Warned(code="bins_split", message=message)
