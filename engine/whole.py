"""Files and folders that appear whole or not at all: written beside, put on disk, then renamed."""

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

_SYSTEM_ERROR = re.compile(r"os error (\d+)")


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """Fill the folder that this gives; it becomes `folder` when the block ends without an exception, else it goes.

    Until then it has a name that starts with a dot; `sweep` removes what a killed process left.
    """
    beside = folder.with_name(f".{folder.name}.part")
    if beside.exists():
        shutil.rmtree(beside)
    beside.mkdir(parents=True)
    try:
        yield beside
        for path in sorted(beside.iterdir()):
            path.chmod(0o644)  # safetensors leaves its files to their owner alone
            _sync(path)
        _sync(beside)
        os.rename(beside, folder)
        _sync(folder.parent)
    finally:
        shutil.rmtree(beside, ignore_errors=True)  # of a full disk it gives back what it took


def save_tensors(
    tensors: Mapping[str, Tensor], path: Path, metadata: dict[str, str] | None = None
) -> None:
    """Write a safetensors file. Raises OSError where the disk refuses it, which safetensors calls its own error."""
    try:
        save_file(dict(tensors), path, metadata=metadata)
    except SafetensorError as error:
        told = _SYSTEM_ERROR.search(str(error))
        if told is None:
            raise
        raise OSError(int(told[1]), os.strerror(int(told[1])), str(path)) from error


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
