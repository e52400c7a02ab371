"""Trajectories as one stream of tokens, without padding, and each prompt once for all of its samples.

Axes: B trajectories (rows), U distinct prompts, S packed tokens, P response tokens of all rows one after the other.

The packed tokens are the prompts, then every response but its last token, which predicts nothing:

    prompt [7, 8, 9] with the responses [4, 2] and [6]; prompt [5] with the response [6, 3, 2]
    tokens_S      [7, 8, 9,  5,  4,  6, 3]
    positions_S   [0, 1, 2,  0,  3,  1, 2]
    predictors_P  [2, 4,  2,  3, 5, 6]      the place in S whose hidden state predicts ...
    targets_P     [4, 2,  6,  6, 3, 2]      ... this token
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

import torch
from torch import Tensor

from miniverl.engine.trajectory import Trajectory


@dataclass(frozen=True, kw_only=True, slots=True)
class Packed:
    """The tensors of one forward; see the worked instance above."""

    tokens_S: Tensor
    positions_S: Tensor
    predictors_P: Tensor
    targets_P: Tensor
    response_lengths: tuple[int, ...]
    prompt_lengths_U: Tensor
    prompt_of_row_B: Tensor
    prompt_rows: tuple[int, int]  # U, and the longest prompt
    prompt_places: Tensor  # into these rows, flat
    response_rows: tuple[int, int]  # B, and the longest response but its last token
    response_places: Tensor


def pack(trajectories: Sequence[Trajectory], device: torch.device) -> Packed:
    """The trajectories as one stream of tokens."""
    prompts = {each.prompt_id: each.prompt_tokens for each in trajectories}
    starts = dict(zip(prompts, _starts([len(tokens) for tokens in prompts.values()]), strict=True))
    tokens = [token for prompt in prompts.values() for token in prompt]
    positions = [place for prompt in prompts.values() for place in range(len(prompt))]
    predictors: list[int] = []
    for each in trajectories:
        length = len(each.prompt_tokens)
        assert length > 0, "the first response token has no token that predicts it"
        inputs = each.response_tokens[:-1]
        predictors.append(starts[each.prompt_id] + length - 1)
        predictors += range(len(tokens), len(tokens) + len(inputs))
        tokens += inputs
        positions += range(length, length + len(inputs))
    order = {prompt_id: index for index, prompt_id in enumerate(prompts)}
    prompt_lengths = [len(prompt) for prompt in prompts.values()]
    input_lengths = [len(each.response_tokens) - 1 for each in trajectories]
    tensor = partial(torch.tensor, dtype=torch.int64, device=device)
    return Packed(
        tokens_S=tensor(tokens),
        positions_S=tensor(positions),
        predictors_P=tensor(predictors),
        targets_P=tensor([token for each in trajectories for token in each.response_tokens]),
        response_lengths=tuple(len(each.response_tokens) for each in trajectories),
        prompt_lengths_U=tensor(prompt_lengths),
        prompt_of_row_B=tensor([order[each.prompt_id] for each in trajectories]),
        prompt_rows=(len(prompts), max(prompt_lengths)),
        prompt_places=tensor(_places(prompt_lengths, max(prompt_lengths))),
        response_rows=(len(trajectories), max(input_lengths)),
        response_places=tensor(_places(input_lengths, max(input_lengths))),
    )


def num_packed_tokens(trajectories: Sequence[Trajectory]) -> int:
    """How many tokens the products of `pack` run over."""
    prompts = {each.prompt_id: len(each.prompt_tokens) for each in trajectories}
    return sum(prompts.values()) + sum(len(each.response_tokens) - 1 for each in trajectories)


def _starts(lengths: Sequence[int]) -> list[int]:
    return [0, *accumulate(lengths)][:-1]


def _places(lengths: Sequence[int], num_columns: int) -> list[int]:
    return [
        row * num_columns + column for row, length in enumerate(lengths) for column in range(length)
    ]
