"""What flows through a step: prompts, the trajectories sampled from them, and the tensors of a forward.

Axes, here and in every file that names them:

    N  trajectories of a step             B  sequences (rows) of one forward
    T  tokens: prompt and response        R  response positions, counted from the first response token
    V  vocabulary                         G  trajectories of one group (samples of one prompt)

A worked instance: the prompt [7, 8, 9] with response [4, 2], and the prompt [5] with response [6, 3, 2];
the padding token is 0.

    tokens_BT           [[7, 8, 9, 4, 2],        logit_positions_BR  [[2, 3, 4],
                         [5, 6, 3, 2, 0]]                             [0, 1, 2]]
    token_mask_BT       [[1, 1, 1, 1, 1],        response_mask_BR    [[1, 1, 0],
                         [1, 1, 1, 1, 0]]                             [1, 1, 1]]

Rows are padded at the right, so position t is t for every row, and causal attention never meets the padding.
The logits at `logit_positions_BR[b, r]` predict `response_tokens_BR[b, r]`. The end-of-sequence token that the
policy sampled belongs to the response and to its mask; masks come from lengths, never from token values
(the padding token may be the end-of-sequence token).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """One row of the data. `prompt_id` is its row number in the file: equal texts stay apart."""

    prompt_id: int
    messages: tuple[Mapping[str, str], ...]
    tokens: tuple[int, ...]
    ground_truth: Any
    data_source: str
    extra: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Trajectory:
    """One scored response. `is_finished`: the policy ended it; False: the limit did."""

    prompt_id: int
    sample: int  # index among the samples of the prompt
    prompt_tokens: tuple[int, ...]
    response_tokens: tuple[int, ...]
    is_finished: bool
    response: str  # decoded without special tokens
    reward: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """The tensors of one forward; see the worked instance above. Masks are bool, the rest int64."""

    tokens_BT: Tensor
    token_mask_BT: Tensor
    response_tokens_BR: Tensor
    response_mask_BR: Tensor
    logit_positions_BR: Tensor


def batch(trajectories: Sequence[Trajectory], padding_token: int, device: str) -> Batch:
    """The trajectories' tokens, one row each, padded at the right to the longest."""
    prompt_lengths_B1 = torch.tensor([[len(each.prompt_tokens)] for each in trajectories])
    response_lengths_B1 = torch.tensor([[len(each.response_tokens)] for each in trajectories])
    assert (prompt_lengths_B1 > 0).all(), "the first response token has no logits that predict it"
    whole = [each.prompt_tokens + each.response_tokens for each in trajectories]
    responses = [each.response_tokens for each in trajectories]
    tokens_BT = pad(whole, padding_token, torch.int64)
    response_tokens_BR = pad(responses, padding_token, torch.int64)
    positions_T = torch.arange(tokens_BT.shape[1])
    positions_R = torch.arange(response_tokens_BR.shape[1])
    logit_positions_BR = prompt_lengths_B1 - 1 + positions_R
    return Batch(
        tokens_BT=tokens_BT.to(device),
        token_mask_BT=(positions_T < prompt_lengths_B1 + response_lengths_B1).to(device),
        response_tokens_BR=response_tokens_BR.to(device),
        response_mask_BR=(positions_R < response_lengths_B1).to(device),
        logit_positions_BR=logit_positions_BR.clamp(max=tokens_BT.shape[1] - 1).to(device),
    )


def pad(rows: Sequence[Sequence[float]], value: float, dtype: torch.dtype) -> Tensor:
    """Rows of unequal length as one tensor, `value` behind each row's end: tokens, or log-probs."""
    tensors = [torch.tensor(row, dtype=dtype) for row in rows]
    return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=value)
