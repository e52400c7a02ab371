"""The run folder's append-only logs: the journal of what happened when, and the logs that a checkpoint binds.

A line is JSON with sorted keys and is handed to the kernel as soon as it is written, so that a killed
process loses at most the line it was writing.
"""

import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from miniverl.engine import disk, recovery
from miniverl.engine.events import Event, to_dict


@dataclass(frozen=True, kw_only=True, slots=True)
class Offset:
    """How far a log goes: its length in bytes, and the SHA-256 of them."""

    bytes: int
    sha256: str


class Journal:
    """journal.jsonl: every event with its time and process. Never cut, save for a line torn by a kill."""

    def __init__(self, path: Path, aside: Path, listen: Callable[[Event], None]) -> None:
        _move_torn_line(path, aside)
        self._file = disk.opened(path)
        self._listen = listen

    def __call__(self, event: Event) -> None:
        stamp = {"monotonic_seconds": time.monotonic(), "pid": os.getpid()}
        disk.append(self._file, json_line(to_dict(event) | stamp))
        self._listen(event)


class Log:
    """A log that is a pure function of the recipe: no times, and a checkpoint knows how far it went."""

    def __init__(self, path: Path) -> None:
        """Open the log, and continue at its end."""
        content = path.read_bytes() if path.exists() else b""
        self._bytes = len(content)
        self._hash = hashlib.sha256(content)
        self._path = path
        self._file = disk.opened(path)

    def append(self, row: Mapping[str, Any]) -> None:
        line = json_line(row)
        disk.append(self._file, line)
        self._hash.update(line)
        self._bytes += len(line)

    def sync(self) -> Offset:
        """Put the log on disk; returns how far it goes."""
        disk.sync(self._path)
        return Offset(bytes=self._bytes, sha256=self._hash.hexdigest())


def is_bound(path: Path, offset: Offset) -> bool:
    """Whether the log begins with the bytes that `offset` describes."""
    if not path.exists():
        return offset.bytes == 0
    with path.open("rb") as file:
        head = file.read(offset.bytes)
    return len(head) == offset.bytes and hashlib.sha256(head).hexdigest() == offset.sha256


def cut_back(path: Path, length: int, aside: Path) -> int:
    """Move what the log holds beyond `length` bytes into the folder `aside`; returns how many bytes that was."""
    if not path.exists():
        return 0
    with path.open("rb") as file:
        file.seek(length)
        tail = file.read()
    if tail:
        recovery.keep(aside, f"{path.name}.from-{length}", tail)
        disk.truncate(path, length)
        disk.sync(path)
    return len(tail)


def json_line(row: Mapping[str, Any]) -> bytes:
    """Canonical JSON on one line. A NaN or an infinity is an error: it must not get here."""
    text = json.dumps(row, sort_keys=True, allow_nan=False, separators=(",", ":"))
    return text.encode() + b"\n"


def finite(numbers: Mapping[str, float]) -> dict[str, float]:
    """Without the numbers that JSON cannot hold."""
    return {name: number for name, number in numbers.items() if math.isfinite(number)}


def _move_torn_line(path: Path, aside: Path) -> None:
    if not path.exists():
        return
    with path.open("rb") as file:
        content = file.read()
    whole = content.rfind(b"\n") + 1
    cut_back(path, whole, aside)
