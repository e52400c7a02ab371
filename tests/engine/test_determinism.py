"""What is computed twice is compared to the byte, and what differs is named."""

import math
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from miniverl.engine import loop
from miniverl.engine.algorithm import Advantage
from miniverl.engine.comparison import Comparison, compared
from miniverl.engine.determinism import Compared, compare
from miniverl.engine.inputs import Inputs
from miniverl.engine.recipe import Critic, Recipe

_compared = partial(
    compared, tier="same_process", what="numbers", how="again", has_to_be_equal=True
)


@pytest.fixture
def recipe(tiny_recipe: Recipe, tiny_critic: Critic) -> Recipe:
    """PPO: every kind of model whose scores and gradients can be compared."""
    return replace(
        tiny_recipe,
        data=replace(tiny_recipe.data, validation_sha256=None),
        validation=None,
        critic=tiny_critic,
        advantage=Advantage(estimator="gae", divides_by_std=None, gamma=1.0, gae_lambda=0.9),
        steps=replace(tiny_recipe.steps, num_steps=2),
    )


@pytest.fixture
def found(recipe: Recipe, tiny_model: Path, tiny_train: Path, tmp_path: Path) -> Compared:
    inputs = Inputs(model=tiny_model, train=tiny_train, critic=tiny_model)
    run, out = tmp_path / "run", tmp_path / "compared"
    given = {"device": "cpu", "threads": 1}
    loop.run(recipe, inputs, run, **given, resume=False, listen=lambda event: None)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    out.mkdir()
    result = compare(recipe, inputs, run, out, **given)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    return result


def test_a_step_computed_again_and_in_other_batches_has_the_same_bytes(found: Compared) -> None:
    assert (found.step, found.prompts, found.rows) == (3, 2, 4)
    assert found.tokens > found.rows
    judged = [each for each in found.comparisons if each.has_to_be_equal]
    assert {(each.tier, each.what) for each in judged} == {
        ("same_process", "sampled tokens"),
        ("same_process", "log-probs of the sampler"),
        ("same_process", "scores of the policy"),
        ("same_process", "scores of the reference"),
        ("same_process", "scores of the critic"),
        ("same_process", "gradients of the policy"),
        ("same_process", "gradients of the critic"),
        ("batch_invariant", "sampled tokens"),
        ("batch_invariant", "log-probs of the sampler"),
    }
    assert [each for each in judged if each.differing] == []
    assert all(each.values > 0 for each in judged)
    ways = {each.how for each in judged if each.tier == "batch_invariant"}
    assert ways == {
        "prompts in reverse order",
        "2 rows at once, the others waiting",
        "one prompt alone",
    }


def test_what_rounding_may_change_is_told_and_decides_nothing(found: Compared) -> None:
    told = [each for each in found.comparisons if not each.has_to_be_equal]
    assert {(each.what, each.how) for each in told} == {
        (f"{kind} of the {role}", "one row a micro-batch")
        for kind, roles in (
            ("scores", ("policy", "reference", "critic")),
            ("gradients", ("policy", "critic")),
        )
        for role in roles
    }
    for each in (*told, found.sampler_and_scorer):
        assert each.largest_difference is not None
        assert each.largest_difference < 1e-4
    assert found.sampler_and_scorer.values == found.tokens


def _differing(one: Tensor, other: Tensor) -> Comparison:
    return _compared({"row 7": one}, {"row 7": other})


def test_equal_bytes_have_no_difference() -> None:
    numbers = torch.tensor([1.0, math.nan, -0.0])
    found = _differing(numbers, numbers.clone())
    assert (found.values, found.differing) == (3, 0)
    assert (found.largest_difference, found.first_difference) == (0.0, None)


def test_the_first_number_that_differs_is_named_and_the_largest_difference_told() -> None:
    found = _differing(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 2.5, 7.0]))
    assert (found.differing, found.largest_difference) == (2, 4.0)
    assert found.first_difference == "row 7, number 1: 2.0 and 2.5"


def test_zero_differs_from_its_negative_in_the_byte_and_by_nothing() -> None:
    found = _differing(torch.tensor([0.0]), torch.tensor([-0.0]))
    assert (found.differing, found.largest_difference) == (1, 0.0)


def test_a_number_that_is_not_finite_on_one_side_has_no_difference_that_could_be_told() -> None:
    found = _differing(torch.tensor([1.0]), torch.tensor([math.nan]))
    assert (found.differing, found.largest_difference) == (1, None)


def test_a_longer_row_differs_in_what_the_other_lacks() -> None:
    found = _differing(torch.tensor([5, 6]), torch.tensor([5, 6, 9]))
    assert (found.differing, found.first_difference) == (1, "row 7: 2 and 3 numbers")


def test_tokens_that_differ_are_counted_and_not_measured() -> None:
    found = _differing(torch.tensor([5, 6]), torch.tensor([5, 9000]))
    assert (found.differing, found.largest_difference) == (1, 0.0)
    assert found.first_difference == "row 7, number 1: 6 and 9000"


def test_gradients_are_measured_against_the_largest_one() -> None:
    found = _compared({"a": torch.tensor([4.0])}, {"a": torch.tensor([5.0])}, scale=4.0)
    assert found.largest_difference == 0.25
