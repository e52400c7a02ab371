"""Files that appear whole or not at all."""

import os
import resource
import stat
from pathlib import Path

import pytest

from miniverl.compiler.whole import json_text, write_json, write_text
from miniverl.engine.problem import CannotHere, WrongCall


def test_a_file_and_the_folders_above_it_are_made(tmp_path: Path) -> None:
    write_text(tmp_path / "a" / "b.txt", "one\n")
    assert (tmp_path / "a" / "b.txt").read_text() == "one\n"


def test_nothing_is_left_beside_it(tmp_path: Path) -> None:
    write_text(tmp_path / "b.txt", "one\n")
    write_text(tmp_path / "b.txt", "two\n")
    assert [path.name for path in tmp_path.iterdir()] == ["b.txt"]
    assert (tmp_path / "b.txt").read_text() == "two\n"


def test_others_may_read_it_where_the_umask_allows_that(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        write_text(tmp_path / "recipe.json", "{}\n")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "recipe.json").stat().st_mode) == 0o644


def test_what_cannot_be_written_leaves_the_former_file(tmp_path: Path) -> None:
    write_text(tmp_path / "b.txt", "one\n")
    with pytest.raises(UnicodeEncodeError):
        write_text(tmp_path / "b.txt", "half a character: \ud800")
    assert [path.name for path in tmp_path.iterdir()] == ["b.txt"]
    assert (tmp_path / "b.txt").read_text() == "one\n"


def test_a_link_stays_and_the_file_that_it_leads_to_is_written(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "file")
    write_text(tmp_path / "link", "one\n")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == "one\n"


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write_text(tmp_path / "pipe", "one\n")
    assert os.read(reader, 10) == b"one\n"
    os.close(reader)
    assert (tmp_path / "pipe").is_fifo()


@pytest.mark.parametrize("place", ["file/b.txt", "folder", "n" * 300])
def test_a_path_that_cannot_be_a_files_is_a_wrong_call(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    with pytest.raises(WrongCall, match=f"{place}.* cannot be written"):
        write_text(tmp_path / place, "one\n")


def test_a_full_disk_is_this_machines_trouble_and_keeps_the_former_file(tmp_path: Path) -> None:
    write_text(tmp_path / "b.txt", "one\n")
    before, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2, hard))
    try:
        with pytest.raises(CannotHere, match=r"b\.txt.* cannot be written: File too large"):
            write_text(tmp_path / "b.txt", "two\n")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, hard))
    assert [path.name for path in tmp_path.iterdir()] == ["b.txt"]
    assert (tmp_path / "b.txt").read_text() == "one\n"


def test_json_is_canonical(tmp_path: Path) -> None:
    write_json(tmp_path / "b.json", {"b": 1, "a": [True, None]})
    assert (tmp_path / "b.json").read_text() == '{\n "a": [\n  true,\n  null\n ],\n "b": 1\n}\n'


def test_json_has_no_nan() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        json_text({"loss": float("nan")})
