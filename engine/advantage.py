"""Advantages: how much better a token, or a response, was than expected. Pure functions of a whole step.

Here are the estimators that look at single tokens, and the registry of all of them; group_advantage.py has those
that give one number to a response.

Axes: N trajectories of the whole step, in any order; R response positions.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from miniverl.engine.algorithm import Advantage
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
from miniverl.engine.problem import Problem, Refused


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcomes:
    """What a step's trajectories earned. The reward of a response stands at its last token.

    `mask_NR` (bool) is where there is a response token, and rollout correction keeps it.
    `groups_N` (int64) numbers the groups: a prompt that is drawn twice has two. `values_NR` are the critic's.
    """

    token_rewards_NR: Tensor
    mask_NR: Tensor
    groups_N: Tensor
    values_NR: Tensor | None

    @property
    def rewards_N(self) -> Tensor:
        """Over *all* positions, as upstream sums: the reward counts where its token is rejected, too."""
        return self.token_rewards_NR.sum(-1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """`returns_NR` is what a critic learns; of an estimator that gives one number to a response, its advantages."""

    advantages_NR: Tensor
    returns_NR: Tensor


EstimatorFunction = Callable[[Outcomes, Advantage], Estimate]


def gae(
    token_rewards_NR: Tensor,
    values_NR: Tensor,
    mask_NR: Tensor,
    *,
    gamma: float,
    gae_lambda: float,
) -> Estimate:
    """Generalised advantages against a critic's values, whitened over the step's tokens.

        delta_t = r_t + gamma V_next - V_t              next: the response token to the right; 0 after the last
        A_t     = delta_t + gamma gae_lambda A_next
        returns = A + V                                 advantages = whitened(A)

    A position outside the mask takes the A to its right, and its reward and value count for nothing.
    Paper: arXiv 1506.02438; upstream: verl/trainer/ppo/core_algos.py:216 (v0.9.0).
    """
    next_values_N = next_advantages_N = torch.zeros_like(values_NR[:, 0])
    advantages_NR = torch.empty_like(values_NR)
    for position in reversed(range(values_NR.shape[1])):
        is_inside_N, values_N = mask_NR[:, position], values_NR[:, position]
        deltas_N = token_rewards_NR[:, position] + gamma * next_values_N - values_N
        advantages_N = deltas_N + gamma * gae_lambda * next_advantages_N
        next_values_N = torch.where(is_inside_N, values_N, next_values_N)
        next_advantages_N = torch.where(is_inside_N, advantages_N, next_advantages_N)
        advantages_NR[:, position] = next_advantages_N
    return Estimate(
        advantages_NR=whitened(advantages_NR, mask_NR), returns_NR=advantages_NR + values_NR
    )


def reinforce_plus_plus(token_rewards_NR: Tensor, mask_NR: Tensor, *, gamma: float) -> Estimate:
    """Discounted return from each token on, whitened over the step's tokens.

        R_t = r_t + gamma R_next             next: the response token to the right; 0 after the last
        A   = whitened(R)                    both 0 outside the mask, whose rewards count for nothing

    Paper: arXiv 2501.03262; upstream: verl/trainer/ppo/core_algos.py:694 (v0.9.0).
    """
    next_returns_N = torch.zeros_like(token_rewards_NR[:, 0])
    returns_NR = torch.zeros_like(token_rewards_NR)
    for position in reversed(range(token_rewards_NR.shape[1])):
        is_inside_N = mask_NR[:, position]
        returns_N = token_rewards_NR[:, position] + gamma * next_returns_N
        next_returns_N = torch.where(is_inside_N, returns_N, next_returns_N)
        returns_NR[:, position] = torch.where(is_inside_N, returns_N, 0.0)
    return Estimate(
        advantages_NR=torch.where(mask_NR, whitened(returns_NR, mask_NR), 0.0),
        returns_NR=returns_NR,
    )


def reinforce_plus_plus_baseline(rewards_N: Tensor, groups_N: Tensor, mask_NR: Tensor) -> Estimate:
    """The reward minus the group's mean, on every response token, whitened over the step's tokens.

        A = whitened(r - mean(r of the group))            0 outside the mask; a group of one has mean 0

    Paper: arXiv 2501.03262; upstream: verl/trainer/ppo/core_algos.py:536 (v0.9.0).
    """
    centred_NR = _on_every_token(centred(rewards_N, groups_N), mask_NR)
    advantages_NR = torch.where(mask_NR, whitened(centred_NR, mask_NR), 0.0)
    return Estimate(advantages_NR=advantages_NR, returns_NR=advantages_NR)


def whitened(values_NR: Tensor, mask_NR: Tensor) -> Tensor:
    """Values of mean 0 and variance 1 over the mask; outside of it they are shifted and scaled the same way.

        mean     = sum(x) / (n + 1e-8)                            n: tokens of the whole step
        variance = sum((x - mean)^2) / (n + 1e-8) n / (n - 1)
        (x - mean) / sqrt(variance + 1e-8)

    Raises Refused where the mask has fewer than two tokens.
    Upstream: verl/utils/torch_functional.py:329 (v0.9.0).
    """
    num_tokens = mask_NR.sum().to(values_NR.dtype)
    if num_tokens < 2:
        raise Refused([_too_few_tokens(int(num_tokens))])
    mean = torch.where(mask_NR, values_NR, 0.0).sum() / (num_tokens + 1e-8)
    squares_NR = torch.where(mask_NR, (values_NR - mean).square(), 0.0)
    variance = squares_NR.sum() / (num_tokens + 1e-8) * (num_tokens / (num_tokens - 1))
    return (values_NR - mean) * torch.rsqrt(variance + 1e-8)


def _gae(outcomes: Outcomes, advantage: Advantage) -> Estimate:
    assert outcomes.values_NR is not None, "a recipe with gae has a critic"
    assert advantage.gamma is not None
    assert advantage.gae_lambda is not None
    return gae(
        outcomes.token_rewards_NR,
        outcomes.values_NR,
        outcomes.mask_NR,
        gamma=advantage.gamma,
        gae_lambda=advantage.gae_lambda,
    )


def _reinforce_plus_plus(outcomes: Outcomes, advantage: Advantage) -> Estimate:
    assert advantage.gamma is not None
    return reinforce_plus_plus(outcomes.token_rewards_NR, outcomes.mask_NR, gamma=advantage.gamma)


def _of_responses(
    advantages: Callable[[Outcomes, Advantage], Tensor],
) -> EstimatorFunction:
    """The estimator that gives every response token of a trajectory its trajectory's number."""

    def estimate(outcomes: Outcomes, advantage: Advantage) -> Estimate:
        advantages_NR = _on_every_token(advantages(outcomes, advantage), outcomes.mask_NR)
        return Estimate(advantages_NR=advantages_NR, returns_NR=advantages_NR)

    return estimate


def _on_every_token(advantages_N: Tensor, mask_NR: Tensor) -> Tensor:
    return torch.where(mask_NR, advantages_N[:, None], 0.0)


ADVANTAGES: dict[str, EstimatorFunction] = {
    "gae": _gae,
    "reinforce_plus_plus": _reinforce_plus_plus,
    "reinforce_plus_plus_baseline": lambda given, _: reinforce_plus_plus_baseline(
        given.rewards_N, given.groups_N, given.mask_NR
    ),
    "grpo": _of_responses(
        lambda given, part: grpo(
            given.rewards_N, given.groups_N, divide_by_std=bool(part.divides_by_std)
        )
    ),
    "grpo_passk": _of_responses(
        lambda given, part: grpo_passk(
            given.rewards_N, given.groups_N, divide_by_std=bool(part.divides_by_std)
        )
    ),
    "grpo_vectorized": _of_responses(
        lambda given, _: grpo_vectorized(given.rewards_N, given.groups_N)
    ),
    "rloo": _of_responses(lambda given, _: rloo(given.rewards_N, given.groups_N)),
    "rloo_vectorized": _of_responses(
        lambda given, _: rloo_vectorized(given.rewards_N, given.groups_N)
    ),
    "opo": _of_responses(
        lambda given, _: opo(given.rewards_N, given.mask_NR.sum(-1), given.groups_N)
    ),
    "gpg": _of_responses(lambda given, _: gpg(given.rewards_N, given.groups_N)),
}


def _too_few_tokens(num_tokens: int) -> Problem:
    return Problem(
        field="tokens that the step trains",
        value=num_tokens,
        origin="the responses of this step",
        reason="the estimator divides by the variance of its numbers, which takes two tokens",
        fix="Sample more or longer responses, or reject fewer of their tokens",
    )
