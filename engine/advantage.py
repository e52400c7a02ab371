"""Advantages: how much better a response is than its siblings. Pure functions of rewards and groups.

Axes: N trajectories of the whole step, in any order.
"""

from collections.abc import Callable

import torch
from torch import Tensor

_EPSILON = 1e-6


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


ADVANTAGES: dict[str, Callable[..., Tensor]] = {"grpo": grpo}
