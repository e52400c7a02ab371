"""The run folder's logs: what a kill can do to them, and how a checkpoint finds its place in them."""

import hashlib
import json
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from miniverl.engine.events import Event, RunFinished, StepStarted
from miniverl.engine.journal import Journal, Log, Offset, cut_back, finite, is_bound, json_line


def _journal(folder: Path, heard: list[Event]) -> Journal:
    return Journal(folder / "journal.jsonl", folder / "recovery", heard.append)


@contextmanager
def _disk_with_room_for(file_bytes: int) -> Iterator[None]:
    """No file grows beyond that: a write takes what still fits, the next one fails, as on a full disk."""
    before, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, hard))


def test_a_line_that_the_disk_takes_in_part_is_an_error_and_not_a_row(tmp_path: Path) -> None:
    log = Log(tmp_path / "log.jsonl")
    log.append({"n": 1})
    with _disk_with_room_for(12), pytest.raises(OSError, match="too large"):
        log.append({"n": 2})
    assert (tmp_path / "log.jsonl").read_bytes() == b'{"n":1}\n{"n"'
    assert log.sync().bytes == 8


def test_an_event_that_the_disk_takes_in_part_is_an_error(tmp_path: Path) -> None:
    journal = _journal(tmp_path, heard := [])
    with _disk_with_room_for(12), pytest.raises(OSError, match="too large"):
        journal(StepStarted(step=1))
    assert heard == []


def test_an_event_is_one_line_with_its_time_and_process(tmp_path: Path) -> None:
    heard: list[Event] = []
    journal = _journal(tmp_path, heard)
    journal(StepStarted(step=3))
    (line,) = (tmp_path / "journal.jsonl").read_text().splitlines()
    event = json.loads(line)
    assert event.pop("monotonic_seconds") > 0
    assert event == {"event": "step_started", "step": 3, "pid": os.getpid()}
    assert heard == [StepStarted(step=3)]


def test_a_journal_goes_on_where_an_earlier_process_left_it(tmp_path: Path) -> None:
    _journal(tmp_path, [])(StepStarted(step=1))
    _journal(tmp_path, [])(RunFinished(steps=1))
    lines = (tmp_path / "journal.jsonl").read_text().splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["step_started", "run_finished"]
    assert not (tmp_path / "recovery").exists()


def test_a_torn_last_line_is_moved_aside(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b'{"event":"step_started"}\n{"event":"step_fin')
    _journal(tmp_path, [])(StepStarted(step=2))
    assert [json.loads(line)["event"] for line in path.read_text().splitlines()] == [
        "step_started",
        "step_started",
    ]
    (aside,) = (tmp_path / "recovery").iterdir()
    assert aside.read_bytes() == b'{"event":"step_fin'


def test_an_offset_is_the_length_and_digest_of_what_was_written(tmp_path: Path) -> None:
    log = Log(tmp_path / "log.jsonl")
    log.append({"b": 1, "a": [0.5]})
    log.append({"a": 2})
    content = b'{"a":[0.5],"b":1}\n{"a":2}\n'
    assert (tmp_path / "log.jsonl").read_bytes() == content
    assert log.sync() == Offset(bytes=26, sha256=hashlib.sha256(content).hexdigest())


def test_a_reopened_log_counts_what_it_held(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    Log(path).append({"a": 1})
    log = Log(path)
    log.append({"a": 2})
    assert log.sync() == Offset(bytes=16, sha256=hashlib.sha256(b'{"a":1}\n{"a":2}\n').hexdigest())


def test_a_log_is_bound_by_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    log = Log(path)
    assert is_bound(tmp_path / "none", log.sync())
    log.append({"a": 1})
    offset = log.sync()
    log.append({"a": 2})
    assert is_bound(path, offset)
    assert not is_bound(tmp_path / "none", offset)
    path.write_bytes(b'{"a":7}\n{"a":2}\n')
    assert not is_bound(path, offset)
    path.write_bytes(b'{"a":1}')
    assert not is_bound(path, offset)


def test_cutting_back_keeps_the_tail_in_recovery(tmp_path: Path) -> None:
    path, recovery = tmp_path / "log.jsonl", tmp_path / "recovery"
    for _ in range(2):
        path.write_bytes(b"one\ntwo\n")
        assert cut_back(path, 4, recovery) == 4
        assert path.read_bytes() == b"one\n"
    assert cut_back(path, 4, recovery) == 0
    assert sorted(each.name for each in recovery.iterdir()) == [
        "log.jsonl.from-4.0",
        "log.jsonl.from-4.1",
    ]
    assert {each.read_bytes() for each in recovery.iterdir()} == {b"two\n"}


def test_a_number_that_json_cannot_hold_never_reaches_a_log() -> None:
    numbers = {"a": 1.0, "b": float("nan"), "c": float("inf")}
    with pytest.raises(ValueError, match="Out of range"):
        json_line(numbers)
    assert finite(numbers) == {"a": 1.0}
