"""What is on the disk, in bytes and digests of files."""

import hashlib
import os
from pathlib import Path

from miniverl.engine.problem import Problem, WrongCall


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_full(folder: Path, needed_bytes: int) -> bool:
    """Whether a file of that size, or one more file of any, would not fit on the disk that `folder` is on."""
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize < needed_bytes or (disk.f_files > 0 and disk.f_favail == 0)


def require_free(folder: Path, option: str) -> None:
    """Raises WrongCall for what is there and is no empty folder."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        problem = Problem(
            field=option,
            value=str(folder),
            origin="command line",
            reason="it is taken",
            fix="Name a new or empty folder",
        )
        raise WrongCall([problem])


def folder_bytes(folder: Path) -> int:
    """Bytes of the regular files below `folder`; files may come and go meanwhile."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(parent, name)).st_size
            except FileNotFoundError:  # renamed or removed since it was listed
                continue
    return total
