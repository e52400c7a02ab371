"""A power cut: the operations of a process, and the state of the disk without those that were not synced.

Of a file's bytes since it was last synced any beginning may be left; of the names made, renamed and removed in a
folder since it was last synced, the first ones. How much is drawn from the number of operations before the cut.
"""

import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from io import FileIO
from itertools import count
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class _Entry:
    """A change of a folder's names, and how it is taken back."""

    folder: Path
    take_back: Callable[[], None]


class Unsynced:
    def __init__(self, graveyard: Path) -> None:
        self._entries: list[_Entry] = []
        self._synced_bytes: dict[Path, int] = {}  # of files that have grown since
        self._graveyard = graveyard
        self._graves = count()
        self._operations = 0

    def operated(
        self, name: str, operate: Callable[..., Any], *arguments: Any, **named: Any
    ) -> Any:
        """Do it, and know how it is taken back. A removed folder is buried, in case it has to come back."""
        self._operations += 1
        first = arguments[0]
        if name == "sync":
            self._sync(first)
        elif name == "append":
            self._grows(first)
        elif name in ("write", "write_tensors", "copy"):
            path = arguments[1] if name == "copy" else first
            self._made(path)
            self._synced_bytes[path] = 0
        elif name in ("opened", "make_folder") and not first.exists():
            self._made(first)
        elif name == "truncate":
            content = first.read_bytes()
            self._entries.append(_Entry(first, lambda: _restore(first, content)))
        elif name == "rename":
            self._renamed(*arguments)
        elif name == "remove":
            self._graveyard.mkdir(exist_ok=True)
            grave = self._graveyard / str(next(self._graves))
            first.rename(grave)
            self._entries.append(_Entry(first.parent, lambda: _move(grave, first)))
            return None
        return operate(*arguments, **named)

    def lose(self) -> None:
        """What is not on disk, back to front."""
        drawn = random.Random(self._operations)
        folders = {entry.folder for entry in self._entries}
        kept = {folder: drawn.choice((0, 0, 1, 2)) for folder in sorted(folders)}
        lost = []
        for entry in self._entries:
            if kept[entry.folder] > 0:
                kept[entry.folder] -= 1
            else:
                lost.append(entry)
        for path, synced in self._synced_bytes.items():
            if path.exists():
                grown = path.stat().st_size - synced
                left = synced + drawn.choice((0, drawn.randint(0, max(grown, 0))))
                with path.open("rb+") as file:
                    file.truncate(left)
        for entry in reversed(lost):
            entry.take_back()

    def _sync(self, path: Path) -> None:
        self._synced_bytes.pop(path, None)
        self._entries = [entry for entry in self._entries if entry.folder != path]

    def _grows(self, file: FileIO) -> None:
        path = Path(str(file.name))
        self._synced_bytes.setdefault(path, path.stat().st_size)

    def _made(self, path: Path) -> None:
        self._entries.append(_Entry(path.parent, lambda: _remove(path)))

    def _renamed(self, source: Path, target: Path) -> None:
        self._entries.append(_Entry(target.parent, lambda: _move(target, source)))
        for path in [each for each in self._synced_bytes if each.is_relative_to(source)]:
            moved = target / path.relative_to(source)
            self._synced_bytes[moved] = self._synced_bytes.pop(path)


def _move(source: Path, target: Path) -> None:
    if source.exists() and target.parent.exists():
        source.rename(target)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _restore(path: Path, content: bytes) -> None:
    if path.exists():
        path.write_bytes(content)
