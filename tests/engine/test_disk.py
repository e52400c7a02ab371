"""What the engine does to a disk goes through engine/disk.py, so that a test which stands there meets all of it."""

import ast
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from miniverl.engine import disk, recovery
from miniverl.engine.whole import remove_whole, sweep, whole_folder

ENGINE = Path(disk.__file__).parent
# disk.py does it; a process of proof.py answers its parent through a file that is no run folder's.
EXCEPT_FOR = ("disk.py", "proof.py")
CHANGING = {
    *("chmod", "copy2", "copyfile", "copytree", "fsync", "link", "makedirs", "mkdir", "removedirs"),
    *("remove", "rename", "renames", "rmdir", "rmtree", "save_file", "symlink_to", "touch"),
    *("truncate", "unlink", "utime", "write_bytes", "write_text"),
}


def _calls(path: Path) -> Iterator[tuple[str, str]]:
    """Of each call of a method: on what, and its name; of `open` its mode, where it is not one that reads."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Attribute):
            on, name = ast.unparse(node.func.value), node.func.attr
        else:
            on, name = "", ast.unparse(node.func)
        modes = [each.value for each in node.args if isinstance(each, ast.Constant)]
        if name == "open" and modes and not str(modes[-1]).startswith("r"):
            yield on, f"open {modes[-1]}"
        elif name == "open" and "+" in str(modes):
            yield on, "open +"
        elif name in CHANGING:
            yield on, name


def test_no_other_module_of_the_engine_changes_a_disk() -> None:
    found = {
        (path.name, on, name)
        for path in sorted(ENGINE.glob("*.py"))
        if path.name not in EXCEPT_FOR
        for on, name in _calls(path)
        if on != "disk"
    }
    assert found == set()
    assert {name for _, name in _calls(ENGINE / "disk.py")} >= {"mkdir", "fsync", "rename"}


def test_a_new_file_and_a_new_folder_are_on_disk_with_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(disk, "sync", synced.append)
    disk.make_folder(tmp_path / "a" / "b")
    assert synced == [tmp_path, tmp_path / "a"]
    disk.opened(tmp_path / "a" / "log").close()
    disk.opened(tmp_path / "a" / "log").close()
    assert synced == [tmp_path, tmp_path / "a", tmp_path / "a"]


def test_recovery_never_writes_over_what_it_holds(tmp_path: Path) -> None:
    """Also where somebody has removed a part of it."""
    aside = tmp_path / "recovery"
    for content in (b"one", b"two", b"three"):
        recovery.keep(aside, "log.from-1", content)
    (aside / "log.from-1.0").unlink()
    recovery.keep(aside, "log.from-1", b"four")
    recovery.keep(aside, "log.from-10", b"five")
    recovery.keep(aside, "log.from-1", b"six")
    assert {path.name: path.read_bytes() for path in aside.iterdir()} == {
        "log.from-1.0": b"four",
        "log.from-1.1": b"two",
        "log.from-1.2": b"three",
        "log.from-1.3": b"six",
        "log.from-10.0": b"five",
    }


def test_a_folder_moves_to_recovery_beside_one_of_its_name(tmp_path: Path) -> None:
    for content in ("one", "two"):
        (tmp_path / "step-000002").mkdir()
        (tmp_path / "step-000002" / "state.json").write_text(content)
        recovery.move(tmp_path / "step-000002", tmp_path / "recovery")
    assert [
        (tmp_path / "recovery" / f"step-000002.{number}" / "state.json").read_text()
        for number in (0, 1)
    ] == ["one", "two"]


def test_a_folder_that_is_not_filled_to_its_end_goes(tmp_path: Path) -> None:
    def half() -> None:
        with whole_folder(tmp_path / "some") as beside:
            disk.write(beside / "half", b"")
            raise OSError(errno.ENOSPC, "No space")

    with pytest.raises(OSError, match="No space"):
        half()
    assert list(tmp_path.iterdir()) == []


def test_what_a_kill_leaves_is_swept_files_too(tmp_path: Path) -> None:
    (tmp_path / ".recipe.json.7.part").write_text("{")
    with whole_folder(tmp_path / "some") as beside:
        disk.write(beside / "file", b"1")
    os.rename(tmp_path / "some", tmp_path / ".some.gone")
    sweep(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_removed_folder_is_off_its_name_on_disk_before_its_files_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    for name in ("rename", "sync", "remove"):
        monkeypatch.setattr(disk, name, lambda *_, name=name: done.append(name))
    remove_whole(tmp_path / "step-000002")
    assert done == ["rename", "sync", "remove"]
