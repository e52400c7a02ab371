"""Advantages: how much better a response is than its siblings. Pure functions of rewards and groups.

Axes: N trajectories of the whole step, in any order; R response positions.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from miniverl.engine.recipe import Advantage

_EPSILON = 1e-6


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcomes:
    """What a step's trajectories earned. The reward of a response stands at its last token.

    `mask_NR` (bool) is where there is a response token, and rollout correction keeps it.
    `groups_N` (int64) names the prompt *row*. `values_NR` are the critic's.
    """

    token_rewards_NR: Tensor
    mask_NR: Tensor
    groups_N: Tensor
    values_NR: Tensor | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """`returns_NR` is what the critic learns; None where the estimator has no use for one."""

    advantages_NR: Tensor
    returns_NR: Tensor | None


Estimator = Callable[[Outcomes, Advantage], Estimate]


def grpo(rewards_N: Tensor, groups_N: Tensor, *, divide_by_std: bool) -> Tensor:
    """Reward minus the group's mean, divided by the group's standard deviation plus 1e-6.

        A = (r - mean(r of the group)) / (std(r of the group) + 1e-6)       the std with n - 1
        A =  r - mean(r of the group)                                       divide_by_std False: Dr.GRPO

    A group of one has mean 0 and standard deviation 1. `groups_N` (int64) names the prompt *row*: equal texts
    in different rows are different groups. Every response token of a trajectory gets its trajectory's number.
    Papers: arXiv 2402.03300 (GRPO), 2503.20783 (Dr.GRPO);
    upstream: verl/trainer/ppo/core_algos.py:268 (v0.9.0).
    """
    assert rewards_N.shape == groups_N.shape, "one group per reward"
    advantages_N = torch.empty_like(rewards_N)
    for group in sorted(set(groups_N.tolist())):
        members_N = groups_N == group
        rewards_G = rewards_N[members_N]
        if len(rewards_G) == 1:
            mean, std = rewards_G.new_tensor(0.0), rewards_G.new_tensor(1.0)
        else:
            mean, std = rewards_G.mean(), rewards_G.std()
        centred_G = rewards_G - mean
        advantages_N[members_N] = centred_G / (std + _EPSILON) if divide_by_std else centred_G
    return advantages_N


def _grpo(outcomes: Outcomes, advantage: Advantage) -> Estimate:
    advantages_N = grpo(
        outcomes.token_rewards_NR.sum(-1),
        outcomes.groups_N,
        divide_by_std=bool(advantage.divides_by_std),
    )
    return Estimate(advantages_NR=advantages_N[:, None] * outcomes.mask_NR, returns_NR=None)


ADVANTAGES: dict[str, Estimator] = {"grpo": _grpo}
