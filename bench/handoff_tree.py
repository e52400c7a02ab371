"""The files of a bundle: which may be there, and that they are those that were written.

Whoever sends a bundle may have put anything into it. Nothing is read here but names, sizes and bytes for digests;
no link is followed.
"""

import hashlib
import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from miniverl.engine.problem import Problem

SUMS = "SHA256SUMS"
MANIFEST = "manifest.json"
# Every kind of file that a bundle has a use for. None of them is run by reading it: no pickle, no archive.
_SUFFIXES = (".json", ".jinja", ".md", ".model", ".parquet", ".safetensors", ".txt")
_ALSO = frozenset({SUMS, "launch.sh", "reward/score.py"})
_PART = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}")
_LINE = re.compile(r"([0-9a-f]{64})  (\S.*)")
_MOST_FILES, _MOST_DEEP = 1000, 4
_MOST_SUMS_BYTES = 1 << 20


def sums(root: Path) -> str:
    """The text of SHA256SUMS over every other file, as `sha256sum -c` reads it."""
    names = sorted(name for name, _ in _walk(root) if name != SUMS)
    return "".join(f"{_sha256(root / name)}  {name}\n" for name in names)


def problems(root: Path) -> list[Problem]:
    """Everything that is there and may not be, is not there and has to be, or has other bytes."""
    found = list(_walk(root))
    told = [_problem(name, reason) for name, reason in found if reason is not None]
    names = {name for name, reason in found if reason is None}
    if len(found) > _MOST_FILES:
        told.append(_problem(".", f"it holds more than {_MOST_FILES} files"))
    if SUMS not in names:
        return [*told, _problem(SUMS, "it is not there, and without it nothing can be checked")]
    listed, wrong = _listed(root / SUMS)
    told += wrong
    told += [_problem(name, f"{SUMS} does not list it") for name in sorted(names - {SUMS, *listed})]
    told += [
        _problem(name, f"{SUMS} lists it, and it is not there")
        for name in sorted(listed.keys() - names)
    ]
    for name in sorted(listed.keys() & names):
        if _sha256(root / name) != listed[name]:
            told.append(_problem(name, f"its bytes are not those that {SUMS} lists"))
    return told


def _walk(root: Path) -> Iterator[tuple[str, str | None]]:
    """Every file by its path below `root`, and why it may not be there; at most one more than there may be."""
    count = 0
    pending = [(root, 0)]
    while pending:
        folder, depth = pending.pop()
        with os.scandir(folder) as entries:
            for entry in sorted(entries, key=lambda each: each.name):
                path = Path(entry.path)
                name = path.relative_to(root).as_posix()
                mode = entry.stat(follow_symlinks=False).st_mode
                reason = _reason(name, entry.name, mode)
                if reason is None and stat.S_ISDIR(mode):
                    if depth + 1 >= _MOST_DEEP:
                        yield name, "it lies too deep"
                    else:
                        pending.append((path, depth + 1))
                    continue
                yield name, reason
                count += 1
                if count > _MOST_FILES:
                    return


def _reason(name: str, last: str, mode: int) -> str | None:
    if stat.S_ISLNK(mode):
        return "it is a link, which leads where nobody checked"
    if not _PART.fullmatch(last):
        return "its name has other characters than letters, digits and ._-"
    if stat.S_ISDIR(mode):
        return None
    if not stat.S_ISREG(mode):
        return "it is no file"
    if name not in _ALSO and not name.endswith(_SUFFIXES):
        return "a bundle holds no file of this kind"
    return None


def _listed(path: Path) -> tuple[Mapping[str, str], list[Problem]]:
    """Digests by name, and what is wrong with the list itself."""
    if path.stat().st_size > _MOST_SUMS_BYTES:
        return {}, [_problem(SUMS, f"it has more than {_MOST_SUMS_BYTES} bytes")]
    try:
        lines = path.read_bytes().decode("utf-8").splitlines()
    except UnicodeDecodeError:
        return {}, [_problem(SUMS, "it is not UTF-8")]
    listed: dict[str, str] = {}
    told = []
    for number, line in enumerate(lines, 1):
        match = _LINE.fullmatch(line)
        parts = [] if match is None else match[2].split("/")
        if match is None or not all(_PART.fullmatch(part) for part in parts):
            told.append(
                _problem(
                    f"{SUMS}:{number}", "expected a digest, two spaces and a path below this folder"
                )
            )
        elif match[2] in listed:
            told.append(_problem(f"{SUMS}:{number}", f"{match[2]} is listed twice"))
        else:
            listed[match[2]] = match[1]
    return listed, told


def _sha256(path: Path) -> str:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    with os.fdopen(descriptor, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _problem(name: str, reason: str) -> Problem:
    return Problem(
        field=name,
        value=None,
        origin="bundle",
        reason=reason,
        fix="Do not use it; have the bundle written or sent again",
    )
