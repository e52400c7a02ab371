"""Losses per token, and how they become one number. Pure: tensors and plain numbers in, tensors out.

Every normaliser belongs to the whole mini-batch, never to the micro-batch at hand: the losses of its
micro-batches *add up* to the loss of the mini-batch, however it is cut. What lies outside the mask may be
anything, NaN included, and reaches neither the loss nor the gradient of what lies inside.

Axes: B sequences, R response positions.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from miniverl.engine.recipe import Aggregation, AggregationMode, KlEstimator, PolicyLoss

_LARGEST_LOG_RATIO = 20.0  # exp(20) is still far from the largest float32
_LARGEST_K3 = 10.0


def vanilla(
    log_probs_BR: Tensor,
    old_log_probs_BR: Tensor,
    advantages_BR: Tensor,
    mask_BR: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float,
) -> Tensor:
    """The clipped surrogate of PPO with dual clip, per token.

        ratio = exp(clamp(log_prob - old_log_prob, -20, 20))
        loss  = max(-A ratio, -A clip(ratio, 1 - clip_low, 1 + clip_high))
        loss  = min(loss, -A dual_clip)                                       where A < 0

    Papers: arXiv 1707.06347 (PPO), 1912.09729 (dual clip, `dual_clip` > 1);
    upstream: verl/trainer/ppo/core_algos.py:1286 (v0.9.0).
    """
    unclipped_BR, clipped_BR, bound_BR = _surrogates(
        log_probs_BR, old_log_probs_BR, advantages_BR, clip_low, clip_high, dual_clip
    )
    larger_BR = torch.maximum(unclipped_BR, clipped_BR)
    return torch.where(advantages_BR < 0, torch.minimum(larger_BR, bound_BR), larger_BR)


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyLossKind:
    """`per_token(log_probs_BR, old_log_probs_BR, advantages_BR, mask_BR, **arguments)` gives a loss [B, R].

    `aggregation` is the loss's own, whatever the recipe states.
    """

    per_token: Callable[..., Tensor]
    aggregation: Aggregation | None = None


POLICY_LOSSES: dict[str, PolicyLossKind] = {"vanilla": PolicyLossKind(per_token=vanilla)}


def kl_estimate(
    log_probs_BR: Tensor, reference_log_probs_BR: Tensor, estimator: KlEstimator
) -> Tensor:
    """KL(policy || reference) per token, estimated from the sampled token; d = log_prob - reference.

        k1 = d,  abs = |d|,  k2 = d^2 / 2,  k3 = exp(-d) + d - 1  with d in [-20, 20] and k3 in [-10, 10]

    An estimator ending in `+` has that value and the gradient of k2, which is the gradient of the KL.
    Source: http://joschu.net/blog/kl-approx.html;
    upstream: verl/trainer/ppo/core_algos.py:2187 (v0.9.0).
    """
    difference_BR = log_probs_BR - reference_log_probs_BR
    value_BR = _KL_ESTIMATES[estimator.removesuffix("+")](difference_BR)
    if not estimator.endswith("+"):
        return value_BR
    squared_BR = 0.5 * difference_BR.square()
    return squared_BR - squared_BR.detach() + value_BR.detach()


def aggregate(
    values_BR: Tensor,
    mask_BR: Tensor,
    *,
    mode: AggregationMode,
    num_tokens: int,
    num_sequences: int,
    horizon: int | None,
) -> Tensor:
    """One number from the values inside `mask_BR` (bool); this micro-batch's share of the mini-batch's.

        token-mean               sum / num_tokens                       num_tokens: mask of the mini-batch
        token-sum                sum
        seq-mean-token-sum       sum / num_sequences                    num_sequences: of the mini-batch,
        seq-mean-token-mean      sum of the row means / num_sequences   rows with an empty mask included
        seq-mean-token-sum-norm  sum / num_sequences / horizon

    Upstream: verl/trainer/ppo/core_algos.py:1140 (v0.9.0), with every global normaliser given.
    """
    inside_BR = torch.where(mask_BR, values_BR, 0.0)
    if mode == "token-sum":
        return inside_BR.sum()
    if mode == "token-mean":
        return inside_BR.sum() / num_tokens
    if mode == "seq-mean-token-mean":
        lengths_B = mask_BR.sum(-1).clamp(min=1)
        return (inside_BR.sum(-1) / lengths_B).sum() / num_sequences
    if mode == "seq-mean-token-sum":
        return inside_BR.sum() / num_sequences
    assert horizon is not None, "seq-mean-token-sum-norm without a horizon"
    return inside_BR.sum() / num_sequences / horizon


def policy_metrics(
    log_probs_BR: Tensor,
    old_log_probs_BR: Tensor,
    advantages_BR: Tensor,
    mask_BR: Tensor,
    policy_loss: PolicyLoss,
    *,
    num_tokens: int,
) -> dict[str, Tensor]:
    """What the update did, as shares of the mini-batch's tokens: summed over its micro-batches they are means."""
    shares = {"approximate_kl": -_log_ratio(log_probs_BR, old_log_probs_BR)}
    if policy_loss.name == "vanilla":
        return vanilla_metrics(
            log_probs_BR,
            old_log_probs_BR,
            advantages_BR,
            mask_BR,
            **policy_loss.arguments,
            num_tokens=num_tokens,
        )
    return {
        name: torch.where(mask_BR, value_BR, 0.0).sum() / num_tokens
        for name, value_BR in shares.items()
    }


@torch.no_grad()
def vanilla_metrics(
    log_probs_BR: Tensor,
    old_log_probs_BR: Tensor,
    advantages_BR: Tensor,
    mask_BR: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float,
    num_tokens: int,
) -> dict[str, Tensor]:
    """What the clipping did, as shares of the mini-batch's tokens: summed over its micro-batches they are means.

    `clip_fraction`: tokens where the clipped term is the larger one. `dual_clip_fraction`: tokens of negative
    advantage that the dual clip bounds. `approximate_kl`: mean of old_log_prob - log_prob.
    """
    unclipped_BR, clipped_BR, bound_BR = _surrogates(
        log_probs_BR, old_log_probs_BR, advantages_BR, clip_low, clip_high, dual_clip
    )
    is_bounded_BR = (torch.maximum(unclipped_BR, clipped_BR) > bound_BR) & (advantages_BR < 0)
    shares = {
        "clip_fraction": clipped_BR > unclipped_BR,
        "dual_clip_fraction": is_bounded_BR,
        "approximate_kl": -_log_ratio(log_probs_BR, old_log_probs_BR),
    }
    return {
        name: torch.where(mask_BR, value_BR, 0.0).sum() / num_tokens
        for name, value_BR in shares.items()
    }


def _surrogates(
    log_probs_BR: Tensor,
    old_log_probs_BR: Tensor,
    advantages_BR: Tensor,
    clip_low: float,
    clip_high: float,
    dual_clip: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The unclipped loss, the clipped loss, and the bound of the dual clip."""
    ratio_BR = _log_ratio(log_probs_BR, old_log_probs_BR).exp()
    clipped_ratio_BR = ratio_BR.clamp(1 - clip_low, 1 + clip_high)
    return -advantages_BR * ratio_BR, -advantages_BR * clipped_ratio_BR, -advantages_BR * dual_clip


def _log_ratio(log_probs_BR: Tensor, old_log_probs_BR: Tensor) -> Tensor:
    return (log_probs_BR - old_log_probs_BR).clamp(-_LARGEST_LOG_RATIO, _LARGEST_LOG_RATIO)


def _k3(difference_BR: Tensor) -> Tensor:
    negated_BR = (-difference_BR).clamp(-_LARGEST_LOG_RATIO, _LARGEST_LOG_RATIO)
    return (negated_BR.exp() - negated_BR - 1).clamp(-_LARGEST_K3, _LARGEST_K3)


_KL_ESTIMATES: dict[str, Callable[[Tensor], Tensor]] = {
    "k1": lambda difference_BR: difference_BR,
    "abs": Tensor.abs,
    "k2": lambda difference_BR: 0.5 * difference_BR.square(),
    "k3": _k3,
}
