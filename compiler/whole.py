"""Files that appear whole or not at all: written beside under a name of their own, put on disk, then renamed.

What is written as JSON is canonical: sorted keys, no NaN, a newline at the end.
"""

import errno
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from miniverl.engine.problem import CannotHere, Problem, Problems, WrongCall

# What a disk or a right denies; anything else that the system refuses, another path would mend.
_MACHINE = {
    getattr(errno, name)
    for name in ("EACCES", "EDQUOT", "EFBIG", "EIO", "ENOSPC", "EPERM", "EROFS", "ENOMEM", "EMFILE")
}


def write_json(path: Path, value: Any) -> None:
    """Write `value` as canonical JSON."""
    write_text(path, json_text(value))


def write_text(path: Path, text: str) -> None:
    """Write `text` and make the folders above it. Two processes may write one path: the later one stays.

    Raises CannotHere where a disk or a right denies it, WrongCall where the path cannot be a file's.
    """
    try:
        _write(path, text.encode())
    except OSError as error:
        raise denied(error, path, "cannot be written") from error


def denied(error: OSError, path: Path | None, what: str) -> Problems:
    """What the system refused, for a person."""
    is_machine = error.errno in _MACHINE
    problem = Problem(
        field="file",
        value=None if path is None else str(path),
        origin="operating system",
        reason=f"it {what}: {error.strerror or error}",
        fix="Make room, or give the right to it" if is_machine else "Name another path",
    )
    return (CannotHere if is_machine else WrongCall)([problem])


def _write(path: Path, content: bytes) -> None:
    path = Path(os.path.realpath(path))  # a link stays one: the file that it leads to is written
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and not path.is_file():  # such as /dev/stdout, which is not to be replaced
        path.write_bytes(content)
        return
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with beside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        with suppress(OSError):  # the first error tells
            beside.unlink()
    sync(path.parent)


def json_text(value: Any) -> str:
    """Canonical JSON for a file; raises ValueError for NaN and infinities."""
    return json.dumps(value, indent=1, sort_keys=True, allow_nan=False) + "\n"


def sync(path: Path) -> None:
    """Put a file's bytes, or a folder's names, on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
