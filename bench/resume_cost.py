"""What being able to resume costs: checkpoints as a share of the steps, and the time until a resumed run goes on.

    python -m miniverl.bench.resume_cost RECORD ...

Prints a Markdown table, and ends with 1 unless in every record checkpoints took at most 2 % of the time of the
steps between them, and finding, verifying and loading the checkpoint of the resumed run less than a second.
Loading the models is not counted: every start does that.
"""

import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from miniverl.bench import show, validate
from miniverl.bench.answer import FILE, answers
from miniverl.bench.exits import Exit
from miniverl.engine.problem import Problem, WrongCall

Json = Mapping[str, Any]

LARGEST_SHARE = 0.02
LONGEST_RESTORE_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """Medians over the checkpoints of straight launches; `share` is of all steps, as often as one is saved."""

    checkpoint_bytes: int
    checkpoint_seconds: float
    step_seconds: float
    share: float
    restore_seconds: float

    @property
    def is_within(self) -> bool:
        return self.share <= LARGEST_SHARE and self.restore_seconds < LONGEST_RESTORE_SECONDS


def cost(record: Json) -> Cost:
    """Raises WrongCall for a record without checkpoints, or without a resumed run that tells its restoring."""
    straight = [each for each in record["launches"] if each["role"] == "straight"]
    steps = [step for each in straight for step in each["steps"] if step["is_finished"]]
    saved = [step["phases"]["checkpoint"]["seconds"] for step in steps if _is_saved(step)]
    restored = [
        phase["seconds"]
        for each in record["launches"]
        for phase in each["outside_steps"]
        if phase["phase"] == "restore"
    ]
    sizes = [each["bytes"] for launch in straight for each in launch["checkpoints"]]
    if not saved or not restored:
        raise WrongCall([_lacking("checkpoint" if not saved else "restored run")])
    spent = math.fsum(step["seconds"] for step in steps)
    return Cost(
        checkpoint_bytes=int(statistics.median(sizes)),
        checkpoint_seconds=statistics.median(saved),
        step_seconds=statistics.median(step["seconds"] for step in steps),
        share=math.fsum(saved) / spent,
        restore_seconds=max(restored),
    )


def table(records: Sequence[Json]) -> str:
    """One row a record, the machine and its versions below."""
    headings = (
        "workload",
        "checkpoint",
        "to save it",
        "median step",
        "share of all steps",
        "found, verified and loaded again",
    )
    rows = [headings, tuple("---" for _ in headings), *map(_row, records)]
    places = dict.fromkeys(map(_place, records))
    return "\n".join(["| " + " | ".join(row) + " |" for row in rows] + ["", *places])


def _row(record: Json) -> tuple[str, ...]:
    found = cost(record)
    return (
        show.name(record),
        f"{found.checkpoint_bytes / 1e6:.1f} MB",
        f"{found.checkpoint_seconds:.3f} s",
        f"{found.step_seconds:.2f} s",
        f"{found.share:.1%}",
        f"{found.restore_seconds:.3f} s",
    )


def _place(record: Json) -> str:
    commit = (record["source_commit"] or "unknown")[:12]
    return f"{show.place(record)}; commit {commit}, {record['measured_at']}."


def _is_saved(step: Json) -> bool:
    return "checkpoint" in step["phases"]


def _lacking(what: str) -> Problem:
    return Problem(
        field="RECORD",
        value=None,
        origin="command line",
        reason=f"it has no {what}",
        fix="Give a record of a workload that saves and checks resume, measured by this version",
    )


@answers
def _answer(paths: Sequence[Path]) -> Exit:
    records = [validate.load(path) for path in paths]
    click.echo(table(records))
    return Exit.DONE if all(cost(each).is_within for each in records) else Exit.NO


@click.command(help=__doc__)
@click.argument("paths", nargs=-1, required=True, type=FILE, metavar="RECORD...")
def _main(paths: tuple[Path, ...]) -> None:
    sys.exit(_answer(paths))


if __name__ == "__main__":
    _main()
