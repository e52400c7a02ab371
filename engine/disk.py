"""The disk: the ways in which the engine changes what is on it. No other module of the engine changes anything.

A kill between two of these operations, or half way through one, may cost time and nothing else; nor may a power
cut, which takes whatever was not put on disk by `sync`. Others call them by this module's name (`disk.rename`), so
that who replaces a function here (tests/chaos/faults.py) meets every call.
"""

import os
import re
import shutil
from collections.abc import Mapping
from io import FileIO
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

_SYSTEM_ERROR = re.compile(r"os error (\d+)")


def make_folder(path: Path) -> None:
    """And those above it. Each new one's name is put on disk."""
    if not path.is_dir():
        make_folder(path.parent)
        path.mkdir()
        sync(path.parent)


def opened(path: Path) -> FileIO:
    """A file to `append` to. One that was not there is made, and its name put on disk."""
    is_new = not path.exists()
    file = FileIO(path, "a")
    if is_new:
        sync(path.parent)
    return file


def append(file: FileIO, content: bytes) -> None:
    """All of it: a disk that fills up takes a part, and refuses only the next bytes."""
    left = memoryview(content)
    while left:
        left = left[file.write(left) :]


def write(path: Path, content: bytes) -> None:
    """The whole content of a file."""
    path.write_bytes(content)


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str] | None
) -> None:
    """A safetensors file. Raises OSError where the disk refuses it, which safetensors calls its own error."""
    try:
        save_file(dict(tensors), path, metadata=metadata)
    except SafetensorError as error:
        told = _SYSTEM_ERROR.search(str(error))
        if told is None:
            raise
        raise OSError(int(told[1]), os.strerror(int(told[1])), str(path)) from error
    path.chmod(0o644)  # safetensors leaves its files to their owner alone


def copy(source: Path, target: Path) -> None:
    """The content of a file."""
    shutil.copyfile(source, target)


def truncate(path: Path, length: int) -> None:
    with path.open("rb+") as file:
        file.truncate(length)


def rename(source: Path, target: Path) -> None:
    """At once for everybody who looks; on disk when both folders are synced."""
    os.rename(source, target)


def remove(path: Path) -> None:
    """A file, or a folder with all that it holds."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def sync(path: Path) -> None:
    """Put a file's bytes, or a folder's names, on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
