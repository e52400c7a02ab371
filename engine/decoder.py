"""Decoding: a forward for the Llama family that reads each weight once per token and keeps its cache in place.

Each prompt runs once for all of its samples, finished rows leave the batch, and others take their place at any time.
A row's numbers do not depend on the batch composition: its products do not (engine/products.py), and attention runs
over a fixed multiple of columns.

Axes: L layers, B rows, T cache columns (a row's token t is at column t), P tokens of one prompt, H hidden,
Q query heads, K key and value heads, X = B K (or P K) groups of G = Q / K queries and what they share, D head size,
E = Q D, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from miniverl.engine import decoding_layer as layers
from miniverl.engine.decoding_layer import DecodingLayer, Norm
from miniverl.engine.layer import attention_dtype, live_layer, shape_of
from miniverl.engine.models import Model
from miniverl.engine.products import Product, Products
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
        self._attention_dtype = attention_dtype(self.device, dtype)
        self._shape = shape_of(self._network)
        self._layers: list[DecodingLayer] = []
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
        self._norm = self._norm_of(products, body.norm.weight)
        self.num_bytes = products.num_bytes
        head = self._network.get_output_embeddings()
        if self._head is None or head.weight.requires_grad:
            self._head = products.single(head)
        self.num_bytes += head.weight.numel() * self._dtype.itemsize

    @torch.inference_mode()
    def open(self, num_rows: int, longest: int) -> None:
        """An empty cache for rows of up to `longest` tokens."""
        num_columns = -(-longest // _COLUMNS) * _COLUMNS
        self._keys, self._values = [], []  # not beside the new ones
        # Zeros, since a masked column counts 0 times what it holds.
        shape = (num_rows, self._shape.num_kv_heads, num_columns, self._shape.head_size)
        zeros = partial(torch.zeros, shape, dtype=self._attention_dtype, device=self.device)
        self._keys = [zeros() for _ in self._layers]
        self._values = [zeros() for _ in self._layers]
        self._turns_T1C = layers.turns(self._network, num_columns, self.device)
        self._lengths = [0] * num_rows
        self._lengths_B = torch.zeros(num_rows, dtype=torch.int64, device=self.device)

    @property
    def prefills_together(self) -> bool:
        """Whether a prompt's numbers are the same bytes whatever other prompts run with it (engine/products.py)."""
        return self.device.type == "cpu" and self._dtype == torch.float32

    @torch.inference_mode()
    def prefill(self, prompts: Sequence[Sequence[int]]) -> list[Prefilled]:
        """Run prompts side by side, each for as many rows as it will have; each attends to itself alone."""
        lengths = [len(prompt) for prompt in prompts]
        if sum(lengths) == 1:  # one row takes another kernel than many
            return self.prefill([*prompts, *prompts])[:1]
        num_heads, size = self._shape.num_kv_heads, self._shape.head_size
        tokens_P = torch.tensor([token for prompt in prompts for token in prompt])
        turns_P1C = torch.cat([self._turns_T1C[:length] for length in lengths])
        turns_X1C = turns_P1C.repeat_interleave(num_heads, 0)
        hidden_PH = self._embedding_VH[tokens_P.to(self.device)]
        keys: list[tuple[Tensor, ...]] = []
        values: list[tuple[Tensor, ...]] = []
        for layer in self._layers:
            queries_XGD, keys_XD, values_XD = layers.heads(
                layer, hidden_PH, turns_X1C, self._attention_dtype
            )
            queries = queries_XGD.reshape(len(hidden_PH), -1, size).split(lengths)
            keys.append(keys_XD.view(-1, num_heads, size).split(lengths))
            values.append(values_XD.view(-1, num_heads, size).split(lengths))
            attended = map(_attended_alone, queries, keys[-1], values[-1])
            hidden_PH = layers.after_attention(layer, hidden_PH, torch.cat(list(attended)))
        last_U = torch.tensor(lengths, device=self.device).cumsum(0) - 1
        # Row by row: each prompt's logits come from a product of one row, however many prompts there are.
        logits = [self._logits(hidden_PH[last, None])[0] for last in last_U]
        return [
            Prefilled(
                keys=[each[number].transpose(0, 1) for each in keys],
                values=[each[number].transpose(0, 1) for each in values],
                logits_V=logits_V,
            )
            for number, logits_V in enumerate(logits)
        ]

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
        num_columns = -(-(max(self._lengths) + 1) // _COLUMNS) * _COLUMNS
        num_heads = self._shape.num_kv_heads
        places_X, mask_X1T = self._places(), self._mask(num_columns)
        turns_X1C = self._turns_T1C[self._lengths_B.repeat_interleave(num_heads)]
        hidden_BH = self._embedding_VH[tokens_B]
        for layer, keys, values in zip(self._layers, self._keys, self._values, strict=True):
            queries_XGD, keys_XD, values_XD = layers.heads(
                layer, hidden_BH, turns_X1C, self._attention_dtype
            )
            keys.view(-1, self._shape.head_size).index_copy_(0, places_X, keys_XD)
            values.view(-1, self._shape.head_size).index_copy_(0, places_X, values_XD)
            attended_BE = self._attended(queries_XGD, keys, values, mask_X1T)
            hidden_BH = layers.after_attention(layer, hidden_BH, attended_BE)
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

    def _places(self) -> Tensor:
        """Where each row's next token goes for each key and value head, in rows of a flat cache [X], X = B K."""
        num_rows, num_heads = len(self._lengths), self._shape.num_kv_heads
        starts_X = torch.arange(num_rows * num_heads, device=self.device) * self._keys[0].shape[2]
        return starts_X + self._lengths_B.repeat_interleave(num_heads)

    def _mask(self, num_columns: int) -> Tensor:
        """What is added to the scores [X, 1, T]: minus infinity ahead of the row's next token."""
        columns_T = torch.arange(num_columns, device=self.device)
        is_ahead_BT = columns_T > self._lengths_B[:, None]
        mask_BT = torch.zeros(is_ahead_BT.shape, dtype=self._attention_dtype, device=self.device)
        mask_BT.masked_fill_(is_ahead_BT, -torch.inf)
        return mask_BT.repeat_interleave(self._shape.num_kv_heads, 0)[:, None]

    def _attended(
        self, queries_XGD: Tensor, keys: Tensor, values: Tensor, mask_X1T: Tensor
    ) -> Tensor:
        """One token per row attends to its row of the cache: plain products, which no other row can change."""
        num_groups, _, num_columns = mask_X1T.shape
        size = self._shape.head_size
        keys_XTD, values_XTD = (
            cache.view(-1, cache.shape[2], size)[:num_groups, :num_columns]
            for cache in (keys, values)
        )
        scores_XGT = torch.baddbmm(mask_X1T, queries_XGD, keys_XTD.mT, alpha=size**-0.5)
        weights_XGT = scores_XGT.softmax(-1)
        return torch.bmm(weights_XGT, values_XTD).view(len(self._lengths), -1)

    def _logits(self, hidden_BH: Tensor) -> Tensor:
        assert self._head is not None, "load comes first"
        return self._head(self._norm(hidden_BH))

    def _fused(self, module: Any, products: Products) -> DecodingLayer:
        attention, mlp, shape = module.self_attn, module.mlp, self._shape
        live = live_layer(module, shape)
        norm = partial(self._norm_of, products)
        heads_norm = None
        if live.query_norm is not None and live.key_norm is not None:
            num_queries = shape.num_query_heads // shape.num_kv_heads
            heads_norm = norm(torch.stack([live.query_norm] * num_queries + [live.key_norm]))
        return DecodingLayer(
            query_key_value=products.grouped(
                [attention.q_proj, attention.k_proj, attention.v_proj], shape.num_kv_heads
            ),
            out=products.single(attention.o_proj),
            gate=products.single(mlp.gate_proj),
            up=products.single(mlp.up_proj),
            down=products.single(mlp.down_proj),
            attention_norm=norm(live.attention_norm),
            heads_norm=heads_norm,
            mlp_norm=norm(live.mlp_norm),
            shape=shape,
        )

    def _norm_of(self, products: Products, weight: Tensor) -> Norm:
        return Norm(products.own(weight), self._shape.epsilon)


def _attended_alone(queries_PQD: Tensor, keys_PKD: Tensor, values_PKD: Tensor) -> Tensor:
    """One prompt's heads [P, E], each of its tokens attending to those up to itself."""
    queries_1QPD, keys_1KPD, values_1KPD = (
        each.transpose(0, 1)[None] for each in (queries_PQD, keys_PKD, values_PKD)
    )
    attended_1QPD = functional.scaled_dot_product_attention(
        queries_1QPD, keys_1KPD, values_1KPD, is_causal=True, enable_gqa=True
    )
    return attended_1QPD[0].transpose(0, 1).flatten(1)
