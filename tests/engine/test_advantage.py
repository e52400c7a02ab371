"""GRPO advantages: numbers that can be checked by hand."""

import pytest
import torch

from miniverl.engine.advantage import ADVANTAGES, Outcomes
from miniverl.engine.group_advantage import grpo
from miniverl.engine.recipe import Advantage


def advantages(rewards: list[float], groups: list[int], *, divide_by_std: bool) -> list[float]:
    rewards_N = torch.tensor(rewards, dtype=torch.float64)
    return grpo(rewards_N, torch.tensor(groups), divide_by_std=divide_by_std).tolist()


def test_a_group_is_centred_and_divided_by_the_std_with_n_minus_1():
    # mean 1/2, std sqrt(((1/2)^2 + (1/2)^2) / 1) = sqrt(1/2)
    found = advantages([1.0, 0.0], [3, 3], divide_by_std=True)
    expected = 0.5 / (0.5**0.5 + 1e-6)
    assert found == pytest.approx([expected, -expected], abs=1e-12)


def test_dr_grpo_only_centres():
    found = advantages([1.0, 0.0, 0.0, 1.0, 3.0], [0, 0, 0, 1, 1], divide_by_std=False)
    assert found == pytest.approx([2 / 3, -1 / 3, -1 / 3, -1.0, 1.0], abs=1e-12)


def test_a_group_of_one_keeps_its_reward():
    assert advantages([3.0], [9], divide_by_std=True) == pytest.approx([3.0 / (1 + 1e-6)])
    assert advantages([3.0], [9], divide_by_std=False) == [3.0]


def test_equal_rewards_teach_nothing():
    assert advantages([1.0] * 4, [0] * 4, divide_by_std=True) == [0.0] * 4


def test_groups_may_be_interleaved_and_their_names_do_not_matter():
    together = advantages([1.0, 0.0, 5.0, 2.0], [0, 0, 1, 1], divide_by_std=True)
    apart = advantages([1.0, 5.0, 0.0, 2.0], [70, 4, 70, 4], divide_by_std=True)
    assert [apart[0], apart[2], apart[1], apart[3]] == together


def test_float32_rewards_give_the_float64_numbers_to_float32_precision():
    random = torch.Generator().manual_seed(0)
    rewards_N = torch.randn(32, generator=random, dtype=torch.float64)
    groups_N = torch.arange(32) // 8
    exact_N = grpo(rewards_N, groups_N, divide_by_std=True)
    single_N = grpo(rewards_N.float(), groups_N, divide_by_std=True)
    assert single_N.dtype == torch.float32
    torch.testing.assert_close(single_N.double(), exact_N, atol=1e-5, rtol=1e-5)


def test_the_rewards_are_left_as_they_are():
    rewards_N = torch.tensor([1.0, 0.0])
    grpo(rewards_N, torch.tensor([0, 0]), divide_by_std=True)
    assert rewards_N.tolist() == [1.0, 0.0]


def test_the_recipe_finds_it_by_name_and_gives_it_to_every_response_token():
    outcomes = Outcomes(
        token_rewards_NR=torch.tensor([[0.0, 3.0], [1.0, 0.0]]),
        mask_NR=torch.tensor([[True, True], [True, False]]),
        groups_N=torch.tensor([4, 4]),
        values_NR=None,
    )
    wanted = Advantage(estimator="grpo", divides_by_std=False, gamma=None, gae_lambda=None)
    estimate = ADVANTAGES["grpo"](outcomes, wanted)
    assert estimate.advantages_NR.tolist() == [[1.0, 1.0], [-1.0, 0.0]]
    assert estimate.returns_NR.tolist() == estimate.advantages_NR.tolist()
