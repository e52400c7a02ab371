"""The forward of scoring and updates: no padding in the products, and each prompt once for all of its samples.

Axes: B trajectories (rows), U distinct prompts, S packed tokens, R response positions, P response tokens of all
rows one after the other, H hidden, Q query heads, K key and value heads, D head size.

The packed tokens are the prompts, then every response but its last token, which predicts nothing:

    prompt [7, 8, 9] with the responses [4, 2] and [6]; prompt [5] with the response [6, 3, 2]
    tokens_S      [7, 8, 9,  5,  4,  6, 3]
    positions_S   [0, 1, 2,  0,  3,  1, 2]
    predictors_P  [2, 4,  2,  3, 5, 6]      the place in S whose hidden state predicts ...
    targets_P     [4, 2,  6,  6, 3, 2]      ... this token

Attention alone is padded, at the right of prompts and responses: a response attends to its prompt, which
stands padded before it with the padding masked, and to itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from miniverl.engine import layer as layers
from miniverl.engine.layer import Layer, Rotation
from miniverl.engine.models import Model
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


def predicting_states(model: Model, packed: Packed) -> Tensor:
    """The last hidden states [P, H] that predict the response tokens, row by row."""
    network, shape = model.network, layers.shape_of(model.network)
    body = network.base_model
    with model.autocast():
        hidden_SH = functional.embedding(packed.tokens_S, body.embed_tokens.weight)
        rotation = layers.rotation(network, packed.positions_S, hidden_SH.dtype)
        mask_B1RT = _mask(packed, layers.attention_dtype(model.device, hidden_SH.dtype))
        for module in body.layers:
            layer = layers.live_layer(module, shape)
            run = partial(_layer_output, layer, rotation, packed, mask_B1RT)
            if model.checkpoints_activations and torch.is_grad_enabled():
                hidden_SH = checkpoint(run, hidden_SH, use_reentrant=False)
            else:
                hidden_SH = run(hidden_SH)
        predicting_PH = hidden_SH.index_select(0, packed.predictors_P)
        return layers.rms_norm(predicting_PH, body.norm.weight, shape.epsilon)


def _layer_output(
    layer: Layer, rotation: Rotation, packed: Packed, mask_B1RT: Tensor, hidden_SH: Tensor
) -> Tensor:
    queries_SQD, keys_SKD, values_SKD = (
        each.to(mask_B1RT.dtype) for each in layers.heads(layer, hidden_SH, rotation)
    )
    attended_SQD = _attended(queries_SQD, keys_SKD, values_SKD, packed, mask_B1RT)
    return layers.after_attention(layer, hidden_SH, attended_SQD.to(hidden_SH.dtype))


def _attended(
    queries_SQD: Tensor, keys_SKD: Tensor, values_SKD: Tensor, packed: Packed, mask_B1RT: Tensor
) -> Tensor:
    """Prompts attend to themselves, responses to their prompt and themselves."""
    sizes = [len(packed.prompt_places), len(packed.response_places)]
    prompts, responses = zip(
        *(each.split(sizes) for each in (queries_SQD, keys_SKD, values_SKD)), strict=True
    )
    queries_UQTD, keys_UKTD, values_UKTD = (
        _padded(each, packed.prompt_places, packed.prompt_rows) for each in prompts
    )
    attended_UQTD = functional.scaled_dot_product_attention(
        queries_UQTD, keys_UKTD, values_UKTD, is_causal=True, enable_gqa=True
    )
    attended = [_unpadded(attended_UQTD, packed.prompt_places)]
    if sizes[1]:
        queries_BQRD, own_keys_BKRD, own_values_BKRD = (
            _padded(each, packed.response_places, packed.response_rows) for each in responses
        )
        prompt_keys_BKTD = keys_UKTD.index_select(0, packed.prompt_of_row_B)
        prompt_values_BKTD = values_UKTD.index_select(0, packed.prompt_of_row_B)
        attended_BQRD = functional.scaled_dot_product_attention(
            queries_BQRD,
            torch.cat([prompt_keys_BKTD, own_keys_BKRD], 2),
            torch.cat([prompt_values_BKTD, own_values_BKRD], 2),
            attn_mask=mask_B1RT,
            enable_gqa=True,
        )
        attended.append(_unpadded(attended_BQRD, packed.response_places))
    return torch.cat(attended)


def _mask(packed: Packed, dtype: torch.dtype) -> Tensor:
    """What is added to a response's scores [B, 1, R, T]: minus infinity at its prompt's padding and ahead of it.

    The columns T are those of its prompt, then its own.
    """
    device = packed.tokens_S.device
    num_rows, num_own = packed.response_rows
    lengths_B1 = packed.prompt_lengths_U[packed.prompt_of_row_B][:, None]
    is_padding_BT = torch.arange(packed.prompt_rows[1], device=device) >= lengths_B1
    columns_R = torch.arange(num_own, device=device)
    is_ahead_RR = columns_R > columns_R[:, None]
    each_row = (num_rows, num_own, -1)
    is_hidden_BRT = torch.cat(
        [is_padding_BT[:, None].expand(each_row), is_ahead_RR.expand(each_row)], -1
    )
    mask_BRT = torch.zeros(is_hidden_BRT.shape, dtype=dtype, device=device)
    return mask_BRT.masked_fill_(is_hidden_BRT, -torch.inf)[:, None]


def _padded(packed_SKD: Tensor, places: Tensor, rows: tuple[int, int]) -> Tensor:
    """Packed heads as padded rows [rows, K, T, D], zeros behind each row's end."""
    num_rows, num_columns = rows
    flat = packed_SKD.new_zeros(num_rows * num_columns, *packed_SKD.shape[1:])
    flat = flat.index_copy(0, places, packed_SKD)
    return flat.view(num_rows, num_columns, *packed_SKD.shape[1:]).transpose(1, 2)


def _unpadded(rows_BKTD: Tensor, places: Tensor) -> Tensor:
    return rows_BKTD.transpose(1, 2).flatten(0, 1).index_select(0, places)


def _starts(lengths: Sequence[int]) -> list[int]:
    return [0, *accumulate(lengths)][:-1]


def _places(lengths: Sequence[int], num_columns: int) -> list[int]:
    return [
        row * num_columns + column for row, length in enumerate(lengths) for column in range(length)
    ]
