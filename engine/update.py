"""One step's optimizer work: mini-batches, each in micro-batches whose gradients add up, one AdamW step each.

Every normaliser belongs to the mini-batch, so cutting it otherwise changes nothing but rounding.

Axes: B sequences of a micro-batch, R response positions.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from miniverl.engine.forward import pack
from miniverl.engine.loss import POLICY_LOSSES, aggregate, kl_estimate, vanilla_metrics
from miniverl.engine.models import Model
from miniverl.engine.recipe import KlLoss, Optimizer, PolicyLoss, Recipe
from miniverl.engine.score import bins, response_scores
from miniverl.engine.trajectory import Trajectory


@dataclass(frozen=True, kw_only=True, slots=True)
class Experience:
    """A trajectory and what the update needs to know of it; log-probs are float32 [R]."""

    trajectory: Trajectory
    advantage: float
    old_log_probs: Tensor
    reference_log_probs: Tensor | None


@dataclass(frozen=True, slots=True)
class _Normalisers:
    """Of one mini-batch; `num_sequences` is its nominal size, also where rows are missing."""

    num_tokens: int
    num_sequences: int


def adamw(policy: Model, optimizer: Optimizer) -> torch.optim.AdamW:
    """AdamW over every trained parameter in one group."""
    return torch.optim.AdamW(
        policy.trained().values(),
        lr=optimizer.learning_rate,
        betas=optimizer.betas,
        eps=optimizer.epsilon,
        weight_decay=optimizer.weight_decay,
    )


def update(
    policy: Model,
    optimizer: torch.optim.Optimizer,
    experiences: Sequence[Experience],
    recipe: Recipe,
    *,
    learning_rate: float,
) -> dict[str, float]:
    """Train the policy on one step's experiences; returns the step's numbers, means over its optimizer steps.

    A mini-batch whose gradient norm is not finite changes nothing and is counted in `skipped_steps`.
    """
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
    steps = [
        _mini_batch_step(policy, optimizer, members, recipe)
        for members in _mini_batches(experiences, recipe)
    ]
    metrics = {name: math.fsum(step[name] for step in steps) / len(steps) for name in steps[0]}
    num_skipped = sum(not math.isfinite(step["gradient_norm"]) for step in steps)
    return metrics | {
        "learning_rate": learning_rate,
        "optimizer_steps": len(steps) - num_skipped,
        "skipped_steps": num_skipped,
    }


def mini_batch_indices(
    num_sequences: int, size: int, *, epochs: int, shuffle_seed: int | None
) -> Iterator[list[int]]:
    """Which sequences train together: slices of `size` from the order of each epoch.

    The batch counts as padded to whole mini-batches by rows that carry no token, which fall out here.
    With `shuffle_seed`, the order is the one that torch's DataLoader gives for a generator of that seed: before
    each permutation it draws the base seed of its workers, behind it the first permutation of a second round
    that it then does not need (upstream: verl/utils/tensordict_utils.py,
    make_iterator, v0.9.0, which starts again from the seed in every step).
    """
    num_rows = math.ceil(num_sequences / size) * size
    generator = None if shuffle_seed is None else torch.Generator().manual_seed(shuffle_seed)
    for _ in range(epochs):
        order = list(range(num_rows))
        if generator is not None:
            torch.empty((), dtype=torch.int64).random_(generator=generator)
            order = torch.randperm(num_rows, generator=generator).tolist()
            torch.randperm(num_rows, generator=generator)
        for start in range(0, num_rows, size):
            members = [index for index in order[start : start + size] if index < num_sequences]
            if members:
                yield members


def _mini_batches(
    experiences: Sequence[Experience], recipe: Recipe
) -> Iterator[Sequence[Experience]]:
    indices = mini_batch_indices(
        len(experiences),
        _mini_batch_size(recipe),
        epochs=recipe.update.epochs,
        shuffle_seed=recipe.seeds.mini_batches if recipe.update.shuffles else None,
    )
    for members in indices:
        yield [experiences[index] for index in members]


def _mini_batch_size(recipe: Recipe) -> int:
    return recipe.update.prompts_per_mini_batch * recipe.rollout.samples_per_prompt


def _mini_batch_step(
    policy: Model,
    optimizer: torch.optim.Optimizer,
    members: Sequence[Experience],
    recipe: Recipe,
) -> dict[str, float]:
    """Accumulate the mini-batch's gradient over its micro-batches and take one step along it."""
    normalisers = _Normalisers(
        num_tokens=sum(len(each.old_log_probs) for each in members),
        num_sequences=_mini_batch_size(recipe),
    )
    optimizer.zero_grad(set_to_none=True)
    totals: dict[str, float] = {}
    first = 0
    for micro_batch in bins(
        [each.trajectory for each in members], recipe.update.micro_batch_tokens
    ):
        rows = members[first : first + len(micro_batch)]
        first += len(micro_batch)
        shares = _add_gradient(policy, rows, recipe, normalisers)
        totals = {name: totals.get(name, 0.0) + share for name, share in shares.items()}
    gradient_norm = float(
        torch.nn.utils.clip_grad_norm_(
            policy.trained().values(), recipe.optimizer.max_gradient_norm
        )
    )
    if math.isfinite(gradient_norm):
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return totals | {"gradient_norm": gradient_norm}


def _add_gradient(
    policy: Model,
    rows: Sequence[Experience],
    recipe: Recipe,
    normalisers: _Normalisers,
) -> dict[str, float]:
    """Add one micro-batch's share of the mini-batch's gradient; returns its shares of the metrics."""
    packed = pack([each.trajectory for each in rows], policy.device)
    log_probs_P, entropy_P = response_scores(
        policy,
        packed,
        temperature=recipe.rollout.temperature,
        with_entropy=recipe.policy_loss.entropy_coefficient != 0,
    )
    log_probs_BR = _padded(log_probs_P.split(packed.response_lengths), policy)
    entropy_BR = _padded(entropy_P.split(packed.response_lengths), policy)
    mask_BR = _padded([torch.ones(length) for length in packed.response_lengths], policy).bool()
    old_log_probs_BR = _padded([each.old_log_probs for each in rows], policy)
    advantages_B1 = torch.tensor([[each.advantage] for each in rows], device=policy.device)
    advantages_BR = advantages_B1.expand_as(log_probs_BR)
    parts = _policy_losses(
        log_probs_BR,
        old_log_probs_BR,
        advantages_BR,
        entropy_BR,
        mask_BR,
        recipe.policy_loss,
        normalisers,
    )
    if recipe.kl_loss is not None:
        reference_log_probs_BR = _padded(
            [_present(each.reference_log_probs) for each in rows], policy
        )
        parts["kl_loss"] = _kl_loss(
            log_probs_BR,
            reference_log_probs_BR,
            mask_BR,
            recipe.kl_loss,
            recipe.policy_loss,
            normalisers,
        )
    loss = _total(parts, recipe)
    loss.backward()
    clipping = vanilla_metrics(
        log_probs_BR,
        old_log_probs_BR,
        advantages_BR,
        mask_BR,
        clip_low=recipe.policy_loss.clip_low,
        clip_high=recipe.policy_loss.clip_high,
        dual_clip=recipe.policy_loss.dual_clip,
        num_tokens=normalisers.num_tokens,
    )
    return {name: value.item() for name, value in ({"loss": loss} | parts | clipping).items()}


def _policy_losses(
    log_probs_BR: Tensor,
    old_log_probs_BR: Tensor,
    advantages_BR: Tensor,
    entropy_BR: Tensor,
    mask_BR: Tensor,
    policy_loss: PolicyLoss,
    normalisers: _Normalisers,
) -> dict[str, Tensor]:
    """The aggregated surrogate, and the aggregated entropy where it is part of the loss."""
    per_token_BR = POLICY_LOSSES[policy_loss.name](
        log_probs_BR,
        old_log_probs_BR,
        advantages_BR,
        clip_low=policy_loss.clip_low,
        clip_high=policy_loss.clip_high,
        dual_clip=policy_loss.dual_clip,
    )
    parts = {"policy_loss": _aggregated(per_token_BR, mask_BR, policy_loss, normalisers)}
    if policy_loss.entropy_coefficient != 0:
        parts["entropy_bonus"] = _aggregated(entropy_BR, mask_BR, policy_loss, normalisers)
    return parts


def _kl_loss(
    log_probs_BR: Tensor,
    reference_log_probs_BR: Tensor,
    mask_BR: Tensor,
    kl_loss: KlLoss,
    policy_loss: PolicyLoss,
    normalisers: _Normalisers,
) -> Tensor:
    per_token_BR = kl_estimate(log_probs_BR, reference_log_probs_BR, kl_loss.estimator)
    return _aggregated(per_token_BR, mask_BR, policy_loss, normalisers)


def _total(parts: Mapping[str, Tensor], recipe: Recipe) -> Tensor:
    """policy_loss - entropy_coefficient * entropy_bonus + kl coefficient * kl_loss."""
    loss = parts["policy_loss"]
    if recipe.policy_loss.entropy_coefficient != 0:
        loss = loss - recipe.policy_loss.entropy_coefficient * parts["entropy_bonus"]
    if recipe.kl_loss is not None:
        loss = loss + recipe.kl_loss.coefficient * parts["kl_loss"]
    return loss


def _aggregated(
    values_BR: Tensor, mask_BR: Tensor, policy_loss: PolicyLoss, normalisers: _Normalisers
) -> Tensor:
    return aggregate(
        values_BR,
        mask_BR,
        mode=policy_loss.aggregation.mode,
        num_tokens=normalisers.num_tokens,
        num_sequences=normalisers.num_sequences,
        horizon=policy_loss.aggregation.horizon,
    )


def _padded(rows: Sequence[Tensor], policy: Model) -> Tensor:
    return pad_sequence(list(rows), batch_first=True).to(policy.device)


def _present(log_probs: Tensor | None) -> Tensor:
    assert log_probs is not None, "the recipe has a KL loss, so the reference was scored"
    return log_probs
