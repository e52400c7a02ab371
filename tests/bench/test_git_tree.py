"""Pins of git commits, from repositories on this machine: the tree's hash is git's own, and decides."""

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from miniverl.bench import git_tree
from miniverl.bench.pin import GitPin
from miniverl.compiler.upstream import quiet
from miniverl.engine.problem import CannotHere

AS = ("-c", "user.name=a", "-c", "user.email=a@b")


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *AS, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def pin(tmp_path: Path) -> GitPin:
    """A commit with files whose order, modes and kinds git hashes in its own way."""
    source = tmp_path / "source"
    (source / "a").mkdir(parents=True)
    for name in ("a/inner.py", "a.py", "a-b", "run.sh"):
        (source / name).write_text(f"{name}\n")
    (source / "run.sh").chmod(0o755)
    (source / "link").symlink_to("a/inner.py")
    git(source, "init", "--quiet")
    git(source, "add", "--all")
    git(source, "update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},vendored")
    git(source, "commit", "--quiet", "--message", "one")
    return GitPin(
        kind="git",
        title="a source",
        licence="Apache-2.0",
        repository=f"file://{source}",
        commit=git(source, "rev-parse", "HEAD"),
        tree=git(source, "rev-parse", "HEAD^{tree}"),
        submodules={"vendored": "1" * 40},
    )


def filled(pin: GitPin, folder: Path) -> Path:
    folder.mkdir()
    git_tree.fill(pin, folder, quiet)
    return folder


def test_a_commits_files_have_the_hash_that_git_gives_their_tree(
    pin: GitPin, tmp_path: Path
) -> None:
    folder = filled(pin, tmp_path / "filled")
    assert list((folder / "vendored").iterdir()) == []

    assert git_tree.tree_sha1(folder, pin.submodules) == pin.tree
    assert git_tree.wrong_content(pin, folder) == []
    assert (folder / "a" / "inner.py").read_text() == "a/inner.py\n"


@pytest.mark.parametrize("change", ["content", "mode", "name", "link"])
def test_any_change_is_another_tree(pin: GitPin, tmp_path: Path, change: str) -> None:
    folder = filled(pin, tmp_path / "filled")
    match change:
        case "content":
            (folder / "a.py").write_text("A.py\n")
        case "mode":
            (folder / "run.sh").chmod(0o644)
        case "name":
            (folder / "a.py").rename(folder / "b.py")
        case "link":
            (folder / "link").unlink()
            (folder / "link").symlink_to("a.py")
    (problem,) = git_tree.wrong_content(pin, folder)

    assert f"expected {pin.tree}" in problem.reason


def test_a_mirror_is_asked_where_the_repository_cannot_be_reached(
    pin: GitPin, tmp_path: Path
) -> None:
    gone = f"file://{tmp_path / 'gone'}"
    mirrored = replace(pin, repository=gone, mirrors=(pin.repository,))
    assert git_tree.wrong_content(pin, filled(mirrored, tmp_path / "mirrored")) == []

    with pytest.raises(CannotHere) as caught:
        filled(replace(pin, repository=gone, mirrors=(f"{gone}-too",)), tmp_path / "nothing")
    assert [problem.origin for problem in caught.value.problems] == [gone, f"{gone}-too"]
