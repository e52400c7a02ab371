"""A few cases of `make chaos`, and that its faults are what they say."""

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
# Each fault has a process of its own, since what stands in front of the disk stays there: all forked from this one.
PROGRAM = """
import json, os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from faults import Fault, install
from miniverl.engine import disk

def operate():
    with disk.opened(Path("log")) as file:                     # 1, and 2: its folder is synced
        disk.append(file, b"1234")                             # 3
        disk.sync(Path("log"))                                 # 4
        disk.append(file, b"5678")                             # 5
    disk.make_folder(Path("old"))                              # 6, 7 and 8
    disk.write(Path("old/some"), b"1")                         # 9
    disk.rename(Path("old"), Path("new"))                      # 10
    disk.write(Path("more"), b"12")                            # 11
    disk.remove(Path("new"))                                   # 12
    disk.write(Path("last"), b"")                              # 13

def child(fault):
    met = install(Fault.parse(fault) if fault != "none" else None, Path("../graves"))
    try:
        operate()
    except OSError as error:
        return error.errno
    Path("../met.json").write_text(json.dumps(met.operations))
    return 0

for fault in sys.argv[2:]:
    Path(fault).mkdir()
    process = os.fork()
    if not process:
        os.chdir(fault)
        os._exit(child(fault))
    print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))
"""


EXPECTED: dict[str, tuple[int, dict[str, str]]] = {
    "none": (0, {"log": "12345678", "more": "12", "last": ""}),
    "operation:5:before": (-signal.SIGKILL, {"log": "1234"}),
    "operation:5:torn": (-signal.SIGKILL, {"log": "123456"}),
    "operation:5:after": (-signal.SIGKILL, {"log": "12345678"}),
    "operation:11:full": (errno.ENOSPC, {"log": "12345678", "new/some": "1", "more": "1"}),
    "operation:10:full": (errno.ENOSPC, {"log": "12345678", "new/some": "1"}),
    "operation:10:readonly": (errno.EROFS, {"log": "12345678", "old/some": "1"}),
    "operation:4:error": (errno.EIO, {"log": "1234"}),
}
POWER = tuple(f"operation:{number}:power" for number in range(6, 14))


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, dict[str, str]]]:
    """With each fault: the exit code of the program's process, and the files that it leaves."""
    folder, faults = tmp_path_factory.mktemp("faults"), [*EXPECTED, *POWER]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(HERE), *faults],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    codes = map(int, done.stdout.split())
    ends = {
        fault: (code, _files(folder / fault)) for code, fault in zip(codes, faults, strict=True)
    }
    assert json.loads((folder / "met.json").read_text()) == [
        *("opened", "sync", "append", "sync", "append"),
        *("make_folder", "make_folder", "sync"),
        *("write", "rename", "write", "remove", "write"),
    ]
    return ends


def _files(folder: Path) -> dict[str, str]:
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_text() for path in paths}


@pytest.mark.parametrize("fault", EXPECTED)
def test_a_fault_happens_where_it_says(
    ends: dict[str, tuple[int, dict[str, str]]], fault: str
) -> None:
    assert ends[fault] == EXPECTED[fault]


def test_a_power_cut_takes_what_was_not_synced(
    ends: dict[str, tuple[int, dict[str, str]]],
) -> None:
    """Behind the last sync of the log are four bytes of it; "new", which was never synced, is removed in the end."""
    left = [ends[fault][1] for fault in POWER]
    assert {ends[fault][0] for fault in POWER} == {-signal.SIGKILL}
    assert all("12345678".startswith(files["log"]) for files in left)
    assert 4 <= min(len(files["log"]) for files in left) < 8
    assert all(set(files) <= {"log", "more", "new/some", "old/some"} for files in left)
    assert all(files.get("more", "") in ("", "1", "12") for files in left)
    assert any("new/some" not in files for files in left[5:])


def test_killed_anywhere_a_run_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    counts = ["--grpo", "4", "--ppo", "2", "--distillation", "2", "--fresh", "0", "--jobs", "1"]
    done = subprocess.run(
        [sys.executable, str(HERE / "chaos.py"), *counts],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"TMPDIR": str(tmp_path), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    last = done.stdout.strip().splitlines()[-1]
    assert "grpo 4 of 4 byte-identical" in last
    assert "ppo 2 of 2 byte-identical" in last
    assert "distillation 2 of 2 byte-identical" in last
    assert list(tmp_path.glob("chaos-*")) == []
