"""What a policy loss did to a micro-batch, as shares of the mini-batch's tokens: summed they are its means.

None of it enters the loss.

Axes: B sequences, R response positions.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from miniverl.engine.loss import log_ratio

_SURROGATES = ("vanilla", "clip_cov")
_CLIPPED_RATIOS = ("vanilla", "cispo", "clip_cov")


@torch.no_grad()
def policy_metrics(
    log_probs_BR: Tensor,
    old_log_probs_BR: Tensor,
    advantages_BR: Tensor,
    mask_BR: Tensor,
    name: str,
    arguments: Mapping[str, float],
    *,
    num_tokens: int,
) -> dict[str, Tensor]:
    """`approximate_kl`: mean of old_log_prob - log_prob, for every loss; and of those that clip, what they clip.

    `clip_fraction`: tokens where the clipped term is the larger one (cispo: whose ratio is clipped).
    `dual_clip_fraction` (vanilla): tokens of negative advantage that the dual clip bounds.
    """
    log_ratio_BR = log_ratio(log_probs_BR, old_log_probs_BR)
    found = {"approximate_kl": -log_ratio_BR}
    if name in _CLIPPED_RATIOS:
        found |= _clipping(log_ratio_BR.exp(), advantages_BR, name, arguments)
    return {
        metric: torch.where(mask_BR, value_BR, 0.0).sum() / num_tokens
        for metric, value_BR in found.items()
    }


def _clipping(
    ratio_BR: Tensor, advantages_BR: Tensor, name: str, clips: Mapping[str, float]
) -> Mapping[str, Tensor]:
    clipped_ratio_BR = ratio_BR.clamp(1 - clips["clip_low"], 1 + clips["clip_high"])
    if name not in _SURROGATES:
        return {"clip_fraction": ratio_BR != clipped_ratio_BR}
    unclipped_BR, clipped_BR = -advantages_BR * ratio_BR, -advantages_BR * clipped_ratio_BR
    found = {"clip_fraction": clipped_BR > unclipped_BR}
    if "dual_clip" in clips:
        bound_BR = -advantages_BR * clips["dual_clip"]
        is_beyond_BR = torch.maximum(unclipped_BR, clipped_BR) > bound_BR
        found["dual_clip_fraction"] = is_beyond_BR & (advantages_BR < 0)
    return found
