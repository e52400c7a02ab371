"""The parent's side of telemetry: starts the sampler of a launch, reads what it writes, and judges the samples."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from miniverl.bench import telemetry
from miniverl.bench.nvml import Status

SAMPLER = (sys.executable, "-P", "-m", "miniverl.bench.sampler")
# Three samples in a row are missing: something was held up, and peaks may have passed unseen.
LONGEST_GAP_SAMPLES = 4
SETTLING_SECONDS = 3.0  # a sampler starts after its worker, and hears of the end after it
FEWEST_SAMPLES = 3  # of which a mean or a peak says anything

_LEAVE_SECONDS = 2.0  # for a sampler that was asked to

Sample = Mapping[str, Any]  # monotonic_seconds, and readings: each a number or a status


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """What is sampled, and how often. `card` is the driver's number of the one that is used; None: the CPU is."""

    card: int | None
    every_seconds: float = 1.0


class Samples:
    """What a sampler has written so far."""

    def __init__(self, path: Path) -> None:
        self.all: list[Sample] = []
        self.has_died = False
        self._path = path
        self._offset = 0

    @property
    def latest(self) -> Mapping[str, float]:
        """The numbers of the last sample."""
        return numbers(self.all[-1]) if self.all else {}

    def read(self) -> None:
        """Take in the lines that have been finished since."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            fresh = file.read()
        whole = fresh[: fresh.rfind(b"\n") + 1]
        self._offset += len(whole)
        self.all += map(json.loads, whole.splitlines())


@contextmanager
def sampled(pid: int, path: Path, how: Sampling) -> Iterator[Samples]:
    """The samples of the process tree below `pid`, written to `path` by a process of their own."""
    path.unlink(missing_ok=True)
    samples = Samples(path)
    command = [*SAMPLER, "--pid", str(pid), "--out", str(path), "--every", str(how.every_seconds)]
    command += [] if how.card is None else ["--card", str(how.card)]
    with path.with_suffix(".log").open("wb") as log:
        sampler = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=0
        )
    try:
        yield samples
    finally:
        samples.has_died = _ended(sampler) not in (0, -signal.SIGTERM)
        samples.read()


def _ended(sampler: subprocess.Popen[bytes]) -> int:
    """Ask it to leave, and how it left: on its own if the worker was gone before."""
    sampler.terminate()
    try:
        return sampler.wait(_LEAVE_SECONDS)
    except subprocess.TimeoutExpired:  # the driver's library hangs
        sampler.kill()
        return sampler.wait()


def numbers(sample: Sample) -> dict[str, float]:
    """The readings that are numbers, and the time."""
    return {name: value for name, value in sample.items() if not isinstance(value, str)}


def doubts(
    samples: Sequence[Sample],
    *,
    created_monotonic: float,
    ended_monotonic: float,
    has_died: bool,
    every_seconds: float,
) -> list[str]:
    """Why no conclusions may be drawn from the samples; empty where they may.

    A gap is judged by how often a sample was due.
    """
    if not samples:
        return []  # then nothing was measured, which the record says
    times = [one["monotonic_seconds"] for one in samples]
    within = max((later - earlier for earlier, later in pairwise(times)), default=0.0)
    at_the_ends = max(times[0] - created_monotonic, ended_monotonic - times[-1])
    found = {
        "gap": within > LONGEST_GAP_SAMPLES * every_seconds
        or at_the_ends > SETTLING_SECONDS + every_seconds,
        "too_few": len(samples) < FEWEST_SAMPLES,
        "device_lost": any(Status.DEVICE_LOST in one.values() for one in samples),
        "foreign_process": any(one > 0 for one in _series(samples, "foreign_processes")),
        "throttled": _is_throttled(samples),
        "sampler_died": has_died,
    }
    return [reason for reason, holds in found.items() if holds]


def _is_throttled(samples: Sequence[Sample]) -> bool:
    reasons = _series(samples, "clock_event_reasons")
    counts = _series(samples, "cpu_throttles")
    was_slowed = any(telemetry.slowed(int(one)) for one in reasons)
    return was_slowed or (len(counts) > 0 and counts[-1] > counts[0])


def _series(samples: Sequence[Sample], name: str) -> list[float]:
    """The numbers of that reading, in order."""
    return [one[name] for one in samples if isinstance(one.get(name), int | float)]
