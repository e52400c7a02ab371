"""What a policy loss did to a micro-batch, as shares of the mini-batch's tokens: summed they are its means.

None of it enters the loss.

Axes: B sequences, R response positions.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from miniverl.engine.loss import log_ratio
from miniverl.engine.policy_loss import (
    clipped_surrogate,
    is_near_by_kl,
    is_near_by_tv,
    sequence_ratio,
)


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

    `clip_fraction`: tokens where the clipped term is the larger one (cispo: whose ratio is clipped; dppo: that are
    not trained). `dual_clip_fraction` (vanilla): tokens of negative advantage that the dual clip bounds.
    `cap_fraction` (dppo): trained tokens above the cap of the ratio.
    """
    given = _Given(log_probs_BR, old_log_probs_BR, advantages_BR, mask_BR)
    found = {"approximate_kl": -given.log_ratio_BR}
    if name in _CLIPPED:
        found |= _CLIPPED[name](given, arguments)
    return {
        metric: torch.where(mask_BR, value_BR, 0.0).sum() / num_tokens
        for metric, value_BR in found.items()
    }


@dataclass(frozen=True, slots=True)
class _Given:
    log_probs_BR: Tensor
    old_log_probs_BR: Tensor
    advantages_BR: Tensor
    mask_BR: Tensor

    @property
    def log_ratio_BR(self) -> Tensor:
        return log_ratio(self.log_probs_BR, self.old_log_probs_BR)


Shares = dict[str, Tensor]


def _vanilla(given: _Given, clips: Mapping[str, float]) -> Shares:
    surrogate_BR = clipped_surrogate(
        given.log_ratio_BR.exp(), given.advantages_BR, clips["clip_low"], clips["clip_high"]
    )
    is_beyond_BR = surrogate_BR > -given.advantages_BR * clips["dual_clip"]
    return _surrogate(given, clips) | {
        "dual_clip_fraction": is_beyond_BR & (given.advantages_BR < 0)
    }


def _surrogate(given: _Given, clips: Mapping[str, float]) -> Shares:
    return _held(given.log_ratio_BR.exp(), given.advantages_BR, clips)


def _gspo(given: _Given, clips: Mapping[str, float]) -> Shares:
    ratio_BR = sequence_ratio(given.log_probs_BR, given.old_log_probs_BR, given.mask_BR)
    return _held(ratio_BR, given.advantages_BR, clips)


def _cispo(given: _Given, clips: Mapping[str, float]) -> Shares:
    ratio_BR = given.log_ratio_BR.exp()
    return {"clip_fraction": ratio_BR != _clipped(ratio_BR, clips)}


def _dppo(is_near: Callable[..., Tensor]) -> Callable[[_Given, Mapping[str, float]], Shares]:
    def shares(given: _Given, clips: Mapping[str, float]) -> Shares:
        is_near_BR = is_near(
            given.log_probs_BR,
            given.old_log_probs_BR,
            given.advantages_BR,
            clips["clip_low"],
            clips["clip_high"],
        )
        is_capped_BR = given.log_ratio_BR.exp() > clips["ratio_cap"]
        return {"clip_fraction": ~is_near_BR, "cap_fraction": is_capped_BR & is_near_BR}

    return shares


def _geo_mean(given: _Given, clips: Mapping[str, float]) -> Shares:
    change_BR = given.log_probs_BR - given.old_log_probs_BR
    is_high_BR = (change_BR > clips["clip_high"]) & (given.advantages_BR > 0)
    is_low_BR = (change_BR < -clips["clip_low"]) & (given.advantages_BR < 0)
    return {"clip_fraction": is_high_BR | is_low_BR}


def _held(ratio_BR: Tensor, advantages_BR: Tensor, clips: Mapping[str, float]) -> Shares:
    clipped_BR = -advantages_BR * _clipped(ratio_BR, clips)
    return {"clip_fraction": clipped_BR > -advantages_BR * ratio_BR}


def _clipped(ratio_BR: Tensor, clips: Mapping[str, float]) -> Tensor:
    return ratio_BR.clamp(1 - clips["clip_low"], 1 + clips["clip_high"])


_CLIPPED: Mapping[str, Callable[[_Given, Mapping[str, float]], Shares]] = {
    "vanilla": _vanilla,
    "clip_cov": _surrogate,
    "gspo": _gspo,
    "cispo": _cispo,
    "dppo_tv": _dppo(is_near_by_tv),
    "dppo_kl": _dppo(is_near_by_kl),
    "geo_mean": _geo_mean,
}
