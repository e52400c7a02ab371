"""What the policy's update minimises: its loss, less the entropy, plus KL to the reference.

Axes: B sequences of a micro-batch, R response positions, P response tokens of all of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from miniverl.engine.experience import Experience, padded, present
from miniverl.engine.forward import pack
from miniverl.engine.loss import POLICY_LOSSES, kl_estimate, policy_metrics
from miniverl.engine.models import Model
from miniverl.engine.recipe import Recipe
from miniverl.engine.score import response_scores
from miniverl.engine.update import Normalisers, Objective


def policy_objective(policy: Model, recipe: Recipe, members: Sequence[Experience]) -> Objective:
    """The objective of one mini-batch, whose experiences are `members`."""

    def objective(rows: Sequence[Experience], normalisers: Normalisers) -> Mapping[str, Tensor]:
        batch = _scored(policy, recipe, rows)
        parts = _parts(batch, recipe, normalisers)
        return (
            {"loss": _total(parts, recipe)}
            | parts
            | policy_metrics(
                batch.log_probs_BR,
                batch.old_log_probs_BR,
                batch.advantages_BR,
                batch.mask_BR,
                recipe.policy_loss,
                num_tokens=normalisers.num_tokens,
            )
        )

    return objective


@dataclass(frozen=True, kw_only=True, slots=True)
class _Batch:
    """A micro-batch as the losses see it; only the first two have gradients."""

    log_probs_BR: Tensor
    entropy_BR: Tensor
    mask_BR: Tensor
    old_log_probs_BR: Tensor
    advantages_BR: Tensor
    reference_log_probs_BR: Tensor | None
    importance_weights_BR: Tensor | None


def _scored(policy: Model, recipe: Recipe, rows: Sequence[Experience]) -> _Batch:
    packed = pack([each.trajectory for each in rows], policy.device)
    log_probs_P, entropy_P = response_scores(
        policy,
        packed,
        temperature=recipe.rollout.temperature,
        with_entropy=recipe.policy_loss.entropy_coefficient != 0,
    )

    def gathered(tensors: Sequence[Tensor]) -> Tensor:
        return padded(tensors, policy.device)

    return _Batch(
        log_probs_BR=gathered(log_probs_P.split(packed.response_lengths)),
        entropy_BR=gathered(entropy_P.split(packed.response_lengths)),
        mask_BR=gathered([each.is_trained_R for each in rows]),
        old_log_probs_BR=gathered([each.old_log_probs_R for each in rows]),
        advantages_BR=gathered([each.advantages_R for each in rows]),
        reference_log_probs_BR=None
        if recipe.kl_loss is None
        else gathered(present([each.reference_log_probs_R for each in rows])),
        importance_weights_BR=None
        if rows[0].importance_weights_R is None
        else gathered(present([each.importance_weights_R for each in rows])),
    )


def _parts(batch: _Batch, recipe: Recipe, normalisers: Normalisers) -> dict[str, Tensor]:
    """Each term of the loss, aggregated; the entropy and the KL only where they are part of it."""
    wanted = recipe.policy_loss
    kind = POLICY_LOSSES[wanted.name]
    per_token_BR = kind.per_token(
        batch.log_probs_BR,
        batch.old_log_probs_BR,
        batch.advantages_BR,
        batch.mask_BR,
        **wanted.arguments,
    )
    if batch.importance_weights_BR is not None:
        per_token_BR = per_token_BR * batch.importance_weights_BR
    own = kind.aggregation or wanted.aggregation
    parts = {"policy_loss": normalisers.aggregated(per_token_BR, batch.mask_BR, own)}
    if wanted.entropy_coefficient != 0:
        parts["entropy_bonus"] = normalisers.aggregated(
            batch.entropy_BR, batch.mask_BR, wanted.aggregation
        )
    if recipe.kl_loss is not None:
        assert batch.reference_log_probs_BR is not None
        kl_BR = kl_estimate(
            batch.log_probs_BR, batch.reference_log_probs_BR, recipe.kl_loss.estimator
        )
        parts["kl_loss"] = normalisers.aggregated(kl_BR, batch.mask_BR, wanted.aggregation)
    return parts


def _total(parts: Mapping[str, Tensor], recipe: Recipe) -> Tensor:
    """policy_loss - entropy_coefficient * entropy_bonus + kl coefficient * kl_loss."""
    loss = parts["policy_loss"]
    if "entropy_bonus" in parts:
        loss = loss - recipe.policy_loss.entropy_coefficient * parts["entropy_bonus"]
    if recipe.kl_loss is not None:
        loss = loss + recipe.kl_loss.coefficient * parts["kl_loss"]
    return loss
