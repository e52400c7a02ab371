"""Did the policy learn? The first third of a run's updates against the last, over several seeds.

    python -m miniverl.bench.learning RECORD ... [--curve FILE.svg]

Prints a Markdown table, and ends with 1 unless the reward rose by more than two standard errors and the greedy
reward on held-out prompts rose, in every record. Shorter answers can be part of a gain, so lengths stand beside.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from miniverl.bench import validate
from miniverl.bench.answer import FILE, answers
from miniverl.bench.exits import Exit
from miniverl.bench.launch_values import is_number
from miniverl.bench.picture import document
from miniverl.bench.plot import Axes, Series, lines
from miniverl.compiler.whole import write_text
from miniverl.engine.problem import Problem, WrongCall

Json = Mapping[str, Any]

_HEADINGS = (
    "seed",
    "reward, first third",
    "last third",
    "change ± standard error",
    "greedy reward, held out",
    "response tokens",
    "share at the cap",
)


def has_learnt(of: Json) -> bool:
    """True where both the sampled and the greedy reward rose. `of`: a measured record that validates."""
    reward = of["measurements"]["training_metrics"]["reward_mean"]
    held_out = of["measurements"]["validation_metrics"]["reward_mean"]
    is_beyond_noise: bool = reward["change"] > 2 * reward["change_standard_error"]
    return is_beyond_noise and held_out["after"] > held_out["before"]


def table(records: Sequence[Json]) -> str:
    """One row a record."""
    rows = [_HEADINGS, tuple("---" for _ in _HEADINGS), *map(_row, records)]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _row(of: Json) -> tuple[str, ...]:
    training = of["measurements"]["training_metrics"]
    reward, length, capped = (
        training[name] for name in ("reward_mean", "response_tokens_mean", "share_capped")
    )
    held_out = of["measurements"]["validation_metrics"]["reward_mean"]
    return (
        str(of["workload"]["seed"]),
        f"{reward['first_third_mean']:.3f}",
        f"{reward['last_third_mean']:.3f}",
        f"{reward['change']:+.3f} ± {reward['change_standard_error']:.3f}",
        f"{held_out['before']:.3f} → {held_out['after']:.3f}",
        f"{length['first_third_mean']:.1f} → {length['last_third_mean']:.1f}",
        f"{capped['first_third_mean']:.2f} → {capped['last_third_mean']:.2f}",
    )


def curve(records: Sequence[Json]) -> str:
    """The mean reward of every update, a line a record, as an SVG document of its own."""
    series = [
        Series(name=f"seed {of['workload']['seed']}", colour=number, values=_rewards(of))
        for number, of in enumerate(records)
    ]
    axes = Axes(
        key="learning",
        title="Mean reward of each update",
        summary="; ".join(
            f"{each.name} from {each.values[0][1]:.2f} to {each.values[-1][1]:.2f}"
            for each in series
        ),
        x="update",
        y="reward",
        counts_x=True,
    )
    return document(lines(axes, series))


def _rewards(of: Json) -> list[tuple[float, float]]:
    launch = next(each for each in of["launches"] if each["role"] == "straight")
    return [(step["step"], step["metrics"]["reward_mean"]) for step in launch["steps"]]


def _load(paths: Sequence[Path]) -> Sequence[Json]:
    """The records, each checked; raises with all that cannot answer the question."""
    records = [validate.load(path) for path in paths]
    problems = [
        Problem(
            field="measurements.validation_metrics",
            value=of["workload"]["name"] if of["schema_version"] > 1 else of["kind"],
            origin=str(path),
            reason="the run has no training metrics, or did not validate before and after",
            fix="Measure smollm2-grpo-learn, or a workload that validates",
        )
        for path, of in zip(paths, records, strict=True)
        if not _can_tell(of)
    ]
    if problems:
        raise WrongCall(problems)
    return records


def _can_tell(of: Json) -> bool:
    """Whether the record has every number that the verdict takes."""
    measured = of["measurements"]
    reward = measured.get("training_metrics", {}).get("reward_mean", {})
    held_out = measured.get("validation_metrics", {}).get("reward_mean", {})
    return all(
        is_number(of_kind.get(name))
        for of_kind, names in (
            (reward, ("change", "change_standard_error")),
            (held_out, ("before", "after")),
        )
        for name in names
    )


@answers
def _answer(paths: Sequence[Path], to: Path | None) -> Exit:
    records = _load(paths)
    click.echo(table(records))
    if to is not None:
        write_text(to, curve(records))
    return Exit.DONE if all(map(has_learnt, records)) else Exit.NO


@click.command(help=__doc__)
@click.argument("paths", nargs=-1, required=True, type=FILE, metavar="RECORD...")
@click.option("--curve", "to", type=FILE, metavar="FILE.svg", help="Draw every update's reward.")
def _main(paths: tuple[Path, ...], to: Path | None) -> None:
    sys.exit(_answer(paths, to))


if __name__ == "__main__":
    _main()
