"""One layer of the Llama family, as sampling and training share it: all of it but the attention over a cache.

Axes: S tokens in any arrangement, H hidden, Q query heads, K key and value heads, D head size.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

Product = Callable[[Tensor], Tensor]


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    num_query_heads: int
    num_kv_heads: int
    head_size: int
    epsilon: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Layer:
    """The products of a layer, fused or not, and its norms; those of queries and keys may be absent."""

    query_key_value: Callable[[Tensor], tuple[Tensor, ...]]
    out: Product
    gate_up: Callable[[Tensor], tuple[Tensor, ...]]
    down: Product
    attention_norm: Tensor
    query_norm: Tensor | None
    key_norm: Tensor | None
    mlp_norm: Tensor
    shape: Shape


@dataclass(frozen=True, slots=True)
class Rotation:
    """Cosine and sine of each token's position, [S, 1, D]."""

    cosine: Tensor
    sine: Tensor


def shape_of(network: Any) -> Shape:
    config = network.config
    return Shape(
        num_query_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_size=network.base_model.layers[0].self_attn.head_dim,
        epsilon=config.rms_norm_eps,
    )


def live_layer(module: Any, shape: Shape) -> Layer:
    """A transformers layer with the products that it has: gradients reach its weights and adapters."""
    attention, mlp = module.self_attn, module.mlp
    norms = [getattr(attention, name, None) for name in ("q_norm", "k_norm")]
    query_norm, key_norm = (None if norm is None else norm.weight for norm in norms)
    return Layer(
        query_key_value=partial(_each, (attention.q_proj, attention.k_proj, attention.v_proj)),
        out=attention.o_proj,
        gate_up=partial(_each, (mlp.gate_proj, mlp.up_proj)),
        down=mlp.down_proj,
        attention_norm=module.input_layernorm.weight,
        query_norm=query_norm,
        key_norm=key_norm,
        mlp_norm=module.post_attention_layernorm.weight,
        shape=shape,
    )


def rotation(network: Any, positions_S: Tensor, dtype: torch.dtype) -> Rotation:
    """The model's own rotary embedding at these positions."""
    like = torch.empty(0, dtype=dtype, device=positions_S.device)
    cosine_1SD, sine_1SD = network.base_model.rotary_emb(like, positions_S[None])
    return Rotation(cosine_1SD[0][:, None], sine_1SD[0][:, None])


def heads(layer: Layer, hidden_SH: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor, Tensor]:
    """Queries [S, Q, D], keys and values [S, K, D]; the first two rotated to their positions."""
    shape = layer.shape
    normed_SH = rms_norm(hidden_SH, layer.attention_norm, shape.epsilon)
    queries_SQD, keys_SKD, values_SKD = (
        each.unflatten(-1, (-1, shape.head_size)) for each in layer.query_key_value(normed_SH)
    )
    if layer.query_norm is not None:
        queries_SQD = rms_norm(queries_SQD, layer.query_norm, shape.epsilon)
    if layer.key_norm is not None:
        keys_SKD = rms_norm(keys_SKD, layer.key_norm, shape.epsilon)
    return _rotated(queries_SQD, rotation), _rotated(keys_SKD, rotation), values_SKD


def after_attention(layer: Layer, hidden_SH: Tensor, attended_SQD: Tensor) -> Tensor:
    """The layer's output from its input and what its heads attended to."""
    hidden_SH = hidden_SH + layer.out(attended_SQD.flatten(1))
    gate, up = layer.gate_up(rms_norm(hidden_SH, layer.mlp_norm, layer.shape.epsilon))
    return hidden_SH + layer.down(functional.silu(gate) * up)


def attention_dtype(device: torch.device, dtype: torch.dtype) -> torch.dtype:
    """In what attention is, for products in `dtype`: a CPU multiplies many small matrices slowly in a narrower type."""
    return at_least_float32(dtype) if device.type == "cpu" else dtype


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """In what attention on a CPU, and log-probabilities, are computed and kept, where products are in `dtype`."""
    return torch.promote_types(dtype, torch.float32)


def rms_norm(inputs: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    return functional.rms_norm(inputs, weight.shape, weight, epsilon)


def _each(products: tuple[Product, ...], inputs: Tensor) -> tuple[Tensor, ...]:
    return tuple(product(inputs) for product in products)


def _rotated(inputs: Tensor, rotation: Rotation) -> Tensor:
    first, second = inputs.chunk(2, -1)
    return inputs * rotation.cosine + torch.cat([-second, first], -1) * rotation.sine
