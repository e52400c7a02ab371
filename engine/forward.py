"""The forward of scoring and updates: no padding in the products, and each prompt once for all of its samples.

Axes: B trajectories (rows), U distinct prompts, S packed tokens (engine/packed.py), R response positions, P response
tokens of all rows one after the other, H hidden, Q query heads, K key and value heads, D head size.

Attention alone is padded, at the right of prompts and responses: a response attends to its prompt, which
stands padded before it with the padding masked, and to itself.
"""

from functools import partial

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from miniverl.engine import layer as layers
from miniverl.engine import transformers_forward
from miniverl.engine.layer import Layer, Rotation
from miniverl.engine.models import Model
from miniverl.engine.packed import Packed


def predicting_states(model: Model, packed: Packed) -> Tensor:
    """The last hidden states [P, H] that predict the response tokens, row by row."""
    if not model.is_known:
        return transformers_forward.predicting_states(model, packed)
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
