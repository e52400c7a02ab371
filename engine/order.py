"""Which prompts each step takes: a permutation per epoch, cut into steps, the rest of the epoch dropped.

The order is upstream's: a torch generator seeded once, `torch.randperm` for each epoch. Its data loader with
worker processes draws twice for every epoch and uses the second draw (observed with torchdata 0.11.0; without
workers it draws once), which the recipe states as `first_permutation`.
Upstream: verl/trainer/ppo/utils.py:140, verl/trainer/ppo/v1/trainer_base.py:688 (v0.9.0).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice

import torch

from miniverl.engine.recipe import Data, Steps


@dataclass(frozen=True, kw_only=True, slots=True)
class Cursor:
    """Where the data stands: `index` prompts of `epoch` are used up. Resuming needs nothing else."""

    epoch: int
    index: int


def order(
    num_prompts: int, seed: int, *, shuffles: bool, first_permutation: int
) -> Iterator[list[int]]:
    """The prompts' order in epoch 0, 1, 2, ... without end.

    Epoch e uses draw number `first_permutation` * (e + 1) of the generator, counted from 1.
    """
    generator = torch.Generator().manual_seed(seed)
    while True:
        permutation = torch.arange(num_prompts)
        if shuffles:
            for _ in range(first_permutation):
                permutation = torch.randperm(num_prompts, generator=generator)
        yield permutation.tolist()


def take_step(cursor: Cursor, num_prompts: int, data: Data, seed: int) -> tuple[list[int], Cursor]:
    """Indices of the next step's prompts, and where the data stands after it.

    An epoch ends where fewer than `prompts_per_step` prompts are left of it.
    """
    assert num_prompts >= data.prompts_per_step, "no whole step in the data"
    start, epoch = cursor.index, cursor.epoch
    if start + data.prompts_per_step > num_prompts:
        start, epoch = 0, epoch + 1
    permutation = _epoch_order(num_prompts, seed, data.shuffles, data.first_permutation, epoch)
    end = start + data.prompts_per_step
    return list(permutation[start:end]), Cursor(epoch=epoch, index=end)


def num_steps(num_prompts: int, data: Data, steps: Steps) -> int:
    """How many steps the run has: the nearer one of both bounds."""
    whole_epochs = num_prompts // data.prompts_per_step * steps.num_epochs
    return whole_epochs if steps.num_steps is None else min(steps.num_steps, whole_epochs)


@lru_cache(maxsize=1)
def _epoch_order(
    num_prompts: int, seed: int, shuffles: bool, first_permutation: int, epoch: int
) -> tuple[int, ...]:
    epochs = order(num_prompts, seed, shuffles=shuffles, first_permutation=first_permutation)
    return tuple(next(islice(epochs, epoch, None)))
