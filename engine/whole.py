"""Files and folders that appear whole or not at all: written beside, put on disk, then renamed."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """Fill the folder that this gives; it becomes `folder` when the block ends without an exception.

    Until then it has a name that starts with a dot; `sweep` removes what a killed process left.
    """
    beside = folder.with_name(f".{folder.name}.part")
    if beside.exists():
        shutil.rmtree(beside)
    beside.mkdir(parents=True)
    yield beside
    for path in sorted(beside.iterdir()):
        path.chmod(0o644)  # safetensors leaves its files to their owner alone
        _sync(path)
    _sync(beside)
    os.rename(beside, folder)
    _sync(folder.parent)


def remove_whole(folder: Path) -> None:
    """Remove a folder; a kill half way leaves nothing under its name."""
    beside = folder.with_name(f".{folder.name}.gone")
    os.rename(folder, beside)
    shutil.rmtree(beside)


def sweep(parent: Path) -> None:
    """Remove what unfinished `whole_folder` and `remove_whole` calls left in `parent`."""
    for left in (*parent.glob(".*.part"), *parent.glob(".*.gone")):
        shutil.rmtree(left)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
