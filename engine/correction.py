"""Rollout correction: what is done about the sampler not being the policy that is trained.

The sampler draws from its own distribution (filtered by top-k and top-p, in another precision). With
r = old_log_prob - sampled_log_prob of each token, importance weights bring its loss to what the policy expects, and
rejections mask the tokens or responses that are too far off. Pure: tensors and the recipe's part in, tensors out.

Axes: N sequences of the step, R response positions.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from miniverl.engine.algorithm import ImportanceWeights, Rejection, RolloutCorrection
from miniverl.engine.problem import Problem, Refused

_LARGEST_LOG_RATIO = 20.0
_SMALL = 1e-8


@dataclass(frozen=True, kw_only=True, slots=True)
class Correction:
    """`weights_NR`: what the loss of each token is multiplied with; 0 outside the mask. `mask_NR`: what is trained."""

    weights_NR: Tensor | None
    mask_NR: Tensor
    metrics: dict[str, float]


@torch.no_grad()
def correct(
    sampled_log_probs_NR: Tensor,
    old_log_probs_NR: Tensor,
    mask_NR: Tensor,
    recipe: RolloutCorrection,
) -> Correction:
    """Weights and mask of a step, from the sampler's (filtered) and the policy's log-probs inside `mask_NR` (bool).

    Both come from the mask as it was: a rejected token still counts where weights are normalised. Raises
    Refused where there is no token at all.
    Upstream: verl/trainer/ppo/rollout_corr_helper.py:786 (v0.9.0).
    """
    if not mask_NR.any():
        raise Refused([_nothing_sampled(len(mask_NR))])
    log_ratios_NR = old_log_probs_NR - sampled_log_probs_NR
    metrics = _mismatch(log_ratios_NR, mask_NR)
    weights_NR = None
    if recipe.importance_weights is not None:
        weights_NR, numbers = importance_weights(log_ratios_NR, mask_NR, recipe.importance_weights)
        metrics |= numbers
    kept_NR = mask_NR
    for rejection in recipe.rejections:
        passes_NR = is_within(log_ratios_NR, mask_NR, rejection)
        metrics |= _rejected(rejection.statistic, mask_NR & ~passes_NR, mask_NR)
        kept_NR = kept_NR & passes_NR
    if recipe.rejections:
        metrics |= _rejected("any", mask_NR & ~kept_NR, mask_NR)
    return Correction(weights_NR=weights_NR, mask_NR=kept_NR, metrics=metrics)


def importance_weights(
    log_ratios_NR: Tensor, mask_NR: Tensor, recipe: ImportanceWeights
) -> tuple[Tensor, dict[str, float]]:
    """The weight of each token, and numbers about the weights.

        token     w = exp(clamp(r, -20, 20))
        sequence  w = exp(clamp(sum of r over the response, -20, 20)) for each of its tokens

    then min(w, upper); with `lower` instead (IcePop): w where lower <= w <= upper, else 0. Normalised: divided by
    the mean over tokens, or over responses that have any, where that is above 1e-8.
    Upstream: verl/trainer/ppo/rollout_corr_helper.py:522 (v0.9.0).
    """
    exponents_NR = log_ratios_NR
    if recipe.level == "sequence":
        exponents_NR = _sums(log_ratios_NR, mask_NR)[:, None].expand_as(log_ratios_NR)
    ratios_NR = torch.where(mask_NR, _bounded(exponents_NR).exp(), 0.0)
    if recipe.lower is None:
        weights_NR = ratios_NR.clamp(max=recipe.upper)
    else:
        is_between_NR = (ratios_NR >= recipe.lower) & (ratios_NR <= recipe.upper)
        weights_NR = torch.where(is_between_NR, ratios_NR, 0.0)
    numbers = _weight_metrics(weights_NR, ratios_NR, mask_NR, recipe)
    if recipe.is_batch_normalized:
        mean = float(_mean_weight(weights_NR, mask_NR, recipe))
        weights_NR = weights_NR / mean if mean > _SMALL else weights_NR
    return weights_NR, numbers


def is_within(log_ratios_NR: Tensor, mask_NR: Tensor, rejection: Rejection) -> Tensor:
    """Where the rejection's statistic stays within its bounds; bool [N, R], meaningful inside the mask.

    With d = clamp(r, -20, 20), a token's k1 = -d, k2 = d^2 / 2, k3 = exp(d) - 1 - d. A response's is their sum, mean or
    maximum, for each of its tokens. k1 lies within log(lower) and log(upper), k2 and k3 reach `upper` at most.
    Upstream: verl/trainer/ppo/rollout_corr_helper.py:197 (v0.9.0).
    """
    level, _, estimator = rejection.statistic.rpartition("_")
    statistic_NR = _ESTIMATES[estimator](_bounded(log_ratios_NR))
    if level != "token":
        of_response_N = _OVER_RESPONSE[level](statistic_NR, mask_NR)
        statistic_NR = of_response_N[:, None].expand_as(log_ratios_NR)
    if estimator != "k1":
        return statistic_NR <= rejection.upper
    assert rejection.lower is not None, "a recipe whose rejection by k1 has no lower bound"
    is_above_NR = statistic_NR >= math.log(rejection.lower)
    return is_above_NR & (statistic_NR <= math.log(rejection.upper))


def _sums(values_NR: Tensor, mask_NR: Tensor) -> Tensor:
    return torch.where(mask_NR, values_NR, 0.0).sum(-1)


def _means(values_NR: Tensor, mask_NR: Tensor) -> Tensor:
    return _sums(values_NR, mask_NR) / (mask_NR.sum(-1) + _SMALL)


def _maxima(values_NR: Tensor, mask_NR: Tensor) -> Tensor:
    """0 for an empty response."""
    maxima_N = values_NR.masked_fill(~mask_NR, -torch.inf).amax(-1)
    return torch.where(maxima_N == -torch.inf, 0.0, maxima_N)


_OVER_RESPONSE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "seq_sum": _sums,
    "seq_mean": _means,
    "seq_max": _maxima,
}
_ESTIMATES: dict[str, Callable[[Tensor], Tensor]] = {
    "k1": torch.neg,
    "k2": lambda ratios_NR: 0.5 * ratios_NR**2,
    "k3": lambda ratios_NR: ratios_NR.exp() - 1.0 - ratios_NR,
}


def _bounded(log_ratios_NR: Tensor) -> Tensor:
    return log_ratios_NR.clamp(-_LARGEST_LOG_RATIO, _LARGEST_LOG_RATIO)


def _mean_weight(weights_NR: Tensor, mask_NR: Tensor, recipe: ImportanceWeights) -> Tensor:
    if recipe.level == "token":
        return _mean(weights_NR, mask_NR)
    # Every token of a response has its weight, so the mean over them is that of the response.
    return _means(weights_NR, mask_NR).sum() / mask_NR.any(-1).sum()


def _mean(values_NR: Tensor, mask_NR: Tensor) -> Tensor:
    """Over all tokens."""
    return torch.where(mask_NR, values_NR, 0.0).sum() / (mask_NR.sum() + _SMALL)


def _mismatch(log_ratios_NR: Tensor, mask_NR: Tensor) -> dict[str, float]:
    """How far the sampler is from the policy: two estimates of KL(sampler || policy), chi^2, the largest ratio.

    Upstream: verl/trainer/ppo/rollout_corr_helper.py:904 (v0.9.0).
    """
    bounded_NR = _bounded(log_ratios_NR)
    return {
        "correction_kl": float(_mean(-log_ratios_NR, mask_NR)),
        "correction_k3": float(_mean(log_ratios_NR.exp() - log_ratios_NR - 1, mask_NR)),
        "correction_chi2": float(_mean(bounded_NR.exp().square(), mask_NR) - 1.0),
        "correction_max_ratio": float(bounded_NR[mask_NR].max().exp()),
    }


def _weight_metrics(
    weights_NR: Tensor, ratios_NR: Tensor, mask_NR: Tensor, recipe: ImportanceWeights
) -> dict[str, float]:
    """Over tokens, before the normalisation. Without `lower`, low is below 1 / upper.

    `effective_share`: 1 / mean of (w / mean(w))^2, the share of tokens that equal weights would need.
    Upstream: verl/trainer/ppo/rollout_corr_helper.py:660 (v0.9.0).
    """
    lower = 1.0 / recipe.upper if recipe.lower is None else recipe.lower
    relative_NR = weights_NR / (_mean(weights_NR, mask_NR) + _SMALL)
    squares = float(_mean(relative_NR.square(), mask_NR))
    return {
        "correction_weight_mean": float(_mean(weights_NR, mask_NR)),
        "correction_weight_high_share": float(_mean((ratios_NR > recipe.upper).float(), mask_NR)),
        "correction_weight_low_share": float(_mean((ratios_NR < lower).float(), mask_NR)),
        "correction_weight_effective_share": 1.0 / squares if squares else 0.0,
    }


def _rejected(name: str, is_rejected_NR: Tensor, mask_NR: Tensor) -> dict[str, float]:
    """Shares of tokens, and of responses that lose any (of all responses, empty ones among them)."""
    return {
        f"correction_rejected_tokens_{name}": float(_mean(is_rejected_NR.float(), mask_NR)),
        f"correction_rejected_responses_{name}": float(is_rejected_NR.any(-1).float().mean()),
    }


def _nothing_sampled(num_sequences: int) -> Problem:
    return Problem(
        field="rollout",
        value=f"{num_sequences} responses",
        origin="training",
        reason="none of them has a token, so there is nothing that rollout correction could weigh",
        fix="Train on prompts that the policy answers, or set recipe.rollout.ignores_eos",
    )
