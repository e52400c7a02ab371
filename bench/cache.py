"""An entry of the cache is a folder that appears whole, with a manifest of its files' sizes and digests.

While it is filled it stands beside under a hidden name, and a lock keeps other processes waiting. The
manifest holds each file's time too, so that an untouched entry is recognised without reading it.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from miniverl.bench.disk import file_sha256
from miniverl.compiler import upstream
from miniverl.compiler.whole import json_text, sync
from miniverl.engine.problem import Problem, Refused

MANIFEST = "manifest.json"
_RECORDED = {"bytes", "mtime_ns", "sha256"}


@contextmanager
def locked(entry: Path) -> Iterator[None]:
    """Only one process at a time fills or reads `entry`; where this one may not write, it only reads."""
    if entry.exists() and not os.access(entry.parent, os.W_OK):
        yield
        return
    with upstream.cache_writes():
        entry.parent.mkdir(parents=True, exist_ok=True)
        lock = entry.with_name(f".{entry.name}.lock").open("w")
    with lock as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def arriving(entry: Path) -> Iterator[Path]:
    """An empty folder that takes `entry`'s place when the block ends well, and goes when it does not.

    Call it under `locked`: what a killed process left is removed first.
    """
    folder = entry.with_name(f".{entry.name}.incoming")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        yield folder
        _seal(folder)
        folder.rename(entry)
        sync(entry.parent)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def damage(entry: Path, *, trusts_times: bool) -> list[Problem]:
    """What is not as it was when `entry` appeared: each missing, added or changed file; raises as `manifest`.

    With `trusts_times` a file of the recorded size and time counts as unchanged; otherwise all are read.
    """
    recorded = manifest(entry)
    present = set(_file_names(entry))
    problems = [
        _problem(entry / name, "one that was fetched", "no such file", "a file is missing")
        for name in sorted(recorded.keys() - present)
    ]
    problems += [
        _problem(entry / name, "no such file", "one that was not fetched", "a file was added")
        for name in sorted(present - recorded.keys())
    ]
    for name in sorted(present & recorded.keys()):
        stamp = (entry / name).stat()
        same = (stamp.st_size, stamp.st_mtime_ns) == (
            recorded[name]["bytes"],
            recorded[name]["mtime_ns"],
        )
        if not (trusts_times and same):
            found = file_sha256(entry / name)
            if found != recorded[name]["sha256"]:
                problems.append(wrong_digest(entry / name, recorded[name]["sha256"], found))
    return problems


def manifest(entry: Path) -> dict[str, dict[str, Any]]:
    """Bytes, time and SHA-256 of every file, by name. An entry has one, since both appear at once; else Refused."""
    path = entry / MANIFEST
    try:
        recorded: dict[str, dict[str, Any]] = json.loads(path.read_text("utf-8"))
        if all(each.keys() == _RECORDED for each in recorded.values()):
            return recorded
        found = "something else"
    except (OSError, ValueError, AttributeError) as error:
        found = str(error)
    raise Refused([_problem(path, "what was fetched", found, "the entry does not say what it is")])


def wrong_digest(path: Path, expected: str, found: str) -> Problem:
    return _problem(path, expected, found, "its content is not the pinned one")


def _problem(path: Path, expected: str, found: str, reason: str) -> Problem:
    return Problem(
        field=path.name,
        value=found,
        origin=str(path.parent),
        reason=f"{reason}: expected {expected}, found {found}",
        fix="Delete that folder and fetch again; if it comes back, do not trust its source",
    )


def _seal(folder: Path) -> None:
    """Write the manifest, and everything to the disk."""
    recorded = {}
    for name in _file_names(folder):
        stamp = (folder / name).stat()
        recorded[name] = {
            "bytes": stamp.st_size,
            "mtime_ns": stamp.st_mtime_ns,
            "sha256": file_sha256(folder / name),
        }
    (folder / MANIFEST).write_text(json_text(recorded), "utf-8")
    for path in [*folder.rglob("*"), folder]:
        sync(path)


def _file_names(folder: Path) -> list[str]:
    paths = (path for path in folder.rglob("*") if path.is_file())
    names = (path.relative_to(folder).as_posix() for path in paths)
    return sorted(name for name in names if name != MANIFEST)
