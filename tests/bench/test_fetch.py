"""Fetching: whole or not at all, once, and verified."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from miniverl.bench import cache, prompts
from miniverl.bench.disk import file_sha256
from miniverl.bench.entry import input_of, place
from miniverl.bench.fetch import check, fetch
from miniverl.bench.pin import GeneratedPin, pin
from miniverl.compiler.upstream import quiet
from miniverl.engine.digest import rows_sha256
from miniverl.engine.problem import CannotHere, Problem, Refused, WrongCall


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MINIVERL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def fetched(empty_cache: Path) -> Path:
    return fetch(["chain-sum"], quiet)["chain-sum"]


def _refused(names: list[str]) -> Problem:
    with pytest.raises(Refused) as caught:
        check(names)
    (problem,) = caught.value.problems
    return problem


def _swap_a_byte(path: Path) -> None:
    """Another content of the same size and time."""
    stamp = path.stat()
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))


def test_prompt_rows_arrive_as_parquet_with_the_pinned_rows(fetched: Path) -> None:
    chosen = pin("chain-sum")
    assert isinstance(chosen, GeneratedPin)
    assert {path.name for path in fetched.iterdir()} == {
        "manifest.json",
        "train.parquet",
        "validation.parquet",
    }
    for name, split in chosen.splits.items():
        rows = prompts.pyarrow.parquet.read_table(fetched / f"{name}.parquet").to_pylist()
        assert (len(rows), rows_sha256(rows)) == (split.rows, split.sha256)


def test_an_untouched_entry_is_not_read_again(fetched: Path) -> None:
    _swap_a_byte(fetched / "train.parquet")  # only reading it could tell
    assert fetch(["chain-sum"], quiet) == {"chain-sum": fetched}


def test_check_reads_every_byte_and_names_file_and_digests(fetched: Path) -> None:
    assert check(["chain-sum"]) == {"chain-sum": fetched}
    expected = file_sha256(fetched / "train.parquet")
    _swap_a_byte(fetched / "train.parquet")
    problem = _refused(["chain-sum"])
    found = file_sha256(fetched / "train.parquet")
    assert problem.field == "train.parquet"
    assert problem.origin == str(fetched)
    assert problem.reason.endswith(f"expected {expected}, found {found}")


def test_a_file_with_a_new_time_is_read_and_kept_when_it_is_the_same(fetched: Path) -> None:
    (fetched / "train.parquet").touch()
    assert fetch(["chain-sum"], quiet) == {"chain-sum": fetched}


def test_a_changed_file_stops_a_fetch(fetched: Path) -> None:
    (fetched / "train.parquet").write_bytes(b"no longer Parquet")
    with pytest.raises(Refused, match=r"train\.parquet"):
        fetch(["chain-sum"], quiet)


def test_missing_and_added_files_are_told_together(fetched: Path) -> None:
    (fetched / "train.parquet").unlink()
    (fetched / "notes.txt").write_text("mine")
    with pytest.raises(Refused) as caught:
        check(["chain-sum"])
    assert [problem.field for problem in caught.value.problems] == ["train.parquet", "notes.txt"]


def test_check_of_nothing_fetched_says_what_fetches_it(empty_cache: Path) -> None:
    problem = _refused(["chain-sum"])
    assert (problem.field, problem.fix) == ("chain-sum", "miniverl fetch chain-sum")
    assert not list(empty_cache.rglob("*.parquet"))


def test_an_unknown_name_fetches_nothing(empty_cache: Path) -> None:
    with pytest.raises(WrongCall, match="Did you mean chain-sum"):
        fetch(["chain-sum", "chain-sun"], quiet)
    assert not empty_cache.exists()


def test_what_stands_in_the_way_of_several_pins_is_told_together(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(CannotHere) as caught:
        fetch(["qwen3-0.6b", "chain-sum", "qwen3-1.7b"], quiet)
    named = [problem.field for problem in caught.value.problems]
    assert named == ["Qwen/Qwen3-0.6B", "Qwen/Qwen3-1.7B"]
    assert place("chain-sum", pin("chain-sum")).exists()  # what can be had is


def test_a_missing_library_is_named(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "miniverl.bench.prompts")
    with pytest.raises(CannotHere) as caught:
        fetch(["chain-sum"], quiet)
    (problem,) = caught.value.problems
    assert problem.reason == "fetching it needs pyarrow, which is not installed"
    assert problem.fix == "Run make setup"


def test_changed_rows_in_the_package_are_refused(tmp_path: Path) -> None:
    chosen = pin("chain-sum")
    assert isinstance(chosen, GeneratedPin)
    other = replace(chosen.splits["train"], sha256="0" * 64)
    changed = replace(chosen, splits={**chosen.splits, "train": other})
    with pytest.raises(Refused) as caught:
        prompts.fill(changed, tmp_path, quiet)
    (problem,) = caught.value.problems
    assert problem.field == "chain-sum.jsonl train"
    assert f"expected {'0' * 64}, found {chosen.splits['train'].sha256}" in problem.reason
    assert not list(tmp_path.iterdir())


def test_what_fails_on_the_way_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(Refused):
        _fill_and_fail(tmp_path / "entry")
    assert [path.name for path in tmp_path.iterdir()] == [".entry.lock"]


def _fill_and_fail(entry: Path) -> None:
    with cache.locked(entry), cache.arriving(entry) as folder:
        (folder / "half").write_text("half")
        raise Refused([cache.wrong_digest(folder / "half", "a", "b")])


KILLED = """
import os, signal, sys
from pathlib import Path
from miniverl.bench import cache
entry = Path(sys.argv[1])
with cache.locked(entry), cache.arriving(entry) as folder:
    (folder / "half").write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_left_is_no_entry_and_goes_with_the_next(tmp_path: Path) -> None:
    entry = tmp_path / "entry"
    died = subprocess.run([sys.executable, "-P", "-c", KILLED, str(entry)], check=False)
    assert died.returncode == -signal.SIGKILL
    assert not entry.exists()
    with cache.locked(entry), cache.arriving(entry) as folder:
        assert not list(folder.iterdir())
        (folder / "whole").write_text("whole")
    assert {path.name for path in tmp_path.iterdir()} == {".entry.lock", "entry"}
    assert not cache.damage(entry, trusts_times=False)


AT_ONCE = """
from miniverl.bench.fetch import fetch
from miniverl.compiler.upstream import quiet
print(fetch(["chain-sum"], quiet)["chain-sum"])
"""


def test_processes_that_fetch_at_once_share_one_entry(empty_cache: Path) -> None:
    command = [sys.executable, "-P", "-c", AT_ONCE]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    said = {process.communicate()[0] for process in running}
    assert [process.returncode for process in running] == [0, 0, 0]
    assert said == {f"{place('chain-sum', pin('chain-sum'))}\n"}
    check(["chain-sum"])


def test_a_record_names_an_input_by_content_and_source(fetched: Path) -> None:
    stated = input_of("chain-sum")
    assert stated["source"] == "reasoning-gym 0.1.25"
    assert (stated["kind"], stated["pin_state"], stated["rows"]) == ("data", "known", 200)
    assert place("chain-sum", pin("chain-sum")).name == f"chain-sum-{stated['sha256'][:12]}"
