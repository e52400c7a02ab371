"""Files that appear whole or not at all: written beside under a name of their own, put on disk, then renamed.

What is written as JSON is canonical: sorted keys, no NaN, a newline at the end.
"""

import json
import os
from pathlib import Path
from typing import Any


def write_json(path: Path, value: Any) -> None:
    """Write `value` as canonical JSON."""
    write_text(path, json_text(value))


def write_text(path: Path, text: str) -> None:
    """Write `text` and make the folders above it. Two processes may write one path: the later one stays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with beside.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
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
