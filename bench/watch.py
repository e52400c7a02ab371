"""Follows a run that another process makes: its events from the last start on, then how it ended."""

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from miniverl.bench import failure, run_folder
from miniverl.bench.exits import Exit
from miniverl.bench.run_folder import State
from miniverl.bench.runner import Listener
from miniverl.bench.single_run import Ended

POLL_SECONDS = 0.1
FIRST_SIGN_SECONDS = (
    20.0  # a command that was started beside this one looks at cards and inputs first
)

Write = Callable[[str], None]


def watch(
    folder: Path, listen: Listener, write: Write, *, patience_seconds: float = FIRST_SIGN_SECONDS
) -> Ended:
    """Hear the run in `folder` until no process works on it; then the exit code that it has, or had.

    A run that has not begun is waited for `patience_seconds`. Raises WrongCall where there is none by then, and what
    the run itself was ended by.
    """
    _await(folder, write, patience_seconds)
    followed = _Followed(folder / "journal.jsonl")
    is_at_work = True
    while is_at_work:
        is_at_work = run_folder.is_at_work(
            folder
        )  # first: what it wrote before it ended is heard then
        for event in followed.read():
            listen(event)
        if is_at_work:
            time.sleep(POLL_SECONDS)
    return _ended(folder, run_folder.state(folder))


def _await(folder: Path, write: Write, patience_seconds: float) -> None:
    until, is_told = time.monotonic() + patience_seconds, False
    while not (folder / "journal.jsonl").exists() and not run_folder.is_at_work(folder):
        if time.monotonic() >= until:
            run_folder.require_run(folder)
        if not is_told:
            write(f"There is no run in {folder} yet; waiting {patience_seconds:.0f} s for one.")
            is_told = True
        time.sleep(POLL_SECONDS)


def _ended(folder: Path, state: State) -> Ended:
    told = failure.read(folder)
    if state.status == "failed" and told is not None:
        raised = failure.raised(told.code, told.problems)
        if raised is not None:
            raise raised
    match state.status:
        case "finished":
            return Ended(exit=Exit.DONE, sentence=f"Finished after step {state.step}.")
        case "interrupted":
            sentence = f"Interrupted after step {state.step}, which is saved; --resume goes on."
            return Ended(exit=Exit.INTERRUPTED, sentence=sentence)
    return Ended(exit=Exit.NO, sentence=f"Ended after step {state.step}: {state.reason}.")


class _Followed:
    """Whole lines of a journal, from where its last process began to write."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._lines = 0
        self._early: list[Mapping[str, Any]] = []
        for event in self._fresh():
            if event["event"] == "imports_done":
                self._early = []
            self._early.append(event)

    def read(self) -> Iterator[Mapping[str, Any]]:
        early, self._early = self._early, []
        yield from early
        yield from self._fresh()

    def _fresh(self) -> Iterator[dict[str, Any]]:
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.splitlines():
            self._lines += 1
            yield run_folder.parsed(self._path, self._lines, line)
