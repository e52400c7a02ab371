"""A/A: how often this suite would call a change where there is none.

    python -m miniverl.bench.aa RECORD

Two answers from one record of at least ten launches. Its odd launches against its even ones, in the order they were
made, are a real comparison of a stack with itself. And 200 pairs of five launches a side, drawn with the spread that
was observed, tell the rate: at most one in twenty may be called a change. Equal records give equal answers.
"""

import math
import random
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from miniverl.bench.answer import FILE, answers, json_option, print_json, say
from miniverl.bench.compare import values_of
from miniverl.bench.exits import Exit
from miniverl.bench.stats import holm, welch
from miniverl.bench.validate import load
from miniverl.bench.verdict import (
    CONFIDENCE,
    JUDGED,
    MEMORY_MARGIN,
    MIN_LAUNCHES,
    TIME_MARGIN,
    Metric,
    Values,
    Verdict,
    judge,
    numbers,
    overall,
    p_outside,
)
from miniverl.engine.problem import Problem, Refused

Json = Mapping[str, Any]

PAIRS = 200
LAUNCHES = 2 * MIN_LAUNCHES  # that a record needs
_SEED = "a/a"
_MARGINS: Mapping[str, float] = {"time_margin": TIME_MARGIN, "memory_margin": MEMORY_MARGIN}


@dataclass(frozen=True, kw_only=True, slots=True)
class SelfTest:
    """`spread`: metric -> standard deviation of the logarithms over launches."""

    launches: int
    spread: Mapping[str, float]
    pairs: int
    regressed: int
    improved: int
    beyond_chance: int  # pairs with some Holm-corrected p-value of 'no difference at all' below 5 %
    halves_verdict: Verdict
    halves_reason: str
    halves: tuple[Metric, ...]

    @property
    def rate(self) -> float:
        """The share of pairs, all of them equal, that were called a change."""
        return (self.regressed + self.improved) / self.pairs

    @property
    def holds(self) -> bool:
        return self.rate <= 1 - CONFIDENCE and self.halves_verdict not in ("regressed", "improved")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"rate": self.rate, "holds": self.holds}

    def lines(self) -> list[str]:
        """For people."""
        widest = max(self.spread, key=self.spread.__getitem__)
        chance = self.beyond_chance / self.pairs
        return [
            f"A/A of {self.launches} launches; the widest spread is {self.spread[widest]:.1%}, of {widest}",
            f"  {self.pairs} simulated pairs of {MIN_LAUNCHES} and {MIN_LAUNCHES} launches",
            f"  called regressed {self.regressed}, improved {self.improved}: {self.rate:.1%} of them, "
            + f"where {1 - CONFIDENCE:.0%} may be",
            f"  without any margin {chance:.1%} of them would be said to differ",
            f"  odd launches against even ones: {self.halves_verdict}. {self.halves_reason}",
            "The suite holds." if self.holds else "The suite calls changes where there are none.",
        ]


def self_test(record: Json, *, pairs: int = PAIRS) -> SelfTest:
    """Raises Refused for a record with too few launches."""
    launches = values_of([record])
    if len(launches) < LAUNCHES:
        problem = Problem(
            field="/launches",
            value=f"{len(launches)} straight launches",
            origin="record",
            reason=f"two sides of {MIN_LAUNCHES} launches take {LAUNCHES}",
            fix=f"Measure with --launches {LAUNCHES}, as miniverl bench --aa does",
        )
        raise Refused([problem])
    observed = _observed(launches)
    draw = random.Random(_SEED)
    verdicts, beyond = [], 0
    for _ in range(pairs):
        a, b = _drawn(observed, draw), _drawn(observed, draw)
        verdicts.append(overall(judge(a, b, **_MARGINS))[0])
        beyond += _is_beyond_chance(a, b, observed)
    halves = judge(launches[0::2], launches[1::2], **_MARGINS)
    verdict, reason = overall(halves)
    return SelfTest(
        launches=len(launches),
        spread={name: deviation for name, (_, deviation) in observed.items()},
        pairs=pairs,
        regressed=verdicts.count("regressed"),
        improved=verdicts.count("improved"),
        beyond_chance=beyond,
        halves_verdict=verdict,
        halves_reason=reason,
        halves=tuple(metric for metric in halves if metric.name in JUDGED),
    )


def _observed(launches: Sequence[Values]) -> dict[str, tuple[float, float]]:
    """Mean and deviation of the logarithms, of each judged metric that the launches have."""
    observed = {}
    for name in JUDGED:
        logs = [math.log(number) for number in numbers(launches, name)]
        if len(logs) >= MIN_LAUNCHES:
            observed[name] = statistics.fmean(logs), statistics.stdev(logs)
    return observed


def _drawn(observed: Mapping[str, tuple[float, float]], draw: random.Random) -> list[Values]:
    return [_launch(observed, draw) for _ in range(MIN_LAUNCHES)]


def _launch(observed: Mapping[str, tuple[float, float]], draw: random.Random) -> Values:
    values: dict[str, Any] = {
        "steady_state_median_seconds": {},
        "steady_state_median_throughput": {},
    }
    for name, (mean, deviation) in observed.items():
        group, _, field = name.partition(".")
        place, key = (values[group], field) if field else (values, group)
        place[key] = draw.lognormvariate(mean, deviation)
    return Values(values=values, mhz=None)


def _is_beyond_chance(a: Sequence[Values], b: Sequence[Values], names: Mapping[str, Any]) -> bool:
    tests = [welch(numbers(a, name), numbers(b, name)) for name in names]
    return min(holm([p_outside(test, 0.0) for test in tests])) <= 1 - CONFIDENCE


@answers
def _answer(record: Path, *, as_json: bool) -> Exit:
    test = self_test(load(record))
    if as_json:
        print_json(test.to_dict())
    say("\n".join(test.lines()))
    return Exit.DONE if test.holds else Exit.NO


@click.command(help=__doc__)
@click.argument("record", type=FILE)
@json_option
def _main(record: Path, as_json: bool) -> None:
    sys.exit(_answer(record, as_json=as_json))


if __name__ == "__main__":
    _main()
