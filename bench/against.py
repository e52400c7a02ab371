"""Two stacks on one machine: their launches take turns, ABBA, so that what drifts meets both alike.

Each side is a whole `miniverl bench` of its own stack, in its own environment or image, and writes its own
record. This process starts both, hands out the turns, and compares the records.
"""

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from miniverl.bench import compare, site, validate
from miniverl.bench.exits import Exit
from miniverl.bench.stack import CONTAINERS
from miniverl.bench.turns import READY
from miniverl.compiler.suggest import did_you_mean
from miniverl.compiler.whole import write_json
from miniverl.engine.problem import CannotHere, Problem, WrongCall

Write = Callable[[str], None]

# The side whose turn it is, over and over.
ORDER = "ABBA"


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """One `miniverl bench`; `record` is where it writes its record."""

    letter: str
    stack: str
    command: Sequence[str]
    record: Path


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """What came of it. `comparison` is None where a side left no record."""

    order: str
    exits: tuple[int, int]
    comparison: compare.Comparison | None
    path: Path
    page: Path | None

    @property
    def exit(self) -> Exit:
        """A side that did not end as it should says more than the comparison of what it left."""
        worst = Exit(max(self.exits))
        if worst is not Exit.DONE or self.comparison is None:
            return worst
        return self.comparison.exit_code(strict=False)


def sides(own: str, other: str, workload: str, options: Sequence[str], out: Path) -> list[Side]:
    """A is the stack that runs, B the other. Raises WrongCall for an unknown stack."""
    launcher = CONTAINERS / "launch.py"
    if not launcher.exists():
        reason = "only a checkout of the repository knows stacks: this is an installed package"
        fix = "Run it there, with .venv/bin/miniverl"
        raise CannotHere([_problem(other, reason, fix)])
    known = sorted(path.parent.name for path in CONTAINERS.glob("*/stack.toml"))
    if other not in known:
        fix = did_you_mean(other, known, f"Known: {', '.join(known)}")
        raise WrongCall([_problem(other, "there is no such stack", fix)])
    commands = {
        "A": [sys.executable, "-P", "-m", "miniverl.bench"],
        "B": [sys.executable, str(launcher), other],
    }
    return [
        _side(letter, stack, commands[letter], ["bench", workload, "--in-turns", *options], out)
        for letter, stack in (("A", own), ("B", other))
    ]


def measure(both: Sequence[Side], out: Path, write: Write) -> Compared:
    """Run both sides to their end, turn by turn, and compare their records."""
    write(f"A is {both[0].stack}, B is {both[1].stack}; launches take turns, {ORDER}")
    order, exits = take_turns([(each.letter, each.command) for each in both], write)
    path, records = out / "comparison.json", [each.record for each in both]
    if not all(record.exists() for record in records):
        return Compared(order=order, exits=exits, comparison=None, path=path, page=None)
    a, b = (validate.load(record) for record in records)
    comparison = compare.compare(a, b)
    write_json(path, _told(both, order, (a, b), comparison))
    page = site.write_site(records, out / "site")
    return Compared(order=order, exits=exits, comparison=comparison, path=path, page=page)


def take_turns(
    commands: Sequence[tuple[str, Sequence[str]]], write: Write
) -> tuple[str, tuple[int, int]]:
    """Whose turn it was, each in its order, and the exit code of each side.

    A side that fails ends the other one too, which then leaves a record that says so.
    """
    first, second = (_Player(letter, command, write) for letter, command in commands)
    order = ""
    try:
        for letter in _letters():
            player = first if letter == first.letter else second
            # Both are asked: one that still sets itself up must not disturb the other's launch.
            if not any([first.is_waiting(), second.is_waiting()]):
                break
            if player.is_waiting():
                order += letter
                player.take_turn()
            if any(each.has_failed() for each in (first, second)):
                break
    finally:
        exits = (first.end(), second.end())
    return order, exits


class _Player:
    """A side's process: it waits for a turn, or takes it, or has ended."""

    def __init__(self, letter: str, command: Sequence[str], write: Write) -> None:
        self.letter = letter
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, cwd=CONTAINERS.parent
        )
        assert self._process.stderr
        self._echo = threading.Thread(target=_echo, args=(letter, self._process.stderr, write))
        self._echo.start()
        self._waits: bool | None = None  # unknown until it says so, or ends

    def is_waiting(self) -> bool:
        """Whether it can take a turn; returns once it waits for one or has ended."""
        if self._waits is None:
            assert self._process.stdout
            self._waits = any(
                line.strip() == READY for line in iter(self._process.stdout.readline, "")
            )
        return self._waits

    def take_turn(self) -> None:
        """Returns when the turn is over."""
        assert self._process.stdin
        self._waits = None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        self.is_waiting()

    def has_failed(self) -> bool:
        return self._waits is False and self._process.wait() != 0

    def end(self) -> int:
        """Its exit code. One that still waits is asked to end, and writes its record."""
        if self._process.poll() is None and self._waits is not False:
            self._process.terminate()
        code = self._process.wait()
        self._echo.join()
        return code if code >= 0 else int(Exit.INTERRUPTED)


def _letters() -> Iterator[str]:
    while True:
        yield from ORDER


def _echo(letter: str, stream: IO[str], write: Write) -> None:
    for line in stream:
        write(f"{letter} | {line.rstrip()}")


def _side(letter: str, stack: str, start: Sequence[str], bench: Sequence[str], out: Path) -> Side:
    """Paths are told from the root of the checkout, which an image has elsewhere."""
    folder, root = (out / f"{letter.lower()}-{stack}").absolute(), CONTAINERS.parent
    told = folder.relative_to(root) if folder.is_relative_to(root) else folder
    written = ["--out", str(told), "--record", str(told / "record.json")]
    return Side(
        letter=letter,
        stack=stack,
        command=[*start, *bench, *written],
        record=folder / "record.json",
    )


def _told(
    both: Sequence[Side],
    order: str,
    records: Sequence[Mapping[str, Any]],
    comparison: compare.Comparison,
) -> dict[str, Any]:
    """The comparison, with what it compares."""
    compared = {
        each.letter: {"stack": each.stack, "record_sha256": record["record_sha256"]}
        for each, record in zip(both, records, strict=True)
    }
    return {"turns": order, "compared": compared, **comparison.to_dict()}


def _problem(stack: str, reason: str, fix: str) -> Problem:
    return Problem(field="--against", value=stack, origin="command line", reason=reason, fix=fix)
