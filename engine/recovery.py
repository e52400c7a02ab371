"""recovery/: what a run folder held and the run does not go on with. Nothing in it is ever written over."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path

from miniverl.engine import disk


def keep(recovery: Path, name: str, content: bytes) -> None:
    """Store `content`, on disk when this returns."""
    disk.make_folder(recovery)
    path = next(_free(recovery, name))
    disk.write(path, content)
    disk.sync(path)
    disk.sync(recovery)


def move(path: Path, recovery: Path) -> None:
    """Store a folder, on disk when this returns."""
    disk.make_folder(recovery)
    disk.rename(path, next(_free(recovery, path.name)))
    disk.sync(recovery)
    disk.sync(path.parent)


def _free(recovery: Path, name: str) -> Iterator[Path]:
    """`name`.0, .1 and so on, without those that are taken."""
    paths = (recovery / f"{name}.{number}" for number in count())
    return (path for path in paths if not path.exists())
