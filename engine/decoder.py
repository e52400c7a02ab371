"""Decoding: a forward for the Llama family that reads each weight once per token and keeps its cache in place.

Projections of one input are fused, adapters are merged into them, each prompt runs once for all of its samples,
and finished rows leave the batch. On a CPU the weights are packed for oneDNN, whose products for a row do not
depend on the other rows (observed for two rows and more), so a row's numbers do not depend on the batch
composition; attention runs over a fixed multiple of columns for the same reason.

Axes: L layers, B rows, T cache columns (a row's token t is at column t), P tokens of one prompt, H hidden,
Q query heads, K key and value heads, D head size, V vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from miniverl.engine.lora import LoraLinear, effective_weight
from miniverl.engine.models import Model

_COLUMNS = 64  # attention reads the cache up to a multiple of this

Product = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class _Layer:
    """`norms` are those before attention, of queries, of keys, and before the MLP; the inner two may be absent."""

    qkv: Product
    out: Product
    gate_up: Product
    down: Product
    norms: tuple[Tensor, Tensor | None, Tensor | None, Tensor]


class Decoder:
    """The policy's weights in decoding form, and the cache of one batch of rows."""

    def __init__(self, model: Model, dtype: torch.dtype) -> None:
        self._network = model.network
        self._dtype = dtype
        self._device = model.device
        config = self._network.config
        self._epsilon: float = config.rms_norm_eps
        self._num_kv_heads: int = config.num_key_value_heads
        self._num_query_heads: int = config.num_attention_heads
        self._head_size: int = self._network.base_model.layers[0].self_attn.head_dim
        self._layers: list[_Layer] = []
        self._num_rows = 0

    @torch.no_grad()
    def load(self) -> None:
        """Take over the policy's present weights, adapters merged."""
        body = self._network.base_model
        self._layers.clear()  # before the new ones are made: both together need twice the memory
        self._layers += [self._fused(layer) for layer in body.layers]
        self._embedding_VH = body.embed_tokens.weight.detach().to(self._dtype)
        self._norm = body.norm.weight.detach().to(self._dtype)
        self._head = self._product([self._network.get_output_embeddings()])

    @torch.inference_mode()
    def start(
        self, prompts: Sequence[Sequence[int]], prompt_of_row: Sequence[int], max_new_tokens: int
    ) -> Tensor:
        """Run each prompt once, alone, and fill the cache rows; returns each row's next-token logits [B, V]."""
        longest = max(map(len, prompts)) + max_new_tokens
        num_columns = -(-longest // _COLUMNS) * _COLUMNS
        self._num_rows = len(prompt_of_row)
        self._make_cache(num_columns)
        lengths = [len(prompts[index]) for index in prompt_of_row]
        self._lengths_B = torch.tensor(lengths, device=self._device)
        self._longest = max(lengths)
        logits: list[Tensor] = []
        for index, tokens in enumerate(prompts):
            rows = [row for row, prompt in enumerate(prompt_of_row) if prompt == index]
            logits.append(self._prefill(torch.tensor(tokens, device=self._device), rows))
        return torch.stack([logits[index] for index in prompt_of_row])

    @torch.inference_mode()
    def step(self, tokens_B: Tensor) -> Tensor:
        """Append one token to every row; returns the logits [B, V] of the next."""
        rows_B = torch.arange(self._num_rows, device=self._device)
        num_columns = min(-(-(self._longest + 1) // _COLUMNS) * _COLUMNS, self._keys[0].shape[2])
        columns_T = torch.arange(num_columns, device=self._device)
        is_ahead_B11T = (columns_T > self._lengths_B[:, None])[:, None, None]
        cosine_B1D = self._cosine_TD[self._lengths_B][:, None]
        sine_B1D = self._sine_TD[self._lengths_B][:, None]
        hidden_BH = self._embedding_VH[tokens_B]
        for layer, keys, values in zip(self._layers, self._keys, self._values, strict=True):
            queries_BQD, keys_BKD, values_BKD = self._heads(hidden_BH, layer, cosine_B1D, sine_B1D)
            keys[rows_B, :, self._lengths_B] = keys_BKD
            values[rows_B, :, self._lengths_B] = values_BKD
            attended_BH = self._attend(
                queries_BQD,
                keys[: self._num_rows, :, :num_columns],
                values[: self._num_rows, :, :num_columns],
                is_ahead_B11T,
            )
            hidden_BH = self._rest_of_layer(hidden_BH, attended_BH, layer)
        self._lengths_B += 1
        self._longest += 1
        return self._head(self._normed(hidden_BH, self._norm))

    @torch.inference_mode()
    def keep(self, old_rows: Sequence[int]) -> None:
        """Go on with fewer rows: new row i is what row `old_rows[i]` was. Copies only rows that move."""
        for new, old in enumerate(old_rows):
            if new != old:
                for cache in (*self._keys, *self._values):
                    cache[new] = cache[old]
        self._lengths_B = self._lengths_B[torch.tensor(old_rows, device=self._device)]
        self._num_rows = len(old_rows)

    def _prefill(self, tokens_P: Tensor, rows: list[int]) -> Tensor:
        """Run one prompt, put its keys and values into `rows`; returns the next token's logits [V]."""
        length = len(tokens_P)
        cosine_P1D = self._cosine_TD[:length, None]
        sine_P1D = self._sine_TD[:length, None]
        hidden_PH = self._embedding_VH[tokens_P]
        for layer, keys, values in zip(self._layers, self._keys, self._values, strict=True):
            queries_PQD, keys_PKD, values_PKD = self._heads(hidden_PH, layer, cosine_P1D, sine_P1D)
            for row in rows:
                keys[row, :, :length] = keys_PKD.transpose(0, 1)
                values[row, :, :length] = values_PKD.transpose(0, 1)
            attended_1QPD = functional.scaled_dot_product_attention(
                queries_PQD.transpose(0, 1)[None],
                keys_PKD.transpose(0, 1)[None],
                values_PKD.transpose(0, 1)[None],
                is_causal=True,
                enable_gqa=True,
            )
            attended_PH = attended_1QPD[0].transpose(0, 1).flatten(1)
            hidden_PH = self._rest_of_layer(hidden_PH, attended_PH, layer)
        return self._head(self._normed(hidden_PH[-1:], self._norm))[0]

    def _heads(
        self, hidden_BH: Tensor, layer: _Layer, cosine_B1D: Tensor, sine_B1D: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [B, Q, D], keys and values [B, K, D] of a layer, the first two rotated to their positions."""
        num_rotated = self._num_query_heads + self._num_kv_heads
        fused = layer.qkv(self._normed(hidden_BH, layer.norms[0]))
        fused = fused.view(len(hidden_BH), num_rotated + self._num_kv_heads, self._head_size)
        rotated, values_BKD = fused[:, :num_rotated], fused[:, num_rotated:]
        if layer.norms[1] is not None and layer.norms[2] is not None:
            queries, keys = rotated.split([self._num_query_heads, self._num_kv_heads], 1)
            rotated = torch.cat(
                [self._normed(queries, layer.norms[1]), self._normed(keys, layer.norms[2])], 1
            )
        half = self._head_size // 2
        turned = torch.cat([-rotated[..., half:], rotated[..., :half]], -1)
        rotated = rotated * cosine_B1D + turned * sine_B1D
        queries_BQD, keys_BKD = rotated.split([self._num_query_heads, self._num_kv_heads], 1)
        return queries_BQD, keys_BKD, values_BKD

    def _attend(
        self, queries_BQD: Tensor, keys_BKTD: Tensor, values_BKTD: Tensor, is_ahead_B11T: Tensor
    ) -> Tensor:
        """One token per row attends to its row of the cache: plain products, which no other row can change."""
        num_rows = len(queries_BQD)
        grouped_BKGD = queries_BQD.reshape(num_rows, self._num_kv_heads, -1, self._head_size)
        scores_BKGT = torch.matmul(grouped_BKGD, keys_BKTD.transpose(-1, -2)).float()
        scores_BKGT = scores_BKGT.mul_(self._head_size**-0.5).masked_fill_(
            is_ahead_B11T, -torch.inf
        )
        weights_BKGT = scores_BKGT.softmax(-1).to(self._dtype)
        return torch.matmul(weights_BKGT, values_BKTD).reshape(num_rows, -1)

    def _rest_of_layer(self, hidden_BH: Tensor, attended_BH: Tensor, layer: _Layer) -> Tensor:
        hidden_BH = hidden_BH + layer.out(attended_BH)
        gate, up = layer.gate_up(self._normed(hidden_BH, layer.norms[3])).chunk(2, -1)
        return hidden_BH + layer.down(functional.silu(gate).mul_(up))

    def _normed(self, inputs: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(inputs, weight.shape, weight, self._epsilon)

    def _make_cache(self, num_columns: int) -> None:
        """Zeros, since a masked column counts 0 times what it holds."""
        shape = (self._num_rows, self._num_kv_heads, num_columns, self._head_size)
        zeros = partial(torch.zeros, shape, dtype=self._dtype, device=self._device)
        self._keys = [zeros() for _ in self._layers]
        self._values = [zeros() for _ in self._layers]
        positions_1T = torch.arange(num_columns, device=self._device)[None]
        cosine_1TD, sine_1TD = self._network.base_model.rotary_emb(
            self._embedding_VH[:1], positions_1T
        )
        self._cosine_TD, self._sine_TD = cosine_1TD[0], sine_1TD[0]

    def _fused(self, layer: Any) -> _Layer:
        attention, mlp = layer.self_attn, layer.mlp
        inner = [getattr(attention, name, None) for name in ("q_norm", "k_norm")]
        outer = [layer.input_layernorm, layer.post_attention_layernorm]
        before, query, key, after = (
            None if norm is None else norm.weight.detach().to(self._dtype)
            for norm in (outer[0], *inner, outer[1])
        )
        assert before is not None
        assert after is not None
        return _Layer(
            qkv=self._product([attention.q_proj, attention.k_proj, attention.v_proj]),
            out=self._product([attention.o_proj]),
            gate_up=self._product([mlp.gate_proj, mlp.up_proj]),
            down=self._product([mlp.down_proj]),
            norms=(before, query, key, after),
        )

    def _product(self, layers: Sequence[nn.Linear | LoraLinear]) -> Product:
        """x -> x W^T (+ bias) for the layers' weights one below the other."""
        weight = torch.cat([effective_weight(layer) for layer in layers]).to(self._dtype)
        biases: list[Tensor] = [layer.bias for layer in layers if layer.bias is not None]
        bias = torch.cat(biases).detach().to(self._dtype) if biases else None
        if self._device.type == "cpu" and torch.backends.mkldnn.is_available():
            packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), _PACKED_ROWS)
            return partial(_packed_linear, packed, bias)
        return partial(_linear, weight.detach(), bias)


_PACKED_ROWS = 16  # the row count that the packed layout is chosen for; any other works


def _linear(weight: Tensor, bias: Tensor | None, inputs: Tensor) -> Tensor:
    return functional.linear(inputs, weight, bias)


def _packed_linear(packed: Tensor, bias: Tensor | None, inputs: Tensor) -> Tensor:
    outputs: Tensor = torch.ops.mkldnn._linear_pointwise(inputs, packed, bias, "none", [], "")
    return outputs
