"""One layer as decoding runs it: few operations, since at a few rows each of them costs more than what it computes.

The heads that attend together lie together: a group is the G queries that share a key, that key, and its value.
Queries and keys are rotated as complex numbers: element i of a head's first half and element i of its second are one
number, whose product with e^(i angle) is the rotation. That leaves the pairs side by side, another order than that of
engine/layer.py, in queries and keys alike, so that their products are the same.

Axes: S tokens in any arrangement, H hidden, K key and value heads, X = S K groups, G queries of one group, D head
size, C = D / 2.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from miniverl.engine.layer import Shape
from miniverl.engine.products import Product


@dataclass(frozen=True, kw_only=True, slots=True)
class DecodingLayer:
    """Its products, those of queries, keys and values as one by groups, and its norms."""

    query_key_value: Product
    out: Product
    gate: Product
    up: Product
    down: Product
    attention_norm: "Norm"
    heads_norm: "Norm | None"
    mlp_norm: "Norm"
    shape: Shape


class Norm:
    """x / sqrt(mean of x^2 + epsilon) * weight over the last axis, in float32: torch's in half of its operations."""

    def __init__(self, weight: Tensor, epsilon: float) -> None:
        """`weight` may have more axes: then each of their rows has its own."""
        self._weight = weight
        self._share = 1 / weight.shape[-1]
        self._epsilon_1 = torch.full((1,), epsilon, device=weight.device)

    def __call__(self, inputs: Tensor) -> Tensor:
        lengths = torch.linalg.vector_norm(inputs, dim=-1, keepdim=True, dtype=torch.float32)
        scale = torch.addcmul(self._epsilon_1, lengths, lengths, value=self._share).rsqrt_()
        scaled = inputs * scale
        return (scaled if scaled.dtype == inputs.dtype else scaled.to(inputs.dtype)) * self._weight


def turns(network: Any, num_positions: int, device: torch.device) -> Tensor:
    """e^(i angle) of the model's own rotary embedding at each position, complex64 [T, 1, C]."""
    like = torch.empty(0, dtype=torch.float32, device=device)
    positions_1T = torch.arange(num_positions, device=device)[None]
    cosine_1TD, sine_1TD = network.base_model.rotary_emb(like, positions_1T)
    half = cosine_1TD.shape[-1] // 2
    return torch.complex(cosine_1TD[0, :, :half], sine_1TD[0, :, :half])[:, None]


def heads(
    layer: DecodingLayer, hidden_SH: Tensor, turns_X1C: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries [X, G, D], keys and values [X, D] in `dtype`; the first two rotated to their positions."""
    size = layer.shape.head_size
    grouped = layer.query_key_value(layer.attention_norm(hidden_SH))
    grouped = grouped.view(len(turns_X1C), -1, size)  # G queries, one key, one value
    if layer.heads_norm is None:
        grouped = grouped.to(dtype)
        turning, values_XD = grouped[:, :-1].float(), grouped[:, -1]
    else:
        turning, values_XD = layer.heads_norm(grouped[:, :-1]).float(), grouped[:, -1].to(dtype)
    numbers = torch.complex(turning[..., : size // 2], turning[..., size // 2 :])
    turned = torch.view_as_real(numbers * turns_X1C).view(turning.shape).to(dtype)
    return turned[:, :-1], turned[:, -1], values_XD


def after_attention(layer: DecodingLayer, hidden_SH: Tensor, attended_SE: Tensor) -> Tensor:
    """The layer's output from its input and what its heads attended to, E = K G D numbers a token."""
    hidden_SH = layer.out.plus(attended_SE.to(hidden_SH.dtype), hidden_SH)
    normed_SH = layer.mlp_norm(hidden_SH)
    return layer.down.plus(layer.up.times(normed_SH, layer.gate.silu(normed_SH)), hidden_SH)
