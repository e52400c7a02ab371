"""The runner against real processes: a small script speaks the worker's side of the protocol."""

import json
import os
import signal
import sys
import textwrap
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from miniverl.bench import runner, telemetry
from miniverl.bench.sampling import Sampling
from miniverl.engine.events import RunFinished
from miniverl.engine.journal import Journal

pytestmark = pytest.mark.slow

PREAMBLE = """
import json, os, pathlib, signal, subprocess, sys, time
folder = pathlib.Path(sys.argv[1])

def say(event, **fields):
    line = {"event": event, "pid": os.getpid(), "monotonic_seconds": time.monotonic(), **fields}
    with open(folder / "journal.jsonl", "a") as journal:
        journal.write(json.dumps(line) + "\\n")

def step(number, seconds=0.2):
    say("step_finished", step=number, seconds=seconds, metrics={}, memory={})

def sleep_for_ever():
    while True:
        time.sleep(1)
"""
ROOMY = runner.Limits(seconds=60.0, held_bytes={}, disk_bytes=1 << 40)
Run = Callable[..., runner.Launch]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Launches a worker whose body is the given Python text."""

    def launched(
        body: str,
        *,
        limits: runner.Limits = ROOMY,
        interruption: runner.Interruption | None = None,
        listen: runner.Listener = lambda event: None,
        stopped: Callable[[], runner.Outcome | None] = runner.never,
    ) -> runner.Launch:
        folder = tmp_path / "run"
        folder.mkdir(exist_ok=True)
        script = tmp_path / "child.py"
        script.write_text(PREAMBLE + textwrap.dedent(body))
        return runner.launch(
            folder,
            "straight",
            arguments=(),
            environment=os.environ,
            limits=limits,
            interruption=interruption,
            sampling=Sampling(card=None, every_seconds=0.1),
            listen=listen,
            stopped=stopped,
            worker=(sys.executable, "-I", str(script)),
        )

    return launched


def test_a_run_that_ends_by_itself_is_finished_and_every_event_was_heard_once(run: Run) -> None:
    heard: list[Mapping[str, Any]] = []
    seen = run("say('imports_done'); step(1); step(2)", listen=heard.append)

    assert seen.outcome == runner.Outcome(status="finished")
    assert seen.exit_code == 0
    assert [event["event"] for event in heard] == ["imports_done", "step_finished", "step_finished"]
    assert list(seen.events) == heard
    assert seen.created_monotonic < heard[0]["monotonic_seconds"] < seen.ended_monotonic


def test_the_kill_comes_its_share_of_a_step_after_the_named_step(run: Run) -> None:
    seen = run(
        "step(1); step(2, seconds=0.4); sleep_for_ever()",
        interruption=runner.Interruption(after_step=2, step_share=0.5),
    )

    assert seen.outcome == runner.Outcome(status="killed")
    assert seen.exit_code == -signal.SIGKILL
    assert seen.ended_monotonic >= seen.events[1]["monotonic_seconds"] + 0.5 * 0.4


def test_a_run_that_ends_before_its_kill_is_finished(run: Run) -> None:
    seen = run("step(1)", interruption=runner.Interruption(after_step=2, step_share=0.5))

    assert seen.outcome.status == "finished"


def test_no_process_of_the_group_outlives_the_launch(run: Run, tmp_path: Path) -> None:
    run("child = subprocess.Popen(['sleep', '600']); (folder / 'pid').write_text(str(child.pid))")

    grandchild = int((tmp_path / "run" / "pid").read_text())
    deadline = time.monotonic() + 10
    while telemetry.rss_bytes(grandchild) is not None:
        assert time.monotonic() < deadline, "the worker's own child is still alive"
        time.sleep(0.01)


def test_over_time_a_worker_is_asked_to_stop_and_the_reason_names_the_limit(
    run: Run, tmp_path: Path
) -> None:
    body = """
    def leave(number, frame):
        (folder / "asked").touch()
        sys.exit(1)
    signal.signal(signal.SIGTERM, leave)
    sleep_for_ever()
    """
    limits = runner.Limits(seconds=0.5, held_bytes={}, disk_bytes=1 << 40)
    outcome = run(body, limits=limits).outcome

    assert (outcome.status, outcome.reason_code) == ("contract_exceeded", "device_time_exceeded")
    assert outcome.reason is not None
    assert "0.500 s" in outcome.reason
    assert (tmp_path / "run" / "asked").exists()


def test_a_worker_deaf_to_the_request_is_killed_after_the_grace(run: Run) -> None:
    body = "signal.signal(signal.SIGTERM, signal.SIG_IGN); sleep_for_ever()"
    limits = runner.Limits(seconds=0.5, held_bytes={}, disk_bytes=1 << 40)
    seen = run(body, limits=limits)

    assert seen.outcome.status == "contract_exceeded"
    assert seen.exit_code == -signal.SIGKILL
    assert seen.seconds >= runner.GRACE_SECONDS


def test_over_memory_the_launch_ends_and_its_samples_are_kept(run: Run) -> None:
    held = {"peak_rss_bytes": 100 << 20}
    limits = runner.Limits(seconds=60.0, held_bytes=held, disk_bytes=1 << 40)
    body = "time.sleep(1); held = bytearray(os.urandom(1 << 20)) * 200; sleep_for_ever()"
    seen = run(body, limits=limits)

    assert seen.outcome.reason_code == "memory_exceeded"
    assert seen.peak_rss_bytes is not None
    assert seen.peak_rss_bytes > 100 << 20
    assert min(sample["rss_bytes"] for sample in seen.samples) < 100 << 20
    assert all(
        seen.created_monotonic < sample["monotonic_seconds"] < seen.ended_monotonic
        for sample in seen.samples
    )


def test_over_disk_the_launch_ends(run: Run) -> None:
    limits = runner.Limits(seconds=60.0, held_bytes={}, disk_bytes=1 << 20)
    seen = run("(folder / 'big').write_bytes(bytes(2 << 20)); sleep_for_ever()", limits=limits)

    assert seen.outcome.reason_code == "disk_exceeded"


def test_a_crash_without_a_word_is_failed_and_names_the_exit(run: Run) -> None:
    outcome = run("step(1); sys.exit(7)").outcome

    assert (outcome.status, outcome.reason_code) == ("failed", "crashed")
    assert "exit 7" in str(outcome.reason)


def test_a_kill_that_is_not_ours_is_said_to_come_from_outside(run: Run) -> None:
    outcome = run("os.kill(os.getpid(), signal.SIGKILL)").outcome

    assert (outcome.status, outcome.reason_code) == ("failed", "killed_from_outside")


def test_a_worker_that_ends_without_a_word_on_a_full_disk_is_told_of_the_disk(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "LAST_WORDS_BYTES", 1 << 62)  # no disk has so much room
    outcome = run("sys.exit(1)").outcome

    assert (outcome.status, outcome.reason_code) == ("failed", "disk_full")
    assert "is full" in str(outcome.reason)


def test_problems_that_the_worker_left_reach_the_outcome(run: Run) -> None:
    problem = {"field": "data", "value": 3, "origin": "here", "reason": "no rows", "fix": "add"}
    failure = {"kind": "CannotHere", "problems": [problem], "traceback": None}
    body = f"(folder / 'failure.json').write_text({json.dumps(json.dumps(failure))}); sys.exit(3)"
    outcome = run(body).outcome

    assert (outcome.status, outcome.reason_code) == ("failed", "cannot_here")
    assert outcome.problems == (problem,)
    assert outcome.reason == "data = 3: no rows"


def test_a_failure_of_an_earlier_launch_is_not_taken_for_this_one(run: Run, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "failure.json").write_text("{}")

    assert run("sys.exit(7)").outcome.reason_code == "crashed"


def test_events_are_heard_behind_a_line_that_an_earlier_launch_tore(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text('{"event": "run_started"}\n{"event": "step_sta')
    tail = runner.JournalTail(path)
    assert list(tail.read()) == []

    Journal(path, tmp_path / "recovery", lambda event: None)(RunFinished(steps=8))

    assert [(event["event"], event["steps"]) for event in tail.read()] == [("run_finished", 8)]


def test_a_line_in_the_making_counts_once_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    tail = runner.JournalTail(path)
    assert list(tail.read()) == []
    path.write_text('{"event": "one"}\n{"event"')
    assert list(tail.read()) == [{"event": "one"}]
    with path.open("a") as journal:
        journal.write(': "two"}\n')
    assert list(tail.read()) == [{"event": "two"}]


def test_ctrl_c_ends_the_worker_and_is_told(run: Run) -> None:
    def press(event: Mapping[str, Any]) -> None:
        signal.raise_signal(signal.SIGINT)

    seen = run("step(1); sleep_for_ever()", listen=press)

    assert seen.outcome.status == "interrupted"
    assert seen.exit_code == -signal.SIGKILL
    assert telemetry.rss_bytes(seen.pid) is None


def test_a_launch_that_somebody_stops_is_asked_first_and_says_for_whom(
    run: Run, tmp_path: Path
) -> None:
    wanted = runner.Outcome(status="interrupted", reason_code="terminated", reason="by a test")
    body = """
    def leave(number, frame):
        (folder / "asked").touch()
        sys.exit(1)
    signal.signal(signal.SIGTERM, leave)
    (folder / "ready").touch()
    sleep_for_ever()
    """
    ready = tmp_path / "run" / "ready"
    seen = run(body, stopped=lambda: wanted if ready.exists() else None)

    assert seen.outcome == wanted
    assert (tmp_path / "run" / "asked").exists()
