"""The learning rate's factor in every step."""

import json
import math
from pathlib import Path

import pytest

from miniverl.engine.recipe import LearningRateSchedule
from miniverl.engine.schedule import factor

UPSTREAM = json.loads((Path(__file__).parents[1] / "data" / "upstream_v0.9.0.json").read_text())


def schedule(kind: str, **changed: object) -> LearningRateSchedule:
    fields = {
        "warmup_steps": 0,
        "total_steps": 10,
        "min_ratio": 0.0,
        "num_cycles": 0.5,
        "zero_indexed": True,
    }
    return LearningRateSchedule(kind=kind, **(fields | changed))


def test_constant_is_1_in_every_step_even_beyond_the_total():
    assert [factor(step, schedule("constant")) for step in (0, 5, 30)] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("kind", ["constant", "cosine"])
def test_with_a_warm_up_the_first_step_changes_nothing(kind):
    factors = [factor(step, schedule(kind, warmup_steps=4)) for step in range(5)]
    assert factors == [0.0, 0.25, 0.5, 0.75, 1.0]


def test_half_a_cosine_falls_from_1_over_a_half_in_the_middle_to_the_least_ratio():
    least = schedule("cosine", min_ratio=0.2)
    assert factor(0, least) == 1.0
    assert factor(5, least) == pytest.approx(0.6)
    assert factor(10, least) == pytest.approx(0.2)


def test_a_cosine_that_counts_from_1_is_one_step_ahead():
    ahead = schedule("cosine", zero_indexed=False, warmup_steps=2)
    assert factor(0, ahead) == 0.5
    assert factor(3, ahead) == factor(4, schedule("cosine", warmup_steps=2))


def test_more_cycles_come_back_up():
    assert factor(10, schedule("cosine", num_cycles=1.0)) == pytest.approx(1.0)
    assert factor(5, schedule("cosine", num_cycles=1.0)) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("case", UPSTREAM["schedules"], ids=lambda case: str(case["schedule"]))
def test_upstreams_factors(case):
    found = [
        factor(step, LearningRateSchedule(**case["schedule"]))
        for step in range(len(case["factors"]))
    ]
    assert found == pytest.approx(case["factors"], abs=1e-12)
    assert all(math.isfinite(value) for value in found)
