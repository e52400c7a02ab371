"""Folders that appear whole or not at all: written beside, put on disk, then renamed."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from miniverl.engine import disk


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """Fill the folder that this gives; it becomes `folder` when the block ends without an exception, else it goes.

    Until then it has a name that starts with a dot; `sweep` removes what a killed process left.
    """
    beside = folder.with_name(f".{folder.name}.part")
    if beside.exists():
        disk.remove(beside)
    disk.make_folder(beside)
    try:
        yield beside
        for path in sorted(beside.iterdir()):
            disk.sync(path)
        disk.sync(beside)
        disk.rename(beside, folder)
    except BaseException:
        with suppress(OSError):  # the first error tells
            disk.remove(beside)  # of a full disk it gives back what it took
        raise
    disk.sync(folder.parent)


def remove_whole(folder: Path) -> None:
    """Remove a folder; a kill half way leaves nothing under its name."""
    beside = folder.with_name(f".{folder.name}.gone")
    disk.rename(folder, beside)
    disk.sync(folder.parent)
    disk.remove(beside)


def sweep(parent: Path) -> None:
    """Remove what unfinished `whole_folder` and `remove_whole` calls left in `parent`.

    And files that whoever started this process (compiler/whole.py) was killed over.
    """
    for left in (*parent.glob(".*.part"), *parent.glob(".*.gone")):
        disk.remove(left)
