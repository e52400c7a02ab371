"""Advantages of tokens, whitening, and the registry: numbers that can be checked by hand."""

from typing import get_args

import pytest
import torch
from torch import Tensor

from miniverl.engine.advantage import (
    ADVANTAGES,
    Estimate,
    Outcomes,
    gae,
    reinforce_plus_plus,
    reinforce_plus_plus_baseline,
    whitened,
)
from miniverl.engine.algorithm import Advantage, Estimator
from miniverl.engine.bounds import ESTIMATOR_ARGUMENTS
from miniverl.engine.problem import Refused


def double(rows: list[list[float]]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def mask(rows: list[list[int]]) -> Tensor:
    return torch.tensor(rows).bool()


def part(name: str) -> Advantage:
    read = ESTIMATOR_ARGUMENTS.get(name, frozenset())
    return Advantage(
        estimator=name,
        divides_by_std=False if "divides_by_std" in read else None,
        gamma=0.5 if "gamma" in read else None,
        gae_lambda=1.0 if "gae_lambda" in read else None,
    )


def outcomes(token_rewards: list[list[float]], inside: list[list[int]]) -> Outcomes:
    return Outcomes(
        token_rewards_NR=double(token_rewards),
        mask_NR=mask(inside),
        groups_N=torch.zeros(len(inside), dtype=torch.int64),
        values_NR=torch.zeros_like(double(token_rewards)),
    )


def white(values: list[float]) -> list[float]:
    """Mean 0 and, with n - 1, variance 1."""
    mean = sum(values) / len(values)
    variance = sum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return [(value - mean) / (variance + 1e-8) ** 0.5 for value in values]


def test_gae_without_bootstrap_is_the_return_minus_the_value():
    # gamma = gae_lambda = 1: A_t = sum of the rewards from t on - V_t
    found = gae(double([[0, 0, 3]]), double([[1, 4, 2]]), mask([[1, 1, 1]]), gamma=1, gae_lambda=1)
    assert found.returns_NR.tolist() == [[3.0, 3.0, 3.0]]
    assert found.advantages_NR[0].tolist() == pytest.approx(white([2.0, -1.0, 1.0]))


def test_gae_discounts_the_errors_of_later_tokens():
    # t = 1: 2 - 1 = 1;   t = 0: 0 + 0.5 * 1 - 3 + 0.5 * 0.5 * 1 = -2.25
    found = gae(double([[0, 2]]), double([[3, 1]]), mask([[1, 1]]), gamma=0.5, gae_lambda=0.5)
    assert found.returns_NR.tolist() == [[0.75, 2.0]]
    assert found.advantages_NR[0].tolist() == pytest.approx(white([-2.25, 1.0]))


def test_gae_steps_over_observation_tokens():
    with_hole = gae(
        double([[0, 9, 2]]), double([[3, 7, 1]]), mask([[1, 0, 1]]), gamma=0.5, gae_lambda=0.5
    )
    without = gae(double([[0, 2]]), double([[3, 1]]), mask([[1, 1]]), gamma=0.5, gae_lambda=0.5)
    assert with_hole.advantages_NR[0, [0, 2]].tolist() == without.advantages_NR[0].tolist()
    assert with_hole.returns_NR[0, [0, 2]].tolist() == without.returns_NR[0].tolist()


def test_gae_bootstraps_from_no_value_after_the_last_token():
    found = gae(
        double([[1, 0], [0, 2]]),
        double([[0, 50], [0, 0]]),
        mask([[1, 0], [1, 1]]),
        gamma=1,
        gae_lambda=1,
    )
    assert found.returns_NR[0, 0] == 1.0


def test_reinforce_plus_plus_discounts_the_reward_back_to_each_token():
    found = reinforce_plus_plus(double([[0, 1, 4]]), mask([[1, 1, 1]]), gamma=0.5)
    assert found.returns_NR.tolist() == [[1.5, 3.0, 4.0]]
    assert found.advantages_NR[0].tolist() == pytest.approx(white([1.5, 3.0, 4.0]))


def test_reinforce_plus_plus_carries_returns_over_observation_tokens():
    found = reinforce_plus_plus(double([[0, 9, 4, 0]]), mask([[1, 0, 1, 0]]), gamma=0.5)
    assert found.returns_NR.tolist() == [[2.0, 0.0, 4.0, 0.0]]
    first, second = white([2.0, 4.0])
    assert found.advantages_NR[0].tolist() == pytest.approx([first, 0.0, second, 0.0])


def test_the_baseline_variant_whitens_over_tokens_so_long_responses_weigh_more():
    # rewards 3 and 0 are centred to 1.5 and -1.5, on two tokens and on one
    found = reinforce_plus_plus_baseline(
        torch.tensor([3.0, 0.0]).double(), torch.tensor([4, 4]), mask([[1, 1], [1, 0]])
    )
    first, second, third = white([1.5, 1.5, -1.5])
    assert found.advantages_NR.flatten().tolist() == pytest.approx([first, second, third, 0.0])


def test_whitening_shifts_and_scales_what_lies_outside_the_mask_the_same_way():
    found_NR = whitened(double([[1, 3, 5]]), mask([[1, 1, 0]]))
    scale = (2 + 1e-8) ** -0.5
    assert found_NR[0].tolist() == pytest.approx([-scale, scale, 3 * scale])


def test_whitening_equal_numbers_gives_zeros():
    found_NR = whitened(double([[2, 2, 2]]), mask([[1, 1, 1]]))
    # 1e-8 in the mean's divisor leaves 2e-8 / 3, and 1e-8 under the root makes 1e4 of 1
    assert found_NR[0].tolist() == pytest.approx([2e-4 / 3] * 3, rel=1e-6)
    assert whitened(torch.full((1, 3), 2.0), mask([[1, 1, 1]])).tolist() == [[0.0, 0.0, 0.0]]


@pytest.mark.parametrize("inside", [[[0, 0]], [[0, 1]]])
@pytest.mark.parametrize("name", ["gae", "reinforce_plus_plus", "reinforce_plus_plus_baseline"])
def test_fewer_than_two_tokens_are_refused_with_their_number(name, inside):
    with pytest.raises(Refused) as raised:
        ADVANTAGES[name](outcomes([[0.0, 1.0]], inside), part(name))
    (problem,) = raised.value.problems
    assert problem.value == sum(inside[0])
    assert "two tokens" in problem.reason


@pytest.mark.parametrize("name", get_args(Estimator))
def test_every_estimator_that_a_recipe_can_name_is_there_and_gives_nothing_outside_the_mask(name):
    given = outcomes([[0.0, 3.0], [1.0, 0.0]], [[1, 1], [1, 0]])
    estimate = ADVANTAGES[name](given, part(name))
    assert isinstance(estimate, Estimate)
    assert estimate.advantages_NR.dtype == torch.float64
    if name != "gae":  # upstream leaves there what whitening makes of it
        assert estimate.advantages_NR[1, 1] == 0.0
        assert estimate.returns_NR[1, 1] == 0.0


def test_every_response_token_gets_its_trajectorys_number_and_so_does_a_critic():
    estimate = ADVANTAGES["grpo"](
        outcomes([[0.0, 3.0], [1.0, 0.0]], [[1, 1], [1, 0]]), part("grpo")
    )
    assert estimate.advantages_NR.tolist() == [[1.0, 1.0], [-1.0, 0.0]]
    assert estimate.returns_NR.tolist() == estimate.advantages_NR.tolist()


def test_a_reward_on_a_rejected_token_still_counts_for_the_response():
    # the numbers of upstream with a rejected last token: (1 - 0.5) / (sqrt(0.5) + 1e-6) on what is left
    given = outcomes([[0.0, 1.0], [0.0, 0.0]], [[1, 0], [1, 1]])
    divided = Advantage(estimator="grpo", divides_by_std=True, gamma=None, gae_lambda=None)
    advantages_NR = ADVANTAGES["grpo"](given, divided).advantages_NR
    assert advantages_NR.flatten().tolist() == pytest.approx(
        [0.7071, 0, -0.7071, -0.7071], abs=1e-4
    )
