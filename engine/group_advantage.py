"""Advantages of whole responses: one number for each trajectory, from its reward and its siblings'. Pure.

`groups_N` (int64) numbers the groups: equal texts in different rows, and a row that is drawn twice, are
different ones. Members keep the order that they have in the step, and need not stand together.

Axes: N trajectories of the whole step, G members of one group, K groups.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from miniverl.engine.problem import Problem, Refused

_EPSILON = 1e-6


def grpo(rewards_N: Tensor, groups_N: Tensor, *, divide_by_std: bool) -> Tensor:
    """Reward minus the group's mean, divided by the group's standard deviation plus 1e-6.

        A = (r - mean(r of the group)) / (std(r of the group) + 1e-6)       the std with n - 1
        A =  r - mean(r of the group)                                       divide_by_std False: Dr.GRPO

    A group of one has mean 0 and standard deviation 1.
    Papers: arXiv 2402.03300 (GRPO), 2503.20783 (Dr.GRPO);
    upstream: verl/trainer/ppo/core_algos.py:268 (v0.9.0).
    """
    assert rewards_N.shape == groups_N.shape, "one group per reward"
    advantages_N = centred(rewards_N, groups_N)
    if not divide_by_std:
        return advantages_N
    for members_G in _members(groups_N):
        is_alone = len(members_G) == 1
        std = rewards_N.new_tensor(1.0) if is_alone else rewards_N[members_G].std()
        advantages_N[members_G] /= std + _EPSILON
    return advantages_N


def centred(rewards_N: Tensor, groups_N: Tensor) -> Tensor:
    """Reward minus the group's mean; a group of one keeps its reward."""
    advantages_N = rewards_N.clone()
    for members_G in _members(groups_N):
        if len(members_G) > 1:
            advantages_N[members_G] -= rewards_N[members_G].mean()
    return advantages_N


def grpo_vectorized(rewards_N: Tensor, groups_N: Tensor) -> Tensor:
    """GRPO with every group's sums taken at once, always divided by the standard deviation.

        A = (r - mean) / (sqrt(sum((r - mean)^2) / (n - 1)) + 1e-6)

    A group of one has mean 0 and standard deviation 1. Means and standard deviations are float32, whatever the
    rewards are.
    Upstream: verl/trainer/ppo/core_algos.py:335, verl/utils/groupwise.py:164 (v0.9.0).
    """
    _, group_of_N, counts_K = groups_N.unique(return_inverse=True, return_counts=True)
    single_N, zeros_K = rewards_N.float(), torch.zeros(len(counts_K))
    is_alone_K = counts_K == 1
    means_K = zeros_K.index_add(0, group_of_N, single_N) / counts_K
    squares_N = (single_N - means_K[group_of_N]).square()
    variances_K = zeros_K.index_add(0, group_of_N, squares_N) / (counts_K - 1).clamp(min=1)
    means_K = torch.where(is_alone_K, 0.0, means_K)
    stds_K = torch.where(is_alone_K, 1.0, variances_K.sqrt())
    return (rewards_N - means_K[group_of_N]) / (stds_K[group_of_N] + _EPSILON)


def grpo_passk(rewards_N: Tensor, groups_N: Tensor, *, divide_by_std: bool) -> Tensor:
    """Only the best of a group has an advantage: how far it is above the second best.

        A = r_best - r_second          [/ (std(r of the group) + 1e-6) where divide_by_std]      others 0

    Raises Refused where a group has one member. Paper: arXiv 2503.19595;
    upstream: verl/trainer/ppo/core_algos.py:472 (v0.9.0).
    """
    advantages_N = torch.zeros_like(rewards_N)
    for members_G in _members(groups_N):
        if len(members_G) < 2:
            raise Refused([_no_second_best()])
        rewards_G = rewards_N[members_G]
        (best, second), order = rewards_G.topk(2)
        gap = best - second
        advantages_N[members_G[order[0]]] = (
            gap / (rewards_G.std() + _EPSILON) if divide_by_std else gap
        )
    return advantages_N


def rloo(rewards_N: Tensor, groups_N: Tensor) -> Tensor:
    """Reward minus the mean of the *other* members' rewards.

        A = r n / (n - 1) - mean(r of the group) n / (n - 1)          a group of one: A = r

    Paper: arXiv 2402.14740; upstream: verl/trainer/ppo/core_algos.py:588 (v0.9.0).
    """
    advantages_N = rewards_N.clone()
    for members_G in _members(groups_N):
        n = len(members_G)
        if n > 1:
            rewards_G = rewards_N[members_G]
            advantages_N[members_G] = rewards_G * n / (n - 1) - rewards_G.mean() * n / (n - 1)
    return advantages_N


def rloo_vectorized(rewards_N: Tensor, groups_N: Tensor) -> Tensor:
    """RLOO with every group's sum taken at once.

        A = (n r - sum(r of the group)) / (n - 1)                     a group of one: A = 0

    Upstream: verl/trainer/ppo/core_algos.py:834 (v0.9.0).
    """
    _, group_of_N = groups_N.unique(return_inverse=True)
    counts_N = group_of_N.bincount()[group_of_N].to(rewards_N.dtype)
    sums_N = group_of_N.bincount(weights=rewards_N)[group_of_N]
    advantages_N = (counts_N * rewards_N - sums_N) / (counts_N - 1).clamp(min=1)
    return torch.where(counts_N > 1, advantages_N, 0.0)


def opo(rewards_N: Tensor, lengths_N: Tensor, groups_N: Tensor) -> Tensor:
    """Reward minus the group's mean weighted by length, the number of response tokens.

        A = r - sum(length r of the group) / sum(length of the group)         a group of one: A = r

    Where no member of a group has a token, nothing is trained, and its advantages are NaN.
    Paper: arXiv 2505.23585; upstream: verl/trainer/ppo/core_algos.py:640 (v0.9.0).
    """
    advantages_N = rewards_N.clone()
    for members_G in _members(groups_N):
        if len(members_G) > 1:
            lengths_G = lengths_N[members_G]
            advantages_N[members_G] -= (lengths_G * rewards_N[members_G]).sum() / lengths_G.sum()
    return advantages_N


def gpg(rewards_N: Tensor, groups_N: Tensor) -> Tensor:
    """Reward minus the group's mean, scaled up by the share of rewards that are not 0.

        A = N / max(1, count(r != 0)) (r - mean(r of the group))      the count over the whole step

    A group of one has mean 0. Paper: arXiv 2504.02546; upstream: verl/trainer/ppo/core_algos.py:771 (v0.9.0).
    """
    alpha = len(rewards_N) / rewards_N.count_nonzero().clamp(min=1)
    return alpha * centred(rewards_N, groups_N)


def _members(groups_N: Tensor) -> Iterator[Tensor]:
    """The indices of each group's members, in their order."""
    for group in groups_N.unique():
        yield (groups_N == group).nonzero().squeeze(1)


def _no_second_best() -> Problem:
    return Problem(
        field="recipe.rollout.samples_per_prompt",
        value=1,
        origin="the recipe",
        reason="the estimator grpo_passk compares the best response of a prompt with the second best",
        fix="Sample at least 2 responses to a prompt, or take another estimator",
    )
