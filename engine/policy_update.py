"""What the policy's update minimises: its loss, less the entropy, plus KL to the reference and to its teachers.

Axes: B sequences of a micro-batch, R response positions, P response tokens of all of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import count

import torch
from torch import Tensor

from miniverl.engine import distillation
from miniverl.engine.distillation import Compared, uses_task_rewards
from miniverl.engine.experience import Experience, padded, present
from miniverl.engine.loss import kl_estimate
from miniverl.engine.models import Model
from miniverl.engine.packed import pack
from miniverl.engine.policy_loss import POLICY_LOSSES, weighted
from miniverl.engine.policy_metrics import policy_metrics
from miniverl.engine.problem import Refused, diverged
from miniverl.engine.recipe import Recipe
from miniverl.engine.score import Entropy, response_scores, response_scores_at, score
from miniverl.engine.seeds import generator
from miniverl.engine.update import Normalisers, Objective


class PolicyObjectives:
    """Gives the objective of each mini-batch of a step, asked in their order.

    Where an experience comes without old log-probs, the policy's own are taken as it is trained: they are those
    before the step's only optimizer step.
    """

    def __init__(self, policy: Model, recipe: Recipe, *, step: int) -> None:
        self._policy = policy
        self._recipe = recipe
        self._step = step
        self._numbers = count()
        self._scores: dict[int, tuple[Tensor, Tensor]] = {}  # log-probs and entropy [R], by id()

    def __call__(self, members: Sequence[Experience]) -> Objective:
        name = f"selection:{self._step}:{next(self._numbers)}"
        return partial(self._objective, _selected(self._policy, self._recipe, members, name))

    def completed(self, experiences: Sequence[Experience]) -> list[Experience]:
        """Those of the step after its update, none of them without old log-probs."""
        return [
            replace(each, old_log_probs_R=scores[0], entropy_R=scores[1])
            if (scores := self._scores.get(id(each)))
            else each
            for each in experiences
        ]

    def _objective(
        self, selected: "Selected | None", rows: Sequence[Experience], normalisers: Normalisers
    ) -> Mapping[str, Tensor]:
        """Raises Refused where the policy's log-probs are not numbers."""
        recipe = self._recipe
        batch = _scored(self._policy, recipe, rows, selected)
        self._keep(batch, rows)
        parts = _parts(batch, recipe, normalisers)
        metrics = _metrics(batch, recipe, normalisers.num_tokens)
        return {"loss": _total(parts, recipe), **parts, **metrics}

    def _keep(self, batch: "_Batch", rows: Sequence[Experience]) -> None:
        if rows[0].old_log_probs_R is not None:
            return
        log_probs_BR, entropy_BR = batch.old_log_probs_BR.cpu(), batch.entropy_BR.detach().cpu()
        if not log_probs_BR.isfinite().all():
            reason = "its log-probabilities are not finite any more"
            raise Refused([diverged("policy", self._step, reason)])
        for index, each in enumerate(rows):
            inside = (index, slice(len(each.is_trained_R)))
            self._scores[id(each)] = log_probs_BR[inside], entropy_BR[inside]


# Of each experience, by id(): the tokens (bool [R]) that the loss selects.
Selected = Mapping[int, Tensor]


def _selected(
    policy: Model, recipe: Recipe, members: Sequence[Experience], name: str
) -> Selected | None:
    """By the policy as it enters the mini-batch, from all of its trained tokens; None where no loss selects."""
    select = POLICY_LOSSES[recipe.policy_loss.name].select
    if select is None or not uses_task_rewards(recipe):
        return None
    scores = score(
        policy,
        [each.trajectory for each in members],
        temperature=recipe.rollout.temperature,
        micro_batch_tokens=recipe.update.micro_batch_tokens,
        with_entropy=False,
    )
    is_trained_T = torch.cat([each.is_trained_R for each in members])
    chosen_T = torch.zeros_like(is_trained_T)
    chosen_T[is_trained_T] = select(
        torch.cat(scores.log_probs)[is_trained_T],
        torch.cat(present([each.old_log_probs_R for each in members]))[is_trained_T],
        torch.cat([each.advantages_R for each in members])[is_trained_T],
        generator(recipe.seeds.mini_batches, name),
        **recipe.policy_loss.arguments,
    )
    rows = chosen_T.split([len(each.is_trained_R) for each in members])
    return {id(each): row_R for each, row_R in zip(members, rows, strict=True)}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Batch:
    """A micro-batch as the losses see it; only the first two, and the student's, have gradients."""

    log_probs_BR: Tensor
    entropy_BR: Tensor
    mask_BR: Tensor
    old_log_probs_BR: Tensor
    advantages_BR: Tensor
    reference_log_probs_BR: Tensor | None
    importance_weights_BR: Tensor | None
    selected_BR: Tensor | None
    compared: Compared | None


def _scored(
    policy: Model, recipe: Recipe, rows: Sequence[Experience], selected: Selected | None
) -> _Batch:
    packed = pack([each.trajectory for each in rows], policy.device)
    is_new = rows[0].old_log_probs_R is None
    has_bonus = uses_task_rewards(recipe) and recipe.policy_loss.entropy_coefficient != 0
    entropy: Entropy = "trained" if has_bonus else "told" if is_new else "none"
    temperature = recipe.rollout.temperature
    if recipe.distillation is None:
        log_probs_P, entropy_P = response_scores(
            policy, packed, temperature=temperature, entropy=entropy
        )
        top_log_probs_PK = None
    else:
        log_probs_P, entropy_P, top_log_probs_PK = response_scores_at(
            policy,
            packed,
            distillation.teacher_tokens(rows, policy.device),
            temperature=temperature,
            entropy=entropy,
        )

    def gathered(tensors: Sequence[Tensor]) -> Tensor:
        return padded(tensors, policy.device)

    log_probs_BR = gathered(log_probs_P.split(packed.response_lengths))
    return _Batch(
        log_probs_BR=log_probs_BR,
        entropy_BR=gathered(entropy_P.split(packed.response_lengths)),
        mask_BR=gathered([each.is_trained_R for each in rows]),
        old_log_probs_BR=log_probs_BR.detach()
        if is_new
        else gathered(present([each.old_log_probs_R for each in rows])),
        advantages_BR=gathered([each.advantages_R for each in rows]),
        reference_log_probs_BR=None
        if recipe.kl_loss is None
        else gathered(present([each.reference_log_probs_R for each in rows])),
        importance_weights_BR=None
        if rows[0].importance_weights_R is None
        else gathered(present([each.importance_weights_R for each in rows])),
        selected_BR=None if selected is None else gathered([selected[id(each)] for each in rows]),
        compared=None
        if top_log_probs_PK is None
        else distillation.compared(rows, log_probs_BR, top_log_probs_PK),
    )


def _parts(batch: _Batch, recipe: Recipe, normalisers: Normalisers) -> dict[str, Tensor]:
    """Each term of the loss, aggregated."""
    parts = _task_parts(batch, recipe, normalisers) if uses_task_rewards(recipe) else {}
    if recipe.distillation is not None:
        assert batch.compared is not None
        per_token_BR = distillation.per_token_loss(
            batch.compared,
            batch.old_log_probs_BR,
            batch.mask_BR,
            batch.importance_weights_BR,
            recipe.distillation,
        )
        parts["distillation_loss"] = normalisers.aggregated(
            per_token_BR, batch.mask_BR, recipe.policy_loss.aggregation
        )
    return parts


def _task_parts(batch: _Batch, recipe: Recipe, normalisers: Normalisers) -> dict[str, Tensor]:
    """The terms that the rewards bring; the entropy and the KL only where they are part of the loss."""
    wanted = recipe.policy_loss
    kind = POLICY_LOSSES[wanted.name]
    given = (batch.log_probs_BR, batch.old_log_probs_BR, batch.advantages_BR, batch.mask_BR)
    chosen = () if batch.selected_BR is None else (batch.selected_BR,)
    per_token_BR = kind.per_token(*given, *chosen, **wanted.arguments)
    if batch.importance_weights_BR is not None:
        per_token_BR = weighted(per_token_BR, batch.importance_weights_BR, batch.mask_BR, kind)
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
    """policy_loss - entropy_coefficient * entropy_bonus + kl and distillation coefficients * their losses."""
    coefficients = {
        "policy_loss": 1.0,
        "entropy_bonus": -recipe.policy_loss.entropy_coefficient,
        "kl_loss": 0.0 if recipe.kl_loss is None else recipe.kl_loss.coefficient,
        "distillation_loss": 0.0
        if recipe.distillation is None
        else recipe.distillation.coefficient,
    }
    return reduce(torch.add, [coefficients[name] * part for name, part in parts.items()])


def _metrics(batch: _Batch, recipe: Recipe, num_tokens: int) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    if uses_task_rewards(recipe):
        found = policy_metrics(
            batch.log_probs_BR,
            batch.old_log_probs_BR,
            batch.advantages_BR,
            batch.mask_BR,
            recipe.policy_loss.name,
            recipe.policy_loss.arguments,
            num_tokens=num_tokens,
        )
    if recipe.distillation is not None:
        assert batch.compared is not None
        found |= distillation.distillation_metrics(
            batch.compared,
            batch.old_log_probs_BR,
            batch.mask_BR,
            recipe.distillation,
            num_tokens=num_tokens,
        )
    return found
