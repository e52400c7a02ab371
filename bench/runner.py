"""The parent of one launch: starts the worker, follows its journal, enforces the contract, ends it.

A launch is a fresh process in a process group of its own, and a sampler beside it. Whatever happens (crash, kill,
breach, a signal), `launch` returns what it saw, and by then no process of that group is alive.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from miniverl.bench import failure, telemetry
from miniverl.bench.disk import folder_bytes, is_full
from miniverl.bench.exits import Exit
from miniverl.bench.sampling import Sample, Samples, Sampling, sampled

Role = Literal["straight", "interrupted", "resumed"]
Status = Literal["finished", "killed", "failed", "contract_exceeded", "blocked", "interrupted"]
Listener = Callable[[Mapping[str, Any]], None]

WORKER = (sys.executable, "-P", "-m", "miniverl.bench.worker")
POLL_SECONDS = 0.025
GRACE_SECONDS = 5.0  # from SIGTERM to SIGKILL after a breach
MEMORY_EVERY_SECONDS = 0.1
DISK_EVERY_SECONDS = 1.0
GIB = 1 << 30
LAST_WORDS_BYTES = 64 << 10  # more than a failure.json: with less, a worker may not have left one


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What a launch may use before the parent ends it; `held_bytes` by the name of a reading."""

    seconds: float
    held_bytes: Mapping[str, int]
    disk_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Interruption:
    """SIGKILL at the journal event that ends `after_step`, plus `step_share` (0 to 1) of its seconds."""

    after_step: int
    step_share: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """`killed` is the interruption that was asked for; `interrupted` is somebody's signal to the parent."""

    status: Status
    reason_code: str | None = None
    reason: str | None = None
    problems: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """What the parent saw of one launch. Times are CLOCK_MONOTONIC, as in the journal."""

    role: Role
    folder: Path
    pid: int
    created_monotonic: float
    interpreter_monotonic: float | None
    ended_monotonic: float
    exit_code: int  # negative: the signal that ended it
    outcome: Outcome
    events: tuple[Mapping[str, Any], ...]
    samples: tuple[Sample, ...]
    peak_rss_bytes: int | None  # the kernel's own count, which misses no peak between two samples
    has_sampler_died: bool

    @property
    def seconds(self) -> float:
        return self.ended_monotonic - self.created_monotonic


def launch(
    folder: Path,
    role: Role,
    *,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    limits: Limits,
    interruption: Interruption | None,
    sampling: Sampling,
    listen: Listener,
    stopped: Callable[[], Outcome | None],
    worker: Sequence[str] = WORKER,
) -> Launch:
    """Run the worker in `folder`, which holds recipe.json and bindings.json, until it ends.

    It is ended where `stopped` answers with a reason.
    """
    for left in ("failure.json", "worker.json"):
        (folder / left).unlink(missing_ok=True)
    command = [*worker, str(folder), *arguments, "--parent", str(os.getpid())]
    created = time.monotonic()
    told = folder / f"telemetry-{role}.jsonl"
    with (
        _process_group(command, environment, folder / "worker.log") as child,
        sampled(child.pid, told, sampling) as samples,
    ):
        watch = _Watch(folder, limits, interruption, samples, listen, stopped)
        try:
            outcome = watch.until_end(child)
        except KeyboardInterrupt:
            outcome = Outcome(
                status="interrupted", reason_code="interrupted", reason="Stopped by Ctrl-C"
            )
        os.killpg(child.pid, signal.SIGKILL)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        ended = time.monotonic()
    watch.hear()
    return Launch(
        role=role,
        folder=folder,
        pid=child.pid,
        created_monotonic=created,
        interpreter_monotonic=_interpreter_monotonic(folder),
        ended_monotonic=ended,
        exit_code=child.returncode,
        outcome=outcome or _own_end(child.returncode, folder, watch.peak_rss_bytes),
        events=tuple(watch.events),
        samples=tuple(samples.all),
        peak_rss_bytes=watch.peak_rss_bytes,
        has_sampler_died=samples.has_died,
    )


def never() -> None:
    """The `stopped` of a launch that only Ctrl-C stops."""


def worker_environment(threads: int) -> dict[str, str]:
    """The parent's environment, with what would change numbers or reach for the network fixed."""
    return os.environ | {
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "OPENBLAS_NUM_THREADS": str(threads),
        # Threads that only sleep are woken for every operation: a decoding step of few rows took up to a fifth longer.
        # Threads that spin for as long as libgomp does by itself take the core from the thread they wait for: beside
        # another program a step took 2 to 7 times as long. So they spin briefly, and then sleep.
        "GOMP_SPINCOUNT": "1000",
        "GLIBC_TUNABLES": _with_large_pages(os.environ.get("GLIBC_TUNABLES", "")),
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONHASHSEED": "0",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }


def _with_large_pages(tunables: str) -> str:
    """glibc's settings, in which its heap asks for large pages, where nothing else was set.

    With small ones an update met about a million page faults: 5 to 15 % of its CPU time.
    """
    name = "glibc.malloc.hugetlb"
    return tunables if name in tunables else ":".join(filter(None, [tunables, f"{name}=1"]))


class JournalTail:
    """The events that are appended to a journal from now on; a line counts once its end is written.

    A line that a killed process tore is not passed over: the next one moves it aside (engine/journal.py) and
    writes where it began.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = path.read_bytes().rfind(b"\n") + 1 if path.exists() else 0

    def read(self) -> Iterator[dict[str, Any]]:
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            fresh = file.read()
        whole = fresh[: fresh.rfind(b"\n") + 1]
        self._offset += len(whole)
        yield from map(json.loads, whole.splitlines())


class _Watch:
    """Hears the journal, looks at memory and disk, and decides when the launch has to end."""

    def __init__(
        self,
        folder: Path,
        limits: Limits,
        interruption: Interruption | None,
        samples: Samples,
        listen: Listener,
        stopped: Callable[[], Outcome | None],
    ) -> None:
        self.events: list[Mapping[str, Any]] = []
        self.peak_rss_bytes: int | None = None
        self._folder = folder
        self._tail = JournalTail(folder / "journal.jsonl")
        self._limits = limits
        self._interruption = interruption
        self._samples = samples
        self._listen = listen
        self._stopped = stopped
        self._kill_monotonic: float | None = None
        self._memory_due = self._disk_due = 0.0

    def until_end(self, child: subprocess.Popen[bytes]) -> Outcome | None:
        """None where the worker ended by itself."""
        started = time.monotonic()
        while not _has_exited(child):
            self.hear()
            now = time.monotonic()
            if self._kill_monotonic is not None and now >= self._kill_monotonic:
                os.killpg(child.pid, signal.SIGKILL)
                return Outcome(status="killed")
            breach = self._stopped() or self._breach(child.pid, now, started)
            if breach is not None:
                _stop(child)
                return breach
            time.sleep(self._pause_seconds(now))
        return None

    def hear(self) -> None:
        for event in self._tail.read():
            self.events.append(event)
            self._listen(event)
            wanted = self._interruption
            if wanted and event["event"] == "step_finished" and event["step"] == wanted.after_step:
                delay_seconds = wanted.step_share * event["seconds"]
                self._kill_monotonic = event["monotonic_seconds"] + delay_seconds

    def _pause_seconds(self, now: float) -> float:
        if self._kill_monotonic is None:
            return POLL_SECONDS
        return min(POLL_SECONDS, self._kill_monotonic - now)

    def _breach(self, pid: int, now: float, started: float) -> Outcome | None:
        used_seconds = now - started
        if used_seconds > self._limits.seconds:
            return _exceeded("device_time", used_seconds, self._limits.seconds, "s")
        if now >= self._memory_due:
            self._memory_due = now + MEMORY_EVERY_SECONDS
            readings = self._memory(pid)
            for name, limit in self._limits.held_bytes.items():
                if readings.get(name, 0) > limit:
                    return _exceeded("memory", readings[name] / GIB, limit / GIB, "GiB")
        if now >= self._disk_due:
            self._disk_due = now + DISK_EVERY_SECONDS
            used = folder_bytes(self._folder)
            if used > self._limits.disk_bytes:
                return _exceeded("disk", used / GIB, self._limits.disk_bytes / GIB, "GiB")
        return None

    def _memory(self, pid: int) -> Mapping[str, float]:
        """What the kernel counts, by its own names, and what the sampler saw last."""
        held = telemetry.peak_rss_bytes(pid)
        self.peak_rss_bytes = held or self.peak_rss_bytes
        self._samples.read()
        return {**self._samples.latest, "peak_rss_bytes": held or 0}


def _exceeded(what: str, used: float, limit: float, unit: str) -> Outcome:
    return Outcome(
        status="contract_exceeded",
        reason_code=f"{what}_exceeded",
        reason=f"The launch used {used:.3f} {unit} of {what.replace('_', ' ')}; "
        f"the contract allows {limit:.3f} {unit}",
    )


def _own_end(exit_code: int, folder: Path, peak_rss_bytes: int | None) -> Outcome:
    """Why a worker that nobody stopped is gone."""
    if exit_code == 0:
        return Outcome(status="finished")
    if exit_code == Exit.INTERRUPTED:
        reason = "Asked to stop, it did so between two steps"
        return Outcome(status="interrupted", reason_code="interrupted", reason=reason)
    told = failure.read(folder)
    if told is not None:
        return Outcome(
            status="failed", reason_code=told.code, reason=told.reason, problems=told.problems
        )
    if is_full(folder, LAST_WORDS_BYTES):
        reason = f"The disk of {folder} is full"
        return Outcome(status="failed", reason_code="disk_full", reason=reason)
    if exit_code == -signal.SIGKILL:
        held_gib = (peak_rss_bytes or 0) / GIB
        return Outcome(
            status="failed",
            reason_code="killed_from_outside",
            reason="SIGKILL that we did not send: most often it is the kernel, out of memory; "
            f"the process held {held_gib:.2f} GiB",
        )
    how = f"exit {exit_code}" if exit_code > 0 else signal.Signals(-exit_code).name
    return Outcome(
        status="failed",
        reason_code="crashed",
        reason=f"The worker ended with {how}; see worker.log",
    )


def _interpreter_monotonic(folder: Path) -> float | None:
    stamp = folder / "worker.json"
    if not stamp.exists():
        return None
    seconds: float = json.loads(stamp.read_text("utf-8"))["interpreter_monotonic"]
    return seconds


@contextmanager
def _process_group(
    command: Sequence[str], environment: Mapping[str, str], log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """The command in a process group of its own, of which nothing is left when the block ends."""
    with log.open("ab") as output:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            process_group=0,
        )
    try:
        yield child
    finally:
        # The leader is not reaped before this: its group id cannot have gone to somebody else.
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def _has_exited(child: subprocess.Popen[bytes]) -> bool:
    """Without reaping it, unlike `poll`."""
    return os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None


def _stop(child: subprocess.Popen[bytes]) -> None:
    """SIGTERM, and a grace for what it has to finish; the end of the block kills what is left."""
    os.killpg(child.pid, signal.SIGTERM)
    deadline = time.monotonic() + GRACE_SECONDS
    while time.monotonic() < deadline and not _has_exited(child):
        time.sleep(POLL_SECONDS)
