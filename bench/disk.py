"""What is on the disk, in bytes and digests of files."""

import hashlib
import os
import shutil
from pathlib import Path


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def free_bytes(folder: Path) -> int:
    """What this user may still write to the disk that `folder` is on."""
    return shutil.disk_usage(folder).free


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
