"""The worker as a process: what it leaves when it fails, and that it never outlives its parent."""

import json
import os
import resource
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from miniverl.bench import failure, runner, telemetry

pytestmark = pytest.mark.slow

ARGUMENTS = ("--device", "cpu", "--threads", "1")


def work(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [*runner.WORKER, str(folder), *ARGUMENTS]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_crash_leaves_its_traceback_and_when_the_first_line_ran(tmp_path: Path) -> None:
    before = time.monotonic()
    ended = work(tmp_path)

    failure = json.loads((tmp_path / "failure.json").read_text())
    assert ended.returncode == 1
    assert failure["kind"] == "FileNotFoundError"
    assert "bindings.json" in failure["traceback"]
    assert failure["problems"] == []
    stamp = json.loads((tmp_path / "worker.json").read_text())
    assert before < stamp["interpreter_monotonic"] < time.monotonic()


def test_problems_are_left_as_problems_with_their_exit_code(tmp_path: Path) -> None:
    (tmp_path / "recipe.json").write_text('{"schema_version": 1}')
    (tmp_path / "bindings.json").write_text('{"model": "m", "train": "t", "validation": null}')
    ended = work(tmp_path)

    failure = json.loads((tmp_path / "failure.json").read_text())
    assert ended.returncode == 2
    assert ended.stderr == ""
    assert failure["kind"] == "WrongCall"
    assert failure["traceback"] is None
    assert "recipe.seeds" in [problem["field"] for problem in failure["problems"]]


def test_a_failure_that_the_disk_refuses_leaves_no_half_file(tmp_path: Path) -> None:
    told = failure.Failure(kind="CannotHere", problems=(), traceback="long " * 100)
    before, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, hard))
    try:
        with pytest.raises(OSError, match="too large"):
            failure.write(tmp_path, told)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, hard))
    assert list(tmp_path.iterdir()) == []


def test_it_dies_when_its_parent_is_killed(tmp_path: Path) -> None:
    """It waits in a read that never ends; nobody is left to stop it but the kernel."""
    os.mkfifo(tmp_path / "recipe.json")
    (tmp_path / "bindings.json").write_text('{"model": "m", "train": "t", "validation": null}')
    script = f"""
    import os, pathlib
    from miniverl.bench import runner
    from miniverl.bench.sampling import Sampling
    runner.launch(
        pathlib.Path({str(tmp_path)!r}), "straight", arguments={ARGUMENTS!r}, environment=os.environ,
        limits=runner.Limits(seconds=600, held_bytes={{}}, disk_bytes=1 << 40),
        interruption=None, sampling=Sampling(card=None), listen=lambda event: None,
        stopped=runner.never,
    )
    """
    parent = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)])
    stamp = tmp_path / "worker.json"
    until(stamp.exists)
    worker = json.loads(stamp.read_text())["pid"]
    parent.kill()
    parent.wait()

    until(lambda: telemetry.rss_bytes(worker) is None)


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.01)
