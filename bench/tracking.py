"""A run's metrics for programs that follow experiments, each written by its own library.

Read from the logs as they are, so a run that goes on, or that was killed, can be exported too. The libraries are
extras: this module loads none of them.
"""

import importlib.util
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from miniverl.bench import run_folder
from miniverl.bench.launch_values import is_number
from miniverl.engine.problem import CannotHere, Problem


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """What was measured at a step: values by name, under train/ or validation/. Step 0 is before training."""

    step: int
    values: Mapping[str, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Tracked:
    name: str
    recipe: Mapping[str, Any]
    points: tuple[Point, ...]


def tracked(folder: Path) -> Tracked:
    """Raises WrongCall where there is no run, Refused where a log is damaged."""
    run_folder.require_run(folder)
    values: dict[int, dict[str, float]] = {}
    for step, name, value in _values(folder):
        values.setdefault(step, {})[name] = value
    return Tracked(
        name=folder.resolve().name,
        recipe=json.loads((folder / "recipe.json").read_text("utf-8")),
        points=tuple(Point(step=step, values=values[step]) for step in sorted(values)),
    )


def require_package(name: str) -> None:
    """Raises CannotHere where the library is not installed."""
    if importlib.util.find_spec(name) is not None:
        return
    problem = Problem(
        field=f"--{name}",
        value=None,
        origin="command line",
        reason=f"The package {name} is not installed; it is one of miniverl's extras",
        fix=f"Install it into this environment: python -m pip install {name}",
    )
    raise CannotHere([problem])


def _values(folder: Path) -> Iterator[tuple[int, str, float]]:
    """In the order of the logs: a step that was validated again, after a resume, has its last values."""
    for row in run_folder.rows(folder / "metrics.jsonl"):
        yield from _named("train", row["step"], row)
    for event in run_folder.rows(folder / "journal.jsonl"):
        if event["event"] == "validation_finished":
            yield from _named("validation", event["step"], event["metrics"])


def _named(kind: str, step: int, row: Mapping[str, Any]) -> Iterator[tuple[int, str, float]]:
    for name, value in row.items():
        if name != "step" and is_number(value):
            yield step, f"{kind}/{name}", value
