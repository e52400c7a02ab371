"""Which prompts each step takes: a permutation per epoch, cut into draws, the rest of the epoch dropped.

The order is upstream's: a torch generator seeded once, `torch.randperm` for each epoch. Its data loader with
worker processes draws twice for every epoch and uses the second draw (observed with torchdata 0.11.0; without
workers it draws once), which the recipe states as `first_permutation`.
Upstream: verl/trainer/ppo/utils.py:140, verl/trainer/ppo/v1/trainer_base.py:688 and 1315 (v0.9.0).
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


def take(
    cursor: Cursor, count: int, num_prompts: int, data: Data, seed: int
) -> tuple[list[int], Cursor]:
    """Indices of the next `count` prompts, and where the data stands after them.

    Upstream's data loader gives `prompts_per_draw` prompts at a time, and goes on in the next epoch where fewer
    are left: the prompts of one step may come from two epochs, and one of them twice.
    """
    assert count % data.prompts_per_draw == 0, "whole draws only"
    assert num_prompts >= data.prompts_per_draw, "no whole draw in the data"
    taken: list[int] = []
    while len(taken) < count:
        if cursor.index + data.prompts_per_draw > num_prompts:
            cursor = Cursor(epoch=cursor.epoch + 1, index=0)
        permutation = _epoch_order(
            num_prompts, seed, data.shuffles, data.first_permutation, cursor.epoch
        )
        end = cursor.index + data.prompts_per_draw
        taken += permutation[cursor.index : end]
        cursor = Cursor(epoch=cursor.epoch, index=end)
    return taken, cursor


def num_steps(num_prompts: int, data: Data, steps: Steps) -> int:
    """How many steps the run has: the nearer one of both bounds.

    An epoch counts as many steps as it has whole ones, also where smaller draws or a group filter use up other
    numbers of prompts (upstream: verl/trainer/ppo/v1/trainer_base.py:498 and 710, v0.9.0).
    """
    whole_epochs = num_prompts // data.prompts_per_step * steps.num_epochs
    return whole_epochs if steps.num_steps is None else min(steps.num_steps, whole_epochs)


@lru_cache(maxsize=1)
def _epoch_order(
    num_prompts: int, seed: int, shuffles: bool, first_permutation: int, epoch: int
) -> tuple[int, ...]:
    epochs = order(num_prompts, seed, shuffles=shuffles, first_permutation=first_permutation)
    return tuple(next(islice(epochs, epoch, None)))
