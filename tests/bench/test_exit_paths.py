"""However a measurement ends, a valid record says how: real processes, and real signals to the parent.

The worker is a script that ends in the way that is tested; the compiled plan, the parent, its sampler and the record
are the real ones.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from miniverl.bench import cli, failure, obstacle, record, suite
from miniverl.bench.exits import Exit
from miniverl.bench.facts import Plan
from miniverl.bench.workload import Contract

pytestmark = pytest.mark.slow

ROOMY = Contract(device_hours=1.0, peak_reserved_gib=8.0, peak_rss_gib=8.0, disk_gib=1.0)
SLEEP = "time.sleep(60)"
HERE = Path(__file__).parent
Measure = Callable[..., suite.Measured]


@pytest.fixture
def measure(prepared: Plan, tmp_path: Path) -> Measure:
    """Runs the plan with a worker whose body is the given Python text."""

    def measured(body: str, *, contract: Contract = ROOMY) -> suite.Measured:
        script = tmp_path / "worker.py"
        preamble = "import os, pathlib, signal, sys, time\nfolder = pathlib.Path(sys.argv[1])\n"
        script.write_text(preamble + textwrap.dedent(body))
        plan = replace(
            prepared,
            workload=replace(prepared.workload, contract=contract),
            folder=tmp_path / "bench" / "tiny-grpo" / "cpu" / "20260901T120000Z-00000000",
        )
        return suite.measure(plan, lambda line: None, (sys.executable, "-P", str(script)))

    return measured


def told(measured: suite.Measured) -> tuple[str, str]:
    """Status and reason code of a record that is on the disk, and that `miniverl check` finds valid."""
    assert cli.main(["check", str(measured.path)]) == 0
    written: dict[str, Any] = record.load_strict(measured.path)
    assert written == measured.record
    assert written["reason"]
    return written["status"], written["reason_code"]


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGINT, "interrupted"),
        (signal.SIGTERM, "terminated"),
        (signal.SIGHUP, "hung_up"),
    ],
)
def test_a_signal_to_the_parent_ends_in_a_record(
    measure: Measure, number: signal.Signals, code: str
) -> None:
    # The tests may be run by nohup, which has a signal ignored.
    original = signal.signal(number, signal.default_int_handler)
    measured = measure(f"os.kill(os.getppid(), {int(number)}); {SLEEP}")
    before = signal.signal(number, original)

    assert told(measured) == ("interrupted", code)
    assert measured.exit is Exit.INTERRUPTED
    assert len(measured.record["launches"]) == 1
    assert before == signal.default_int_handler


def test_a_second_ctrl_c_changes_nothing(measure: Measure) -> None:
    again = "os.kill(os.getppid(), signal.SIGINT); time.sleep(0.2)\n"

    assert told(measure(f"{2 * again}{SLEEP}")) == ("interrupted", "interrupted")


def test_a_signal_that_is_ignored_stays_ignored(measure: Measure) -> None:
    """As nohup has it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    measured = measure("os.kill(os.getppid(), signal.SIGHUP); sys.exit(7)")
    signal.signal(signal.SIGHUP, before)

    assert told(measured) == ("failed", "crashed")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("os.abort()", "crashed"),
        ("sys.exit(7)", "crashed"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "killed_from_outside"),
    ],
)
def test_a_worker_that_dies_ends_in_a_record(measure: Measure, body: str, code: str) -> None:
    measured = measure(body)

    assert told(measured) == ("failed", code)
    assert measured.exit is Exit.NO


def test_a_worker_out_of_memory_says_so_itself(measure: Measure) -> None:
    body = """
    from functools import partial
    from miniverl.bench import worker
    sys.excepthook = partial(worker._leave_crash, folder)
    bytearray(1 << 50)
    """

    assert told(measure(body)) == ("failed", "out_of_memory")


def test_torch_out_of_memory_on_a_cpu_is_no_crash() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 55)
    last_line = f"{type(caught.value).__name__}: {caught.value}"
    left = failure.Failure(kind="RuntimeError", problems=(), traceback=f"Traceback\n{last_line}\n")

    assert left.code == "out_of_memory"


@pytest.mark.parametrize(
    ("limit", "body", "code"),
    [
        ({"device_hours": 0.5 / 3600}, SLEEP, "device_time_exceeded"),
        (
            {"peak_rss_gib": 0.1},
            f"held = bytearray(os.urandom(1 << 20)) * 200; {SLEEP}",
            "memory_exceeded",
        ),
        (
            {"disk_gib": 0.001},
            f"(folder / 'big').write_bytes(bytes(2 << 20)); {SLEEP}",
            "disk_exceeded",
        ),
    ],
)
def test_a_worker_over_its_contract_ends_in_a_record_that_names_the_limit(
    measure: Measure, limit: dict[str, float], body: str, code: str
) -> None:
    measured = measure(body, contract=replace(ROOMY, **limit))

    assert told(measured) == ("contract_exceeded", code)
    assert measured.exit is Exit.NO
    (stated,) = limit.values()
    assert f"allows {3600 * stated if code.startswith('device') else stated:.3f}" in str(
        measured.record["reason"]
    )


def test_a_folder_that_cannot_be_written_ends_in_a_record(
    measure: Measure, prepared: Plan, tmp_path: Path
) -> None:
    body = "(folder.parent / 'resumed').write_text('in the way'); "
    body += "os.kill(os.getpid(), signal.SIGKILL)"
    measured = measure(body)
    assert told(measured) == ("failed", "killed_from_outside")

    taken = replace(prepared, folder=tmp_path / "taken")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "straight").write_text("in the way")
    ran = suite.execute(taken, lambda line: None, suite.Stop())
    assert ran.outcome is not None
    assert (ran.outcome.status, ran.outcome.reason_code) == ("failed", "file_system")


def test_a_card_that_is_not_here_blocks_a_record_and_replaces_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    copy = tmp_path / "copy.json"
    call = ["bench", "tiny-grpo", "--gpu", "4080", "--out", str(tmp_path), "--record", str(copy)]

    assert cli.main(call) == Exit.CANNOT_HERE
    (path,) = tmp_path.glob("bench/tiny-grpo/4080/*/record.json")
    written = record.load_strict(path)
    assert cli.main(["check", str(path)]) == 0
    assert (written["status"], written["reason_code"]) == ("blocked", "no_such_card")
    assert "needs an NVIDIA GeForce RTX 4080" in written["reason"]
    assert written["launches"] == []
    assert written["hardware"]["device"] == "cuda"
    assert written["resource_contract"]["peak_reserved_limit_gib"] == 4.0
    assert record.load_strict(copy) == written
    assert not list(tmp_path.rglob("latest.json"))


def _blocked(out: Path, *more: str, **variables: str) -> dict[str, Any]:
    """The record of a `miniverl bench` in a process of its own, which this machine cannot make."""
    call = [sys.executable, "-P", "-m", "miniverl.bench", "bench", "tiny-grpo", "--out", str(out)]
    ended = subprocess.run(
        [*call, *more], env=os.environ | variables, capture_output=True, text=True, check=False
    )
    assert ended.returncode == Exit.CANNOT_HERE, ended.stderr
    (path,) = out.glob("bench/tiny-grpo/*/*/record.json")
    assert cli.main(["check", str(path)]) == 0
    written: dict[str, Any] = record.load_strict(path)
    assert (written["status"], written["launches"]) == ("blocked", [])
    assert not list(out.rglob("latest.json"))
    return written


@pytest.mark.skipif(torch.version.cuda is not None, reason="this torch has CUDA")
def test_a_card_that_this_torch_cannot_use_blocks_a_record(tmp_path: Path) -> None:
    """A driver answers, of which nothing but its management library is there."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        driver = {"PYTHONPATH": str(HERE / "nvml_twin")}
    else:
        library = str(tmp_path / "libnvidia-ml.so.1")
        subprocess.run(
            [compiler, "-shared", "-fPIC", "-o", library, str(HERE / "nvml_stub.c")], check=True
        )
        driver = {"LD_LIBRARY_PATH": str(tmp_path)}
    written = _blocked(tmp_path / "out", "--gpu", "cuda", **driver, NVML_STUB="full")

    assert written["reason_code"] == "no_cuda_in_torch"
    assert written["reason"] == (
        f"This machine has NVIDIA GeForce RTX 4080, but torch {torch.__version__} has no CUDA"
    )


def test_a_stack_that_is_not_the_locked_one_blocks_a_record(tmp_path: Path) -> None:
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    written = _blocked(tmp_path / "out", "--gpu", "cpu", PYTHONPATH=path)

    assert written["reason_code"] == "stack_differs"
    assert "PYTHONPATH" in written["reason"]
    assert str(tmp_path) not in json.dumps(written)


def test_too_little_disk_or_memory_blocks(prepared: Plan, tmp_path: Path) -> None:
    without_disk = replace(ROOMY, disk_gib=1e6)
    blocked = obstacle.of_room(prepared.compiled, prepared.chosen, without_disk, tmp_path / "new")
    assert blocked is not None
    assert blocked.code == "no_disk"
    assert blocked.reason.startswith("A launch may write 1e+06 GiB, and ")

    assert obstacle.of_room(prepared.compiled, prepared.chosen, ROOMY, tmp_path) is None
    huge = {**prepared.compiled.lowered, "data": {**prepared.compiled.lowered["data"]}}
    huge["update"] = {**huge["update"], "micro_batch_tokens": 1 << 40}
    huge["data"]["max_prompt_tokens"] = 1 << 36
    blocked = obstacle.of_room(
        replace(prepared.compiled, lowered=huge), prepared.chosen, ROOMY, tmp_path
    )
    assert blocked is not None
    assert blocked.code == "does_not_fit"

    measured = suite.measure(
        replace(prepared, blocked=blocked, folder=tmp_path / "plan"), lambda line: None
    )
    assert told(measured) == ("blocked", "does_not_fit")
    assert measured.exit is Exit.CANNOT_HERE


def test_what_has_not_been_fetched_is_not_downloaded_for_a_record_of_what_cannot_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("MINIVERL_CACHE", str(tmp_path / "cache"))

    call = ["bench", "tiny-grpo", "--gpu", "4080", "--out", str(tmp_path / "out")]
    assert cli.main(call) == Exit.CANNOT_HERE
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "cache").exists()
    assert os.environ["MINIVERL_CACHE"]
