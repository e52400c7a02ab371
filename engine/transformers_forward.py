"""The forward and the decoding of a model that has no form of its own here, by transformers: correct, and slower.

Rows are padded, a prompt is computed once for each of its samples, and decoding keeps transformers' cache with all rows
ending at its last column, so that a row may enter or leave at any time. What a network of transformers may do
between its last hidden states and its logits, or with a cache that is padded at the left, is tried when it is
loaded: a network that does it otherwise is refused.

Axes: B trajectories (rows), C columns, U prompts, T the longest prompt, P response tokens of all rows one after the
other, H hidden, V vocabulary, K key and value heads, D head size.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.modeling_layers import GradientCheckpointingLayer

from miniverl.engine.decoder import Prefilled
from miniverl.engine.models import Model
from miniverl.engine.packed import Packed

_DEAD_COLUMNS = 64  # that no row reads any more: then they are cut off


def predicting_states(model: Model, packed: Packed) -> Tensor:
    """As engine/forward.py's, with gradients: the last hidden states [P, H] that predict the response tokens."""
    tokens_BC, is_token_BC, places_P = _rows(packed)
    with model.autocast(), _recomputing(model):
        hidden_BCH = model.network.base_model(
            input_ids=tokens_BC,
            attention_mask=is_token_BC.long(),
            position_ids=_positions(is_token_BC),
            use_cache=False,
        ).last_hidden_state
    states_PH: Tensor = hidden_BCH.flatten(0, 1).index_select(0, places_P)
    return states_PH


def _rows(packed: Packed) -> tuple[Tensor, Tensor, Tensor]:
    """Prompt and response side by side, padded at the right [B, C]; which are tokens; where each one is predicted [P]."""
    num_prompt_tokens = len(packed.prompt_places)
    prompts_UT = _padded(
        packed.tokens_S[:num_prompt_tokens], packed.prompt_places, packed.prompt_rows
    )
    responses_BR = _padded(
        packed.tokens_S[num_prompt_tokens:], packed.response_places, packed.response_rows
    )
    lengths_B = packed.prompt_lengths_U[packed.prompt_of_row_B]
    device = lengths_B.device
    responded_B = torch.tensor(packed.response_lengths, device=device)
    columns_C = torch.arange(packed.prompt_rows[1] + packed.response_rows[1], device=device)
    within_BC = columns_C - lengths_B[:, None]  # of the response; below 0 in the prompt
    of_prompt_BC = prompts_UT[packed.prompt_of_row_B][
        :, columns_C.clamp(max=packed.prompt_rows[1] - 1)
    ]
    tokens_BC = of_prompt_BC
    if packed.response_rows[1]:
        of_response_BC = responses_BR.gather(1, within_BC.clamp(0, packed.response_rows[1] - 1))
        tokens_BC = torch.where(within_BC < 0, of_prompt_BC, of_response_BC)
    is_token_BC = within_BC < responded_B[:, None] - 1
    predicts_BC = (within_BC >= -1) & is_token_BC
    return tokens_BC * is_token_BC, is_token_BC, predicts_BC.flatten().nonzero()[:, 0]


def _padded(tokens: Tensor, places: Tensor, rows: tuple[int, int]) -> Tensor:
    return tokens.new_zeros(rows[0] * rows[1]).index_copy(0, places, tokens).view(rows)


def _positions(is_token_BC: Tensor) -> Tensor:
    return (is_token_BC.long().cumsum(1) - 1).clamp(min=0)


@contextmanager
def _recomputing(model: Model) -> Iterator[None]:
    """Where activations are to be computed again, by transformers' own layers.

    Those ask whether they are in training; what is in them stays as it is, without dropout.
    """
    if not (model.checkpoints_activations and torch.is_grad_enabled()):
        yield
        return
    each_layer = [m for m in model.network.modules() if isinstance(m, GradientCheckpointingLayer)]
    model.network.gradient_checkpointing_enable({"use_reentrant": False})
    for layer in each_layer:
        layer.training = True
    try:
        yield
    finally:
        model.network.gradient_checkpointing_disable()
        for layer in each_layer:
            layer.training = False


class TransformersDecoder:
    """engine/decoder.py's Decoder over the policy itself: it copies no weights, and keeps no row's numbers apart.

    A row's last token is in the last column, whatever its length; what is left of its first is masked.
    """

    num_bytes = 0
    prefills_together = False

    def __init__(self, model: Model, dtype: torch.dtype) -> None:
        """Multiplies in `dtype`."""
        self._model = model
        self._dtype = dtype
        self.device = model.device

    def load(self) -> None:
        """The policy's weights are the decoder's."""

    @torch.inference_mode()
    def open(self, num_rows: int, longest: int) -> None:
        """An empty cache; it grows with its rows."""
        self._cache: Any = DynamicCache()  # of layers with keys and values [B, K, C, D]
        self._num_columns = 0
        self._starts_B = torch.zeros(num_rows, dtype=torch.int64, device=self.device)
        self._lengths_B = torch.zeros(num_rows, dtype=torch.int64, device=self.device)

    @torch.inference_mode()
    def prefill(self, prompts: Sequence[Sequence[int]]) -> list[Prefilled]:
        """Each prompt alone."""
        return [self._prefilled(prompt) for prompt in prompts]

    def _prefilled(self, prompt: Sequence[int]) -> Prefilled:
        cache: Any = DynamicCache()
        tokens_1P = torch.tensor([prompt], device=self.device)
        logits_1V = self._logits(
            tokens_1P, torch.ones_like(tokens_1P), _positions(tokens_1P >= 0), cache
        )
        return Prefilled(
            keys=[layer.keys[0] for layer in cache.layers],
            values=[layer.values[0] for layer in cache.layers],
            logits_V=logits_1V[0],
        )

    @torch.inference_mode()
    def enter(self, prompt: Prefilled, row: int) -> None:
        """Put a prompt into `row`, whatever was there before: it ends at the cache's last column."""
        length = prompt.keys[0].shape[1]
        missing = length - self._num_columns
        if missing > 0:
            self._widen(missing, prompt)
        for layer, keys_KPD, values_KPD in zip(
            self._cache.layers, prompt.keys, prompt.values, strict=True
        ):
            layer.keys[row, :, -length:] = keys_KPD
            layer.values[row, :, -length:] = values_KPD
        self._starts_B[row] = self._num_columns - length
        self._lengths_B[row] = length

    def _widen(self, missing: int, like: Prefilled) -> None:
        """More columns at the left, which no row reads; the first ones make the cache."""
        num_rows = len(self._starts_B)
        for index, (keys_KPD, values_KPD) in enumerate(zip(like.keys, like.values, strict=True)):
            num_heads, _, key_size = keys_KPD.shape
            keys = keys_KPD.new_zeros(num_rows, num_heads, missing, key_size)
            values = values_KPD.new_zeros(num_rows, num_heads, missing, values_KPD.shape[-1])
            if not self._num_columns:
                self._cache.update(keys, values, index)
            else:
                layer = self._cache.layers[index]
                layer.keys = torch.cat([keys, layer.keys], 2)
                layer.values = torch.cat([values, layer.values], 2)
        self._starts_B += missing
        self._num_columns += missing

    def rewind(self, row: int) -> None:
        """Let a row that nobody reads begin again behind the last column."""
        self._starts_B[row] = self._num_columns
        self._lengths_B[row] = 0

    @torch.inference_mode()
    def step(self, tokens_B: Tensor) -> Tensor:
        """Append one token to every row; returns the logits [B, V] of the next."""
        columns_C = torch.arange(self._num_columns + 1, device=self.device)
        is_token_BC = columns_C >= self._starts_B[:, None]
        logits_BV = self._logits(
            tokens_B[:, None], is_token_BC.long(), self._lengths_B[:, None], self._cache
        )
        self._num_columns += 1
        self._lengths_B += 1
        self._cut(int(self._starts_B.min()))
        return logits_BV

    def _cut(self, num_dead: int) -> None:
        if num_dead < _DEAD_COLUMNS:
            return
        for layer in self._cache.layers:
            layer.keys = layer.keys[:, :, num_dead:].clone()
            layer.values = layer.values[:, :, num_dead:].clone()
        self._starts_B -= num_dead
        self._num_columns -= num_dead

    @torch.inference_mode()
    def keep(self, old_rows: Sequence[int]) -> None:
        """Go on with fewer rows: new row i is what row `old_rows[i]` was."""
        kept_B = torch.tensor(old_rows, device=self.device)
        for layer in self._cache.layers:
            layer.keys, layer.values = layer.keys[kept_B], layer.values[kept_B]
        self._starts_B, self._lengths_B = self._starts_B[kept_B], self._lengths_B[kept_B]

    def _logits(
        self, tokens_BS: Tensor, mask_BC: Tensor, positions_BS: Tensor, cache: Any
    ) -> Tensor:
        """Of each row's next token [B, V]."""
        network = self._model.network
        is_narrower = self._dtype != self._model.head_VH.dtype
        with torch.autocast(self.device.type, dtype=self._dtype, enabled=is_narrower):
            logits_BSV = network(
                input_ids=tokens_BS,
                attention_mask=mask_BC,
                position_ids=positions_BS,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            ).logits
        last_BV: Tensor = logits_BSV[:, -1]
        return last_BV


@torch.inference_mode()
def reason_against(model: Model) -> str | None:
    """Why this path would not compute what the network does; None where it would.

    Two rows of other lengths are decoded side by side, and scored by the head from the last hidden states: both must
    give the logits of each row alone.
    """
    prompts = ([3, 1, 4, 1, 5], [9, 2])
    following = torch.tensor([6, 5], device=model.device)
    longest = max(map(len, prompts)) + 1
    try:
        alone_BV = torch.stack(
            [_alone(model, [*p, int(t)]) for p, t in zip(prompts, following, strict=True)]
        )
        decoder = TransformersDecoder(model, model.head_VH.dtype)
        decoder.open(len(prompts), longest)
        for row, each in enumerate(decoder.prefill(prompts)):
            decoder.enter(each, row)
        decoded_BV = decoder.step(following)
        hidden_BH = torch.stack(
            [_hidden(model, [*p, int(t)]) for p, t in zip(prompts, following, strict=True)]
        )
    except (AttributeError, IndexError, NotImplementedError, TypeError, ValueError) as error:
        return f"transformers' {type(model.network).__name__} cannot be decoded row by row: {error}"
    scored_BV = torch.nn.functional.linear(hidden_BH, model.head_VH)
    if not _is_close(scored_BV, alone_BV):
        return "its logits are not its output embedding times its last hidden states"
    if not _is_close(decoded_BV, alone_BV):
        return "a row of its cache depends on the padding beside it"
    return None


def _alone(model: Model, tokens: Sequence[int]) -> Tensor:
    logits_1SV: Tensor = model.network(torch.tensor([tokens], device=model.device)).logits
    return logits_1SV[0, -1]


def _hidden(model: Model, tokens: Sequence[int]) -> Tensor:
    tokens_1S = torch.tensor([tokens], device=model.device)
    hidden_1SH: Tensor = model.network.base_model(tokens_1S, use_cache=False).last_hidden_state
    return hidden_1SH[0, -1]


def _is_close(found_BV: Tensor, expected_BV: Tensor) -> bool:
    """Within some roundings of their type."""
    tolerance = 5e-2 if expected_BV.dtype.itemsize < 4 else 1e-4
    scale = float(expected_BV.abs().max())
    return bool((found_BV - expected_BV).abs().max() <= tolerance * max(scale, 1.0))
