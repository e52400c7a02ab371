"""KL in the reward: numbers that can be checked by hand."""

import pytest
import torch

from miniverl.engine.algorithm import AdaptiveKl, KlReward
from miniverl.engine.kl_reward import kl_rewards, next_coefficient

FIXED = KlReward(estimator="k1", coefficient=0.5, adaptive=None)
ADAPTIVE = KlReward(estimator="k1", coefficient=0.5, adaptive=AdaptiveKl(target=2.0, horizon=100))
OLD = torch.tensor([[-1.0, -2.0, 0.0], [-3.0, 0.0, 0.0]], dtype=torch.float64)
REFERENCE = torch.tensor([[-2.0, -5.0, 0.0], [-1.0, 0.0, 0.0]], dtype=torch.float64)
MASK = torch.tensor([[1, 1, 0], [1, 0, 0]]).bool()
REWARDS = torch.tensor([[0.0, 10.0, 0.0], [20.0, 0.0, 0.0]], dtype=torch.float64)


def test_every_token_pays_for_its_log_ratio():
    found_NR, current_kl = kl_rewards(REWARDS, OLD, REFERENCE, MASK, FIXED, 0.5)
    assert found_NR.tolist() == [[-0.5, 8.5, 0.0], [21.0, 0.0, 0.0]]
    assert current_kl == pytest.approx((2.0 - 2.0) / 2, abs=1e-7)


def test_the_kl_of_a_step_is_a_mean_over_trajectories_of_their_means():
    k2 = KlReward(estimator="k2", coefficient=0.5, adaptive=None)
    _, current_kl = kl_rewards(REWARDS, OLD, REFERENCE, MASK, k2, 0.5)
    # (1/2 + 9/2) / 2 and 4/2
    assert current_kl == pytest.approx((2.5 + 2.0) / 2)


def test_a_trajectory_without_tokens_counts_with_a_kl_of_zero():
    mask_NR = torch.tensor([[1, 1, 0], [0, 0, 0]]).bool()
    found_NR, current_kl = kl_rewards(REWARDS, OLD, REFERENCE, mask_NR, FIXED, 0.5)
    assert current_kl == pytest.approx(1.0)
    assert found_NR[1].tolist() == [20.0, 0.0, 0.0]


def test_what_lies_outside_the_mask_may_be_anything():
    nan_NR = torch.where(MASK, OLD, torch.nan)
    found_NR, current_kl = kl_rewards(REWARDS, nan_NR, REFERENCE, MASK, FIXED, 0.5)
    expected_NR, expected_kl = kl_rewards(REWARDS, OLD, REFERENCE, MASK, FIXED, 0.5)
    assert found_NR.tolist() == expected_NR.tolist()
    assert current_kl == expected_kl


def test_the_coefficient_of_the_step_is_what_counts_and_not_the_recipes():
    found_NR, _ = kl_rewards(REWARDS, OLD, REFERENCE, MASK, ADAPTIVE, 2.0)
    assert found_NR.tolist() == [[-2.0, 4.0, 0.0], [24.0, 0.0, 0.0]]


def test_a_fixed_coefficient_stays():
    assert next_coefficient(FIXED, 0.3, 99.0, 1000) == 0.3


def test_an_adaptive_coefficient_grows_above_the_target_and_shrinks_below():
    # 2.2 / 2 - 1 = 0.1, times 50 / 100
    assert next_coefficient(ADAPTIVE, 1.0, 2.2, 50) == pytest.approx(1.05)
    assert next_coefficient(ADAPTIVE, 1.0, 1.8, 50) == pytest.approx(0.95)


def test_an_adaptive_coefficient_moves_by_a_fifth_for_each_horizon_at_most():
    assert next_coefficient(ADAPTIVE, 1.0, 100.0, 100) == pytest.approx(1.2)
    assert next_coefficient(ADAPTIVE, 1.0, -100.0, 50) == pytest.approx(0.9)
