"""Decoding: a forward for the Llama family that reads each weight once per token and keeps its cache in place.

Each prompt runs once for all of its samples, finished rows leave the batch, and others take their place at any time.
A row's numbers do not depend on the batch composition: its products do not (engine/products.py), and attention runs
over a fixed multiple of columns.

Axes: L layers, B rows, T cache columns (a row's token t is at column t), P tokens of one prompt, H hidden,
Q query heads, K key and value heads, D head size, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from miniverl.engine import layer as layers
from miniverl.engine.layer import Layer, Product, Rotation
from miniverl.engine.models import Model
from miniverl.engine.products import Products
from miniverl.engine.recipe import Quantization

_COLUMNS = 32  # attention reads the cache up to a multiple of this


@dataclass(frozen=True, kw_only=True, slots=True)
class Prefilled:
    """What a prompt leaves in the cache, layer by layer, and the logits of the token behind it."""

    keys: list[Tensor]  # [K, P, D] each
    values: list[Tensor]
    logits_V: Tensor


class Decoder:
    """The policy's weights in decoding form, and the cache of one batch of rows.

    `num_bytes` are those that the weights take beside the policy's own, once they are loaded.
    """

    num_bytes: int

    def __init__(self, model: Model, dtype: torch.dtype, over: Quantization | None = None) -> None:
        """In `dtype`, over a copy of the weights with adapters merged, or `over` quantised ones as they are."""
        self._network = model.network
        self._dtype = dtype
        self._over = over
        self.device = model.device
        self._shape = layers.shape_of(self._network)
        self._layers: list[Layer] = []
        self._head: Product | None = None

    @torch.no_grad()
    def load(self) -> None:
        """Take over the policy's present weights and adapters."""
        body = self._network.base_model
        embedding_VH = body.embed_tokens.weight
        products = Products(embedding_VH, self._dtype, self._over)
        self._layers.clear()  # before the new ones are made: both together need twice the memory
        self._layers += [self._fused(layer, products) for layer in body.layers]
        self._embedding_VH = products.own(embedding_VH)
        self._norm = products.own(body.norm.weight)
        self.num_bytes = products.num_bytes
        head = self._network.get_output_embeddings()
        if self._head is None or head.weight.requires_grad:
            self._head = products.single(head)
        self.num_bytes += head.weight.numel() * self._dtype.itemsize

    @torch.inference_mode()
    def open(self, num_rows: int, longest: int) -> None:
        """An empty cache for rows of up to `longest` tokens."""
        num_columns = -(-longest // _COLUMNS) * _COLUMNS
        # Zeros, since a masked column counts 0 times what it holds.
        shape = (num_rows, self._shape.num_kv_heads, num_columns, self._shape.head_size)
        zeros = partial(torch.zeros, shape, dtype=self._dtype, device=self.device)
        self._keys = [zeros() for _ in self._layers]
        self._values = [zeros() for _ in self._layers]
        positions_T = torch.arange(num_columns, device=self.device)
        self._rotations = layers.rotation(self._network, positions_T, self._dtype)
        self._lengths = [0] * num_rows
        self._lengths_B = torch.zeros(num_rows, dtype=torch.int64, device=self.device)

    @torch.inference_mode()
    def prefill(self, tokens: Sequence[int]) -> Prefilled:
        """Run one prompt, alone, for as many rows as it will have."""
        tokens_P = torch.tensor(tokens, device=self.device)
        rotation = self._rotation(torch.arange(len(tokens), device=self.device))
        hidden_PH = self._embedding_VH[tokens_P]
        keys: list[Tensor] = []
        values: list[Tensor] = []
        for layer in self._layers:
            queries_QPD, keys_KPD, values_KPD = (
                each.transpose(0, 1) for each in layers.heads(layer, hidden_PH, rotation)
            )
            keys.append(keys_KPD)
            values.append(values_KPD)
            attended_1QPD = functional.scaled_dot_product_attention(
                queries_QPD[None], keys_KPD[None], values_KPD[None], is_causal=True, enable_gqa=True
            )
            hidden_PH = layers.after_attention(layer, hidden_PH, attended_1QPD[0].transpose(0, 1))
        return Prefilled(keys=keys, values=values, logits_V=self._logits(hidden_PH[-1:])[0])

    @torch.inference_mode()
    def enter(self, prompt: Prefilled, row: int) -> None:
        """Put a prompt into `row`, whatever was there before."""
        length = prompt.keys[0].shape[1]
        for cache, entering in ((self._keys, prompt.keys), (self._values, prompt.values)):
            for layer, each_KPD in zip(cache, entering, strict=True):
                layer[row, :, :length] = each_KPD
                layer[row, :, length : self._lengths[row]] = 0.0
        self._lengths[row] = length
        self._lengths_B[row] = length

    def rewind(self, row: int) -> None:
        """Let a row that nobody reads begin again, so that it does not outgrow the cache."""
        self._lengths[row] = 0
        self._lengths_B[row] = 0

    @torch.inference_mode()
    def step(self, tokens_B: Tensor) -> Tensor:
        """Append one token to every row; returns the logits [B, V] of the next."""
        num_rows = len(self._lengths)
        rows_B = torch.arange(num_rows, device=self.device)
        num_columns = -(-(max(self._lengths) + 1) // _COLUMNS) * _COLUMNS
        columns_T = torch.arange(num_columns, device=self.device)
        is_ahead_B11T = (columns_T > self._lengths_B[:, None])[:, None, None]
        rotation = self._rotation(self._lengths_B)
        hidden_BH = self._embedding_VH[tokens_B]
        for layer, keys, values in zip(self._layers, self._keys, self._values, strict=True):
            queries_BQD, keys_BKD, values_BKD = layers.heads(layer, hidden_BH, rotation)
            keys[rows_B, :, self._lengths_B] = keys_BKD
            values[rows_B, :, self._lengths_B] = values_BKD
            attended_BQD = self._attended(
                queries_BQD,
                keys[:num_rows, :, :num_columns],
                values[:num_rows, :, :num_columns],
                is_ahead_B11T,
            )
            hidden_BH = layers.after_attention(layer, hidden_BH, attended_BQD)
        self._lengths_B += 1
        self._lengths = [length + 1 for length in self._lengths]
        return self._logits(hidden_BH)

    @torch.inference_mode()
    def keep(self, old_rows: Sequence[int]) -> None:
        """Go on with fewer rows: new row i is what row `old_rows[i]` was. Copies only rows that move."""
        for new, old in enumerate(old_rows):
            if new != old:
                for cache in (*self._keys, *self._values):
                    cache[new] = cache[old]
        self._lengths_B = self._lengths_B[torch.tensor(old_rows, device=self.device)]
        self._lengths = [self._lengths[old] for old in old_rows]

    def _attended(
        self, queries_BQD: Tensor, keys_BKTD: Tensor, values_BKTD: Tensor, is_ahead_B11T: Tensor
    ) -> Tensor:
        """One token per row attends to its row of the cache: plain products, which no other row can change."""
        num_rows, size = len(queries_BQD), self._shape.head_size
        grouped_BKGD = queries_BQD.reshape(num_rows, self._shape.num_kv_heads, -1, size)
        scores_BKGT = torch.matmul(grouped_BKGD, keys_BKTD.transpose(-1, -2)).float() * size**-0.5
        weights_BKGT = scores_BKGT.masked_fill_(is_ahead_B11T, -torch.inf).softmax(-1)
        return torch.matmul(weights_BKGT.to(self._dtype), values_BKTD).view(num_rows, -1, size)

    def _logits(self, hidden_BH: Tensor) -> Tensor:
        assert self._head is not None, "load comes first"
        return self._head(layers.rms_norm(hidden_BH, self._norm, self._shape.epsilon))

    def _rotation(self, positions_S: Tensor) -> Rotation:
        return Rotation(self._rotations.cosine[positions_S], self._rotations.sine[positions_S])

    def _fused(self, module: Any, products: Products) -> Layer:
        attention, mlp, shape = module.self_attn, module.mlp, self._shape
        live, own = layers.live_layer(module, shape), products.own
        return Layer(
            query_key_value=products.joined([attention.q_proj, attention.k_proj, attention.v_proj]),
            out=products.single(attention.o_proj),
            gate_up=products.joined([mlp.gate_proj, mlp.up_proj]),
            down=products.single(mlp.down_proj),
            attention_norm=own(live.attention_norm),
            query_norm=None if live.query_norm is None else own(live.query_norm),
            key_norm=None if live.key_norm is None else own(live.key_norm),
            mlp_norm=own(live.mlp_norm),
            shape=shape,
        )
