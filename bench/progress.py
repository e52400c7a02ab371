"""How a fetch looks to a person: one bar per file on stderr, one line per file where that is no terminal."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from miniverl.bench.terminal import Terminal
from miniverl.compiler import upstream


@contextmanager
def bars() -> Iterator[upstream.Progress]:
    """What fetching functions report to while the block lasts."""
    console = Terminal()
    if not console.is_live:
        yield _Lines(console)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as shown:
        yield _Bars(shown)


class _Bars:
    def __init__(self, shown: Progress) -> None:
        self._shown = shown
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, file: str, done_bytes: int, whole_bytes: int) -> None:
        if file not in self._tasks:
            self._tasks[file] = self._shown.add_task(file, total=whole_bytes)
        self._shown.update(self._tasks[file], completed=done_bytes)


class _Lines:
    """When a file begins and when it is there."""

    def __init__(self, console: Terminal) -> None:
        self._console = console
        self._begun: set[str] = set()
        self._done: set[str] = set()

    def __call__(self, file: str, done_bytes: int, whole_bytes: int) -> None:
        if done_bytes < whole_bytes and file not in self._begun:
            self._begun.add(file)
            self._say(f"{file}: {whole_bytes / 1e6:.1f} MB ...")
        if done_bytes == whole_bytes and file not in self._done:
            self._done.add(file)
            self._say(f"{file}: verified" if file not in self._begun else f"{file}: done")

    def _say(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)
