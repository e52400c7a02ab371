"""KL in the reward: what the policy pays on each token for leaving the reference, and how the price moves. Pure.

Axes: N trajectories of the whole step, R response positions.
"""

import torch
from torch import Tensor

from miniverl.engine.algorithm import KlReward
from miniverl.engine.loss import kl_estimate

_LARGEST_ERROR = 0.2


def kl_rewards(
    token_rewards_NR: Tensor,
    old_log_probs_NR: Tensor,
    reference_log_probs_NR: Tensor,
    mask_NR: Tensor,
    kl_reward: KlReward,
    coefficient: float,
) -> tuple[Tensor, float]:
    """Every token's reward minus `coefficient` times its KL, and the KL of the step.

        r_t - coefficient KL_t                                     KL_t = 0 outside the mask
        KL of the step = mean over trajectories of sum_t KL_t / (response tokens + 1e-8)

    Upstream: verl/trainer/ppo/ray_trainer.py:78 (v0.9.0).
    """
    kl_NR = kl_estimate(old_log_probs_NR, reference_log_probs_NR, kl_reward.estimator)
    kl_NR = torch.where(mask_NR, kl_NR, 0.0)
    lengths_N = mask_NR.sum(-1).to(kl_NR.dtype)
    current_kl = (kl_NR.sum(-1) / (lengths_N + 1e-8)).mean()
    return token_rewards_NR - coefficient * kl_NR, current_kl.item()


def next_coefficient(
    kl_reward: KlReward, coefficient: float, current_kl: float, num_trajectories: int
) -> float:
    """The coefficient of the next step; it stays where the recipe does not adapt it.

        coefficient (1 + clip(current_kl / target - 1, -0.2, 0.2) num_trajectories / horizon)

    Paper: arXiv 1909.08593; upstream: verl/trainer/ppo/core_algos.py:153 (v0.9.0).
    """
    if kl_reward.adaptive is None:
        return coefficient
    error = current_kl / kl_reward.adaptive.target - 1
    error = min(max(error, -_LARGEST_ERROR), _LARGEST_ERROR)
    return coefficient * (1 + error * num_trajectories / kl_reward.adaptive.horizon)
