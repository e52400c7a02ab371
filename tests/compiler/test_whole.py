"""Files that appear whole or not at all."""

import os
import stat
from pathlib import Path

import pytest

from miniverl.compiler.whole import json_text, write_json, write_text


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


def test_json_is_canonical(tmp_path: Path) -> None:
    write_json(tmp_path / "b.json", {"b": 1, "a": [True, None]})
    assert (tmp_path / "b.json").read_text() == '{\n "a": [\n  true,\n  null\n ],\n "b": 1\n}\n'


def test_json_has_no_nan() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        json_text({"loss": float("nan")})
