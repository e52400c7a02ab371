"""Whether the files of installed packages still are those that pip wrote: each against its RECORD.

That finds what was edited, broken off or overwritten by another package. Compiled files (.pyc) have no digest
there, and someone who edits RECORD too is not found out.
"""

import base64
import csv
import hashlib
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import Distribution
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Recorded:
    """One line of a RECORD. `sha256` is base64 for URLs without its padding, as in RECORD."""

    package: str
    path: str
    sha256: str


def damaged(
    distributions: Mapping[str, Distribution], remembered: Path | None
) -> dict[str, tuple[str, ...]]:
    """Of distributions by name: package -> its files that differ or are gone.

    Reading every file takes seconds. `remembered` holds what sizes and times the files had when nothing was
    damaged: while they still have them, no file is read again.
    """
    files = [each for name, one in distributions.items() for each in recorded(name, one)]
    state = _state(files)
    if remembered is not None and remembered.exists() and remembered.read_text("utf-8") == state:
        return {}
    with ThreadPoolExecutor() as pool:
        hold = list(pool.map(_holds, files))
    found: dict[str, tuple[str, ...]] = {}
    for file, is_whole in zip(files, hold, strict=True):
        if not is_whole:
            found[file.package] = (*found.get(file.package, ()), os.path.basename(file.path))
    if not found and remembered is not None:
        remembered.write_text(state, "utf-8")
    return found


def remembered_in_venv() -> Path | None:
    """Where this environment can keep what `damaged` remembers; None where it is not ours to write in."""
    prefix = Path(sys.prefix)
    is_ours = sys.prefix != sys.base_prefix and os.access(prefix, os.W_OK)
    return prefix / "verified-files" if is_ours else None


def recorded(package: str, distribution: Distribution) -> Sequence[Recorded]:
    """The files of a distribution that have a digest; none where there is no RECORD."""
    root = str(distribution.locate_file(""))
    rows = csv.reader((distribution.read_text("RECORD") or "").splitlines())
    return [
        Recorded(package, os.path.join(root, path), digest.removeprefix("sha256="))
        for path, digest, _ in rows
        if digest.startswith("sha256=") and not path.endswith(".pyc")
    ]


def _state(files: Iterable[Recorded]) -> str:
    """Digest of what is recorded and of sizes and times; a change of content changes ctime."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.path} {file.sha256} {_times(file.path)}\n".encode())
    return digest.hexdigest()


def _times(path: str) -> tuple[int, ...]:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return ()
    return (found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def _holds(file: Recorded) -> bool:
    try:
        with open(file.path, "rb") as content:
            digest = hashlib.file_digest(content, "sha256").digest()
    except FileNotFoundError:
        return False
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode() == file.sha256
