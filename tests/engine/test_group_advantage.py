"""Advantages of whole responses: numbers that can be checked by hand."""

import pytest
import torch

from miniverl.engine.group_advantage import (
    centred,
    gpg,
    grpo,
    grpo_passk,
    grpo_vectorized,
    opo,
    rloo,
    rloo_vectorized,
)
from miniverl.engine.problem import Refused

ALL = {
    "grpo": lambda rewards_N, groups_N: grpo(rewards_N, groups_N, divide_by_std=True),
    "centred": centred,
    "grpo_vectorized": grpo_vectorized,
    "grpo_passk": lambda rewards_N, groups_N: grpo_passk(rewards_N, groups_N, divide_by_std=True),
    "rloo": rloo,
    "rloo_vectorized": rloo_vectorized,
    "opo": lambda rewards_N, groups_N: opo(rewards_N, torch.tensor([3, 1, 2, 4]), groups_N),
    "gpg": gpg,
}


def double(rewards: list[float]) -> torch.Tensor:
    return torch.tensor(rewards, dtype=torch.float64)


def advantages(rewards: list[float], groups: list[int], *, divide_by_std: bool) -> list[float]:
    return grpo(double(rewards), torch.tensor(groups), divide_by_std=divide_by_std).tolist()


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


@pytest.mark.parametrize("name", ALL)
def test_the_rewards_are_left_as_they_are(name):
    rewards_N = double([1.0, 0.0, 0.5, 2.0])
    ALL[name](rewards_N, torch.tensor([0, 0, 1, 1]))
    assert rewards_N.tolist() == [1.0, 0.0, 0.5, 2.0]


def test_grpo_vectorized_agrees_with_grpo_far_from_zero():
    # mean 10001, std sqrt(2); a one-pass variance would lose its digits at 1e8
    rewards_N, groups_N = torch.tensor([10000.0, 10002.0, 7.0]), torch.tensor([5, 5, 2])
    found_N = grpo_vectorized(rewards_N, groups_N)
    expected = 1 / (2**0.5 + 1e-6)
    assert found_N.tolist() == pytest.approx([-expected, expected, 7 / (1 + 1e-6)], rel=1e-6)


def test_grpo_vectorized_of_equal_rewards_is_zero():
    assert grpo_vectorized(double([0.5, 0.5, 0.5]), torch.tensor([1, 1, 1])).tolist() == [0.0] * 3


def test_pass_at_k_gives_the_best_its_lead_over_the_second():
    rewards_N, groups_N = double([0.0, 3.0, 1.0, 4.0, 4.0]), torch.tensor([0, 0, 0, 1, 1])
    found_N = grpo_passk(rewards_N, groups_N, divide_by_std=False)
    assert found_N.tolist() == [0.0, 2.0, 0.0, 0.0, 0.0]


def test_pass_at_k_may_be_divided_by_the_std():
    # rewards 0 and 2: lead 2, std sqrt(2)
    found_N = grpo_passk(double([0.0, 2.0]), torch.tensor([0, 0]), divide_by_std=True)
    assert found_N.tolist() == pytest.approx([0.0, 2 / (2**0.5 + 1e-6)])


def test_pass_at_k_refuses_a_single_response_to_a_prompt():
    with pytest.raises(Refused) as raised:
        grpo_passk(double([1.0, 0.0, 1.0]), torch.tensor([0, 0, 1]), divide_by_std=False)
    (problem,) = raised.value.problems
    assert problem.field == "recipe.rollout.samples_per_prompt"
    assert "second best" in problem.reason
    assert "at least 2" in problem.fix


@pytest.mark.parametrize("estimate", [rloo, rloo_vectorized])
def test_leave_one_out_compares_with_the_mean_of_the_others(estimate):
    # 1 - (0 + 5)/2, 0 - (1 + 5)/2, 5 - (1 + 0)/2
    found_N = estimate(double([1.0, 0.0, 5.0]), torch.tensor([2, 2, 2]))
    assert found_N.tolist() == pytest.approx([-1.5, -3.0, 4.5])


def test_a_response_without_siblings_keeps_its_reward_in_rloo_and_gets_none_vectorized():
    rewards_N, groups_N = double([3.0, 1.0, 2.0]), torch.tensor([7, 1, 1])
    assert rloo(rewards_N, groups_N).tolist() == [3.0, -1.0, 1.0]
    assert rloo_vectorized(rewards_N, groups_N).tolist() == [0.0, -1.0, 1.0]


def test_opo_weights_the_mean_by_length():
    # baseline (3 * 1 + 1 * 0) / 4
    rewards_N, lengths_N = double([1.0, 0.0, 6.0]), torch.tensor([3, 1, 9])
    found_N = opo(rewards_N, lengths_N, torch.tensor([0, 0, 1]))
    assert found_N.tolist() == [0.25, -0.75, 6.0]


def test_opo_of_empty_responses_counts_only_those_with_tokens():
    found_N = opo(double([1.0, 5.0]), torch.tensor([2, 0]), torch.tensor([0, 0]))
    assert found_N.tolist() == [0.0, 4.0]


def test_gpg_scales_up_by_the_share_of_rewards_that_are_not_zero():
    # 4 responses, 2 of them not 0; means 1/2 and 1
    found_N = gpg(double([1.0, 0.0, 2.0, 0.0]), torch.tensor([0, 0, 1, 1]))
    assert found_N.tolist() == [1.0, -1.0, 2.0, -2.0]


def test_gpg_of_nothing_but_zeros_is_zero():
    assert gpg(double([0.0, 0.0]), torch.tensor([0, 0])).tolist() == [0.0, 0.0]
