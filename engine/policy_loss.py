"""The policy losses, each per token; engine/loss.py makes them one number. Pure: tensors and plain numbers in.

A is the advantage, ratio the probability of a token over its probability when it was sampled: exp of
log_prob - old_log_prob, which most losses clamp to [-20, 20] first. `sg` stops the gradient.

Axes: B sequences, R response positions.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from miniverl.engine.algorithm import Aggregation
from miniverl.engine.covariance import select_clip_cov, select_kl_cov
from miniverl.engine.loss import log_ratio

_LARGEST_SEQUENCE_LOG_RATIO = 10.0


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
    ratio_BR = log_ratio(log_probs_BR, old_log_probs_BR).exp()
    larger_BR = clipped_surrogate(ratio_BR, advantages_BR, clip_low, clip_high)
    bounded_BR = torch.minimum(larger_BR, -advantages_BR * dual_clip)
    return torch.where(advantages_BR < 0, bounded_BR, larger_BR)


def gspo(
    log_probs_BR: Tensor,
    old_log_probs_BR: Tensor,
    advantages_BR: Tensor,
    mask_BR: Tensor,
    *,
    clip_low: float,
    clip_high: float,
) -> Tensor:
    """The clipped surrogate with one ratio for the whole response, without dual clip.

        s    = mean over the response of log_prob - old_log_prob
        loss = the clipped surrogate of ratio = exp(min(log_prob - sg(log_prob) + sg(s), 10))

    Paper: arXiv 2507.18071; upstream: verl/trainer/ppo/core_algos.py:1546 (v0.9.0).
    """
    ratio_BR = sequence_ratio(log_probs_BR, old_log_probs_BR, mask_BR)
    return clipped_surrogate(ratio_BR, advantages_BR, clip_low, clip_high)


def sequence_ratio(log_probs_BR: Tensor, old_log_probs_BR: Tensor, mask_BR: Tensor) -> Tensor:
    """The ratio of `gspo`: the response's, with each token's own gradient."""
    inside_BR = torch.where(mask_BR, log_probs_BR - old_log_probs_BR, 0.0).detach()
    sequence_B1 = inside_BR.sum(-1, keepdim=True) / mask_BR.sum(-1, keepdim=True).clamp(min=1)
    log_ratio_BR = log_probs_BR - log_probs_BR.detach() + sequence_B1
    return log_ratio_BR.clamp(max=_LARGEST_SEQUENCE_LOG_RATIO).exp()


def sapo(
    log_probs_BR: Tensor,
    old_log_probs_BR: Tensor,
    advantages_BR: Tensor,
    mask_BR: Tensor,
    *,
    tau_positive: float,
    tau_negative: float,
) -> Tensor:
    """A smooth gate in place of the clip.

        loss = -A sigmoid(tau (ratio - 1)) 4 / tau          tau_positive where A > 0, else tau_negative

    Paper: arXiv 2511.20347; upstream: verl/trainer/ppo/core_algos.py:1622 (v0.9.0).
    """
    ratio_BR = log_ratio(log_probs_BR, old_log_probs_BR).exp()
    positive, negative = (
        advantages_BR.new_tensor(tau_positive),
        advantages_BR.new_tensor(tau_negative),
    )
    tau_BR = torch.where(advantages_BR > 0, positive, negative)
    return -advantages_BR * torch.sigmoid(tau_BR * (ratio_BR - 1)) * (4 / tau_BR)


def gpg(
    log_probs_BR: Tensor, old_log_probs_BR: Tensor, advantages_BR: Tensor, mask_BR: Tensor
) -> Tensor:
    """The plain policy gradient: loss = -A log_prob.

    Paper: arXiv 2504.02546; upstream: verl/trainer/ppo/core_algos.py:1707 (v0.9.0).
    """
    return -log_probs_BR * advantages_BR


def cispo(
    log_probs_BR: Tensor,
    old_log_probs_BR: Tensor,
    advantages_BR: Tensor,
    mask_BR: Tensor,
    *,
    clip_low: float,
    clip_high: float,
) -> Tensor:
    """The policy gradient, weighted by the clipped ratio: every token keeps its gradient.

        loss = -sg(clip(ratio, 1 - clip_low, 1 + clip_high)) A log_prob

    Paper: arXiv 2506.13585; upstream: verl/trainer/ppo/core_algos.py:2047 (v0.9.0).
    """
    ratio_BR = log_ratio(log_probs_BR, old_log_probs_BR).exp().detach()
    return -ratio_BR.clamp(1 - clip_low, 1 + clip_high) * advantages_BR * log_probs_BR


def dppo_tv(
    log_probs_BR: Tensor,
    old_log_probs_BR: Tensor,
    advantages_BR: Tensor,
    mask_BR: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    ratio_cap: float,
) -> Tensor:
    """The weighted policy gradient of tokens whose probability has not moved too far the way A pushes it.

        loss = -A sg(min(ratio, ratio_cap)) log_prob    where p - p_old <= clip_high    (A > 0)
                                                        or    p - p_old >= -clip_low    (A <= 0), else 0

    Paper: arXiv 2602.04879 (binary total variation); upstream: verl/trainer/ppo/core_algos.py:1380 (v0.9.0).
    """
    is_near_BR = is_near_by_tv(log_probs_BR, old_log_probs_BR, advantages_BR, clip_low, clip_high)
    return _trusted(log_probs_BR, old_log_probs_BR, advantages_BR, is_near_BR, ratio_cap)


def is_near_by_tv(
    log_probs_BR: Tensor,
    old_log_probs_BR: Tensor,
    advantages_BR: Tensor,
    clip_low: float,
    clip_high: float,
) -> Tensor:
    """The tokens that `dppo_tv` trains."""
    moved_BR = (log_probs_BR.exp() - old_log_probs_BR.exp()).detach()
    return torch.where(advantages_BR > 0, moved_BR <= clip_high, moved_BR >= -clip_low)


def dppo_kl(
    log_probs_BR: Tensor,
    old_log_probs_BR: Tensor,
    advantages_BR: Tensor,
    mask_BR: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    ratio_cap: float,
) -> Tensor:
    """As `dppo_tv`, its distance the KL between "this token" and "another one", old to new.

        kl = p_old (log p_old - log p) + (1 - p_old) log((1 - p_old + 1e-8) / (1 - p + 1e-8))
        near where kl <= clip_high or p <= p_old    (A > 0),    kl <= clip_low or p >= p_old    (A <= 0)

    Paper: arXiv 2602.04879; upstream: verl/trainer/ppo/core_algos.py:1461 (v0.9.0).
    """
    is_near_BR = is_near_by_kl(log_probs_BR, old_log_probs_BR, advantages_BR, clip_low, clip_high)
    return _trusted(log_probs_BR, old_log_probs_BR, advantages_BR, is_near_BR, ratio_cap)


def is_near_by_kl(
    log_probs_BR: Tensor,
    old_log_probs_BR: Tensor,
    advantages_BR: Tensor,
    clip_low: float,
    clip_high: float,
) -> Tensor:
    """The tokens that `dppo_kl` trains."""
    p_BR, old_p_BR = log_probs_BR.detach().exp(), old_log_probs_BR.exp()
    others_BR = torch.log((1.0 - old_p_BR + 1e-8) / (1.0 - p_BR + 1e-8))
    kl_BR = old_p_BR * (old_log_probs_BR - log_probs_BR.detach()) + (1 - old_p_BR) * others_BR
    return torch.where(
        advantages_BR > 0,
        (kl_BR <= clip_high) | (p_BR <= old_p_BR),
        (kl_BR <= clip_low) | (p_BR >= old_p_BR),
    )


def dro(
    log_probs_BR: Tensor,
    old_log_probs_BR: Tensor,
    advantages_BR: Tensor,
    mask_BR: Tensor,
    *,
    beta: float,
) -> Tensor:
    """The policy gradient with a quadratic pull back: loss = -(A log_prob - beta/2 (log_prob - old_log_prob)^2).

    Paper: arXiv 2405.19107; upstream: verl/trainer/ppo/core_algos.py:2014 (v0.9.0).
    """
    difference_BR = log_probs_BR - old_log_probs_BR
    return -(log_probs_BR * advantages_BR - 0.5 * beta * difference_BR.square())


def geo_mean(
    log_probs_BR: Tensor,
    old_log_probs_BR: Tensor,
    advantages_BR: Tensor,
    mask_BR: Tensor,
    *,
    clip_low: float,
    clip_high: float,
) -> Tensor:
    """GMPO: the geometric mean of the clipped ratios times the mean advantage, on every token of its response.

        x    = sign(A) min(sign(A) d, sign(A) clip(d, -clip_low, clip_high))     d = log_prob - old_log_prob
        loss = -(sum A / (n + 1e-8)) exp(sum x / (n + 1e-8))                     sums over the n tokens

    Upstream takes the mean over a micro-batch's responses, and thereby its loss from how they are cut; ours is
    the mean over the mini-batch's, the same where a mini-batch is one micro-batch.
    Paper: arXiv 2507.20673; upstream: verl/trainer/ppo/core_algos.py:1928 (v0.9.0).
    """
    difference_BR = torch.where(mask_BR, log_probs_BR - old_log_probs_BR, 0.0)
    sign_BR = advantages_BR.sign()
    clipped_BR = difference_BR.clamp(-clip_low, clip_high)
    lower_BR = sign_BR * torch.minimum(sign_BR * difference_BR, sign_BR * clipped_BR)
    lengths_B1 = mask_BR.sum(-1, keepdim=True) + 1e-8
    ratio_B1 = (torch.where(mask_BR, lower_BR, 0.0).sum(-1, keepdim=True) / lengths_B1).exp()
    advantages_B1 = torch.where(mask_BR, advantages_BR, 0.0).sum(-1, keepdim=True) / lengths_B1
    return (-advantages_B1 * ratio_B1).expand_as(log_probs_BR)


def kl_cov(
    log_probs_BR: Tensor,
    old_log_probs_BR: Tensor,
    advantages_BR: Tensor,
    mask_BR: Tensor,
    selected_BR: Tensor,
    *,
    share: float,
    kl_coefficient: float,
) -> Tensor:
    """The unclipped surrogate; the selected tokens pay for leaving the old policy besides.

        loss = -A exp(d) + [selected] kl_coefficient |d|            d = log_prob - old_log_prob

    Paper: arXiv 2505.22617; upstream: verl/trainer/ppo/core_algos.py:1848 (v0.9.0).
    """
    difference_BR = log_probs_BR - old_log_probs_BR
    price_BR = torch.where(selected_BR, kl_coefficient * difference_BR.abs(), 0.0)
    return -advantages_BR * difference_BR.exp() + price_BR


def clip_cov(
    log_probs_BR: Tensor,
    old_log_probs_BR: Tensor,
    advantages_BR: Tensor,
    mask_BR: Tensor,
    selected_BR: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    share: float,
    covariance_low: float,
    covariance_high: float,
) -> Tensor:
    """The clipped surrogate without dual clip, and without the selected tokens.

    Paper: arXiv 2505.22617; upstream: verl/trainer/ppo/core_algos.py:1743 (v0.9.0).
    """
    ratio_BR = (log_probs_BR - old_log_probs_BR).exp()
    loss_BR = clipped_surrogate(ratio_BR, advantages_BR, clip_low, clip_high)
    return torch.where(selected_BR, 0.0, loss_BR)


def clipped_surrogate(
    ratio_BR: Tensor, advantages_BR: Tensor, clip_low: float, clip_high: float
) -> Tensor:
    """max(-A ratio, -A clip(ratio, 1 - clip_low, 1 + clip_high)), of whichever ratio a loss takes."""
    clipped_BR = ratio_BR.clamp(1 - clip_low, 1 + clip_high)
    return torch.maximum(-advantages_BR * ratio_BR, -advantages_BR * clipped_BR)


_MEAN_OF_MEANS = Aggregation(mode="seq-mean-token-mean", horizon=None)


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyLossKind:
    """`per_token(log_probs_BR, old_log_probs_BR, advantages_BR, mask_BR, **arguments)` gives a loss [B, R].

    `aggregation` is the loss's own, whatever the recipe states. `select`, on all trained tokens of a mini-batch
    under the policy as it enters it, names those that `per_token` then gets as `selected_BR`; both get all of the
    loss's arguments. `weighs_responses`: importance weights enter as their geometric mean over the response.
    """

    per_token: Callable[..., Tensor]
    aggregation: Aggregation | None = None
    select: Callable[..., Tensor] | None = None
    weighs_responses: bool = False


POLICY_LOSSES: dict[str, PolicyLossKind] = {
    "vanilla": PolicyLossKind(per_token=vanilla),
    "gspo": PolicyLossKind(per_token=gspo, aggregation=_MEAN_OF_MEANS),
    "sapo": PolicyLossKind(per_token=sapo, aggregation=_MEAN_OF_MEANS),
    "gpg": PolicyLossKind(per_token=gpg),
    "cispo": PolicyLossKind(per_token=cispo),
    "dppo_tv": PolicyLossKind(per_token=dppo_tv),
    "dppo_kl": PolicyLossKind(per_token=dppo_kl),
    "dro": PolicyLossKind(per_token=dro),
    "geo_mean": PolicyLossKind(
        per_token=geo_mean, aggregation=_MEAN_OF_MEANS, weighs_responses=True
    ),
    "kl_cov": PolicyLossKind(per_token=kl_cov, select=select_kl_cov),
    "clip_cov": PolicyLossKind(per_token=clip_cov, select=select_clip_cov),
}


def weighted(
    per_token_BR: Tensor, weights_BR: Tensor, mask_BR: Tensor, kind: PolicyLossKind
) -> Tensor:
    """The loss times the importance weights of rollout correction."""
    if not kind.weighs_responses:
        return per_token_BR * weights_BR
    logs_BR = torch.where(mask_BR, (weights_BR + 1e-10).log(), 0.0)
    lengths_B1 = mask_BR.sum(-1, keepdim=True) + 1e-8
    return per_token_BR * (logs_BR.sum(-1, keepdim=True) / lengths_B1).exp()


def _trusted(
    log_probs_BR: Tensor,
    old_log_probs_BR: Tensor,
    advantages_BR: Tensor,
    is_near_BR: Tensor,
    ratio_cap: float,
) -> Tensor:
    ratio_BR = log_ratio(log_probs_BR, old_log_probs_BR).exp().clamp(max=ratio_cap).detach()
    return -advantages_BR * ratio_BR * log_probs_BR * is_near_BR
