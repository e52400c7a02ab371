"""The cases: which processes of a run meet which faults, drawn from a seed; and what one of them gives."""

import json
import random
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle
from pathlib import Path

from attempt import Unexpected, attempt
from faults import NEED_ROOM, Fault

from miniverl.bench.resume import compare_runs

# How often the first fault of a case is of a place and kind; a following one is drawn the same way.
_SHARES = {
    ("operation", "before"): 5,
    ("operation", "torn"): 5,
    ("operation", "after"): 5,
    ("operation", "power"): 5,
    ("operation", "full"): 2,
    ("operation", "readonly"): 1,
    ("operation", "error"): 2,
    ("second", "kill"): 9,
    ("second", "term"): 2,
    ("phase", "kill"): 2,
    ("phase", "oom"): 2,
    ("optimizer_step", "kill"): 4,
    ("optimizer_step", "oom"): 1,
}
_MOST_FAULTS = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Straight:
    """The uninterrupted run: its folder, what its process came by, and how long it took, forked and fresh."""

    folder: Path
    operations: Sequence[str]
    phases: int
    optimizer_steps: int
    forked_seconds: float
    fresh_seconds: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """`faults` of one process after the other; the last process meets none. `is_fresh`: none of them is forked."""

    run: str
    number: int
    faults: tuple[Fault, ...]
    is_fresh: bool

    def __str__(self) -> str:
        return " ".join(
            [self.run, *map(str, self.faults), *(["--fresh 1"] if self.is_fresh else [])]
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """`wrong` is None where the run has the bytes of the straight one. `met`: the faults that came true."""

    case: Case
    wrong: str | None
    met: tuple[Fault, ...] = field(default=())


def straight(folder: Path, *, with_fresh: bool) -> Straight:
    """Run what `runs.write` has put there, in a forked process and, where its time is asked for, in a fresh one."""
    forked = Path(shutil.copytree(folder, folder.with_name(f"{folder.name}.forked")))
    _, forked_seconds = attempt(forked, None, is_fresh=False)
    fresh_seconds = None
    if with_fresh:
        fresh = Path(shutil.copytree(folder, folder.with_name(f"{folder.name}.fresh")))
        _, fresh_seconds = attempt(fresh, None, is_fresh=True)
        wrong = _wrong(forked, fresh)
        assert wrong is None, f"two uninterrupted runs differ: {wrong}"
    met = json.loads(forked.with_name(f"{forked.name}.met.json").read_text())
    return Straight(
        folder=forked,
        operations=met["operations"],
        phases=met["phases"],
        optimizer_steps=met["optimizer_steps"],
        forked_seconds=forked_seconds,
        fresh_seconds=fresh_seconds,
    )


def drawn(run: str, count: int, num_fresh: int, base: Straight, seed: int) -> list[Case]:
    """`count` cases. Their first faults on the disk go round the operations of the straight run, lines of logs last."""
    draw = random.Random(f"{run} {count} {seed}")
    kinds = [kind for kind, share in _SHARES.items() for _ in range(share)]
    firsts = [kinds[number * len(kinds) // count % len(kinds)] for number in range(count)]
    draw.shuffle(firsts)
    fresh = set(draw.sample(range(count), min(num_fresh, count)))
    names = base.operations
    lines = [number for number, name in enumerate(names, 1) if name == "append"]
    others = [number for number, name in enumerate(names, 1) if name != "append"]
    dealt = cycle([*draw.sample(others, len(others)), *draw.sample(lines, len(lines))])
    anywhere = iter(partial(draw.randint, 1, len(names)), 0)
    cases = []
    for number, first in enumerate(firsts):
        is_fresh = number in fresh
        num_following = 0 if is_fresh else draw.randrange(_MOST_FAULTS)  # an import is most of it
        following = [draw.choice(kinds) for _ in range(num_following)]
        faults = (
            _fault(first, base, dealt, is_fresh, draw),
            *(_fault(kind, base, anywhere, is_fresh, draw) for kind in following),
        )
        cases.append(Case(run=run, number=number, faults=faults, is_fresh=is_fresh))
    return cases


def outcome(case: Case, inputs: Path, base: Straight, scratch: Path) -> Outcome:
    """Run the case in a folder below `scratch`, which goes again where nothing is wrong."""
    folder = scratch / f"{case.run}-{case.number}"
    met: list[Fault] = []
    try:
        shutil.copytree(inputs, folder)
        _go(folder, case, met)
        wrong = _wrong(base.folder, folder)
    except Unexpected as error:
        wrong = str(error)
    if wrong is None:
        for left in scratch.glob(f"{folder.name}*"):
            if left == folder or left.name.startswith(f"{folder.name}."):
                shutil.rmtree(left) if left.is_dir() else left.unlink()
    return Outcome(case=case, wrong=wrong, met=tuple(met))


def _go(folder: Path, case: Case, met: list[Fault]) -> None:
    """To the run's end; `met` gets the faults that come true. A run that its first one comes too late for begins again."""
    first, *following = case.faults
    while attempt(folder, first, is_fresh=case.is_fresh)[0]:
        assert first.place == "second", f"{first} did not happen in a run that has it"
        first = Fault(first.place, first.number * 0.7, first.what)
        for name in [each for each in folder.iterdir() if each.suffix != ".json"]:
            shutil.rmtree(name) if name.is_dir() else name.unlink()
    met.append(first)
    for fault in following:
        if attempt(folder, fault, is_fresh=case.is_fresh)[0]:
            return
        met.append(fault)
    attempt(folder, None, is_fresh=case.is_fresh)


def _fault(
    kind: tuple[str, str],
    base: Straight,
    operations: Iterator[int],
    is_fresh: bool,
    draw: random.Random,
) -> Fault:
    place, what = kind
    if place == "second":
        seconds = base.fresh_seconds if is_fresh else base.forked_seconds
        assert seconds is not None, "measured where there are fresh cases"
        return Fault(place, round(draw.uniform(0, seconds), 3), what)
    if place == "operation":
        if what != "full":
            return Fault(place, next(operations), what)
        names = enumerate(base.operations, 1)
        return Fault(place, draw.choice([n for n, name in names if name in NEED_ROOM]), what)
    return Fault(place, draw.randint(1, getattr(base, f"{place}s")), what)


def _wrong(expected: Path, folder: Path) -> str | None:
    """The first difference, or what a run may not leave."""
    left = [path.name for path in folder.rglob("*") if path.name.endswith((".part", ".gone"))]
    if left:
        return f"{left[0]} was left over"
    check = compare_runs(expected, folder)
    return None if check.status == "exact_match" else str(check.first_difference)
