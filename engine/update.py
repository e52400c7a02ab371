"""One step's optimizer work: mini-batches, each in micro-batches whose gradients add up, one AdamW step each.

Every normaliser belongs to the mini-batch, so cutting it otherwise changes nothing but rounding. What is
minimised is the caller's: engine/policy_update.py, engine/critic_update.py.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from miniverl.engine.algorithm import Aggregation
from miniverl.engine.experience import Experience
from miniverl.engine.loss import aggregate
from miniverl.engine.recipe import Optimizer, Update
from miniverl.engine.score import bins


@dataclass(frozen=True, kw_only=True, slots=True)
class Normalisers:
    """Of one mini-batch; `num_sequences` is its nominal size, also where rows are missing."""

    num_tokens: int
    num_sequences: int

    def aggregated(self, values_BR: Tensor, mask_BR: Tensor, aggregation: Aggregation) -> Tensor:
        """The micro-batch's share of the mini-batch's aggregate."""
        return aggregate(
            values_BR,
            mask_BR,
            mode=aggregation.mode,
            num_tokens=self.num_tokens,
            num_sequences=self.num_sequences,
            horizon=aggregation.horizon,
        )


# Calls the last with a budget of tokens, at most the second, until the gradient of the mini-batch fits in memory.
Fitting = Callable[[Sequence[Experience], int, Callable[[int], dict[str, float]]], dict[str, float]]
# Of one micro-batch: "loss", to be minimised, and its shares of whatever else is reported.
Objective = Callable[[Sequence[Experience], Normalisers], Mapping[str, Tensor]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """How one step's updates are cut; sizes in sequences."""

    mini_batch_size: int
    epochs: int
    shuffle_seed: int | None
    micro_batch_tokens: int
    max_gradient_norm: float

    @classmethod
    def of(
        cls, update: Update, samples_per_prompt: int, shuffle_seed: int, optimizer: Optimizer
    ) -> "Plan":
        return cls(
            mini_batch_size=update.prompts_per_mini_batch * samples_per_prompt,
            epochs=update.epochs,
            shuffle_seed=shuffle_seed if update.shuffles else None,
            micro_batch_tokens=update.micro_batch_tokens,
            max_gradient_norm=optimizer.max_gradient_norm,
        )


def adamw(parameters: Mapping[str, Tensor], optimizer: Optimizer) -> torch.optim.AdamW:
    """AdamW over every trained parameter in one group."""
    return torch.optim.AdamW(
        parameters.values(),
        lr=optimizer.learning_rate,
        betas=optimizer.betas,
        eps=optimizer.epsilon,
        weight_decay=optimizer.weight_decay,
    )


def as_planned(
    members: Sequence[Experience],
    micro_batch_tokens: int,
    attempt: Callable[[int], dict[str, float]],
) -> dict[str, float]:
    """Once, in the bins of the recipe."""
    return attempt(micro_batch_tokens)


def update(
    parameters: Mapping[str, Tensor],
    optimizer: torch.optim.Optimizer,
    experiences: Sequence[Experience],
    plan: Plan,
    objective_of: Callable[[Sequence[Experience]], Objective],
    *,
    learning_rate: float,
    fitting: Fitting = as_planned,
) -> dict[str, float]:
    """Train `parameters` on one step's experiences; returns the step's numbers, means over its optimizer steps.

    `objective_of` gets each mini-batch before its micro-batches. A mini-batch whose gradient norm is not
    finite changes nothing and is counted in `skipped_steps`.
    """
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
    steps = [
        _mini_batch_step(parameters, optimizer, members, plan, objective_of(members), fitting)
        for members in _mini_batches(experiences, plan)
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


def _mini_batches(experiences: Sequence[Experience], plan: Plan) -> Iterator[Sequence[Experience]]:
    indices = mini_batch_indices(
        len(experiences), plan.mini_batch_size, epochs=plan.epochs, shuffle_seed=plan.shuffle_seed
    )
    for members in indices:
        yield [experiences[index] for index in members]


def _mini_batch_step(
    parameters: Mapping[str, Tensor],
    optimizer: torch.optim.Optimizer,
    members: Sequence[Experience],
    plan: Plan,
    objective: Objective,
    fitting: Fitting,
) -> dict[str, float]:
    """Take one step along the mini-batch's gradient."""

    def attempt(micro_batch_tokens: int) -> dict[str, float]:
        optimizer.zero_grad(set_to_none=True)  # of a try that did not fit, too
        cut = replace(plan, micro_batch_tokens=micro_batch_tokens)
        return accumulate(members, cut, objective)

    totals = fitting(members, plan.micro_batch_tokens, attempt)
    norm = torch.nn.utils.clip_grad_norm_(parameters.values(), plan.max_gradient_norm)
    gradient_norm = float(norm)
    if math.isfinite(gradient_norm):
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return totals | {"gradient_norm": gradient_norm}


def accumulate(members: Sequence[Experience], plan: Plan, objective: Objective) -> dict[str, float]:
    """Add the mini-batch's gradient to what parameters hold, micro-batch by micro-batch; returns its numbers."""
    normalisers = Normalisers(
        num_tokens=sum(len(each.is_trained_R) for each in members),
        num_sequences=plan.mini_batch_size,
    )
    totals: dict[str, float] = {}
    first = 0
    for micro_batch in bins([each.trajectory for each in members], plan.micro_batch_tokens):
        rows = members[first : first + len(micro_batch)]
        first += len(micro_batch)
        shares = objective(rows, normalisers)
        shares["loss"].backward()
        totals = {name: totals.get(name, 0.0) + share.item() for name, share in shares.items()}
    return totals
