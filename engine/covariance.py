"""The tokens that kl_cov and clip_cov treat apart: those whose log-probability and advantage rise together.

    covariance = (A - mean A) (log_prob - mean log_prob)

They are selected once for a mini-batch, by the policy as it enters it; upstream selects in every micro-batch, which
is the same where there is one. Paper: arXiv 2505.22617.

Axes: T the trained tokens of a whole mini-batch.
"""

import torch
from torch import Tensor


def select_kl_cov(
    log_probs_T: Tensor,
    old_log_probs_T: Tensor,
    advantages_T: Tensor,
    generator: torch.Generator,
    *,
    share: float,
    kl_coefficient: float,
) -> Tensor:
    """The `share` of tokens, at least one, whose covariance is the largest; bool [T]."""
    covariance_T = (advantages_T - advantages_T.mean()) * (log_probs_T - log_probs_T.mean())
    order_T = covariance_T.argsort(descending=True, stable=True)
    return _marked(order_T[: max(1, int(len(order_T) * share))], len(order_T))


def select_clip_cov(
    log_probs_T: Tensor,
    old_log_probs_T: Tensor,
    advantages_T: Tensor,
    generator: torch.Generator,
    *,
    clip_low: float,
    clip_high: float,
    share: float,
    covariance_low: float,
    covariance_high: float,
) -> Tensor:
    """As many as `share` of the tokens, drawn from those whose covariance lies between the bounds; bool [T].

    Those that the surrogate clips already are not among them.
    """
    ratio_T = (log_probs_T - old_log_probs_T).exp()
    clipped_T = -advantages_T * ratio_T.clamp(1 - clip_low, 1 + clip_high)
    covariance_T = (advantages_T - _mean(advantages_T)) * (log_probs_T - _mean(log_probs_T))
    is_candidate_T = (covariance_T > covariance_low) & (covariance_T < covariance_high)
    (candidates,) = torch.nonzero(
        is_candidate_T & ~(clipped_T > -advantages_T * ratio_T), as_tuple=True
    )
    drawn = torch.randperm(len(candidates), generator=generator)[
        : max(1, int(len(ratio_T) * share))
    ]
    return _marked(candidates[drawn], len(ratio_T))


def _mean(values_T: Tensor) -> Tensor:
    """Upstream's mean over a mask, which clip_cov takes where kl_cov takes a plain one."""
    return values_T.sum() / (len(values_T) + 1e-8)


def _marked(indices: Tensor, length: int) -> Tensor:
    return torch.zeros(length, dtype=torch.bool).index_fill(0, indices, True)
