"""Losses per token, and how they become one number. Pure: tensors and plain numbers in, tensors out.

Every normaliser belongs to the whole mini-batch, never to the micro-batch at hand: the losses of its
micro-batches *add up* to the loss of the mini-batch, however it is cut. What lies outside the mask may be
anything, NaN included, and reaches neither the loss nor the gradient of what lies inside.

Axes: B sequences, R response positions.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from miniverl.engine.algorithm import AggregationMode, KlEstimator

_LARGEST_LOG_RATIO = 20.0  # exp(20) is still far from the largest float32
_LARGEST_K3 = 10.0


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
    sums_B = inside_BR.sum(-1)
    if mode == "seq-mean-token-mean":
        lengths_B = mask_BR.sum(-1).clamp(min=1)
        return (sums_B / lengths_B).sum() / num_sequences
    if mode == "seq-mean-token-sum":
        return sums_B.sum() / num_sequences
    assert horizon is not None, "seq-mean-token-sum-norm without a horizon"
    return sums_B.sum() / num_sequences / horizon


def log_ratio(log_probs_BR: Tensor, old_log_probs_BR: Tensor) -> Tensor:
    """log_prob - old_log_prob, held within -20 and 20."""
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
