"""What the critic's update minimises: how far its values are from the returns.

Axes: B sequences of a micro-batch, R response positions, T trained tokens of many sequences.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from miniverl.engine.experience import Experience, padded, present
from miniverl.engine.models import Model
from miniverl.engine.packed import pack
from miniverl.engine.recipe import Critic
from miniverl.engine.update import Normalisers, Objective
from miniverl.engine.value import response_values


def value_loss(
    values_BR: Tensor, old_values_BR: Tensor, returns_BR: Tensor, *, clip: float
) -> Tensor:
    """The larger of two squared errors, that of the value and that of the value kept near the old one; per token.

        0.5 max((v - R)^2, (vc - R)^2)          vc = max(min(v, old + clip), old - clip)

    Paper: arXiv 1707.06347 (its code); upstream: verl/trainer/ppo/core_algos.py:2124 (v0.9.0).
    """
    clipped_BR = _clipped(values_BR, old_values_BR, clip)
    return 0.5 * torch.maximum(
        (values_BR - returns_BR).square(), (clipped_BR - returns_BR).square()
    )


def critic_objective(critic: Model, recipe: Critic, members: Sequence[Experience]) -> Objective:
    """The objective of one mini-batch, whose `members` have values and returns."""
    num_trained = sum(int(each.is_trained_R.sum()) for each in members)

    def objective(rows: Sequence[Experience], normalisers: Normalisers) -> Mapping[str, Tensor]:
        packed = pack([each.trajectory for each in rows], critic.device)
        values_P = response_values(critic, packed)

        def gathered(tensors: Sequence[Tensor]) -> Tensor:
            return padded(tensors, critic.device)

        values_BR = gathered(values_P.split(packed.response_lengths))
        old_values_BR = gathered(present([each.values_R for each in rows]))
        returns_BR = gathered(present([each.returns_R for each in rows]))
        mask_BR = gathered([each.is_trained_R for each in rows])
        loss_BR = value_loss(values_BR, old_values_BR, returns_BR, clip=recipe.value_clip)
        return {
            "loss": normalisers.aggregated(loss_BR, mask_BR, recipe.aggregation),
            "clip_fraction": clip_fraction(
                values_BR.detach(),
                old_values_BR,
                returns_BR,
                mask_BR,
                clip=recipe.value_clip,
                num_tokens=num_trained,
            ),
            "value_mean": torch.where(mask_BR, values_BR.detach(), 0.0).sum() / max(num_trained, 1),
        }

    return objective


def clip_fraction(
    values_BR: Tensor,
    old_values_BR: Tensor,
    returns_BR: Tensor,
    mask_BR: Tensor,
    *,
    clip: float,
    num_tokens: int,
) -> Tensor:
    """For how many of the mini-batch's `num_tokens` trained tokens the clipped error is the larger; their share here."""
    clipped_BR = _clipped(values_BR, old_values_BR, clip)
    is_clipped_BR = (clipped_BR - returns_BR).square() > (values_BR - returns_BR).square()
    return (is_clipped_BR & mask_BR).sum() / max(num_tokens, 1)


def value_metrics(experiences: Sequence[Experience]) -> dict[str, float]:
    """How well the values foresaw the returns, over the step's trained tokens.

        explained variance = 1 - var(R - v) / (var(R) + 1e-5)          var of a single token: 0

    Upstream: verl/trainer/ppo/metric_utils.py:532 (v0.9.0).
    """
    is_trained_T = torch.cat([each.is_trained_R for each in experiences])
    values_T = torch.cat(present([each.values_R for each in experiences]))[is_trained_T]
    returns_T = torch.cat(present([each.returns_R for each in experiences]))[is_trained_T]
    if not len(values_T):
        return {}
    correction = int(len(values_T) > 1)
    error = (returns_T - values_T).var(correction=correction)
    return {
        "value_mean": float(values_T.mean()),
        "return_mean": float(returns_T.mean()),
        "value_explained_variance": float(
            1 - error / (returns_T.var(correction=correction) + 1e-5)
        ),
    }


def _clipped(values_BR: Tensor, old_values_BR: Tensor, clip: float) -> Tensor:
    return torch.maximum(torch.minimum(values_BR, old_values_BR + clip), old_values_BR - clip)
