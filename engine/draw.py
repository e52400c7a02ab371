"""One token per row from logits and one uniform number per row: the inverse of the cumulative distribution.

The vocabulary is cut into blocks: the uniform number first falls into a block, what is left of it into a token
of that block. Cumulative sums run over integers (weights times 2^40), which are exact and never decrease: no
order of summation, thread count or neighbouring row can move a draw, and a token of probability 0 is an empty
interval that nothing falls into.

Axes: B rows, V vocabulary, K blocks, W tokens of a block.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

_BLOCK_TOKENS = 128
_SCALE = 2.0**40  # a vocabulary of 2^22 tokens stays below 2^63


class Draw(NamedTuple):
    """int64 [B], float32 [B]; the two are one tensor where nothing is filtered."""

    tokens_B: Tensor
    log_probs_B: Tensor
    filtered_log_probs_B: Tensor


def draw(
    logits_BV: Tensor, uniforms_B: Tensor, *, temperature: float, top_p: float, top_k: int
) -> Draw:
    """Drawn tokens and their log-probabilities, over the whole vocabulary and among what could be drawn.

    `temperature` 0 takes the first largest logit, with its log-probability at temperature 1 (both). Otherwise
    log-probabilities are those of logits / temperature. `top_k` (0: off) and `top_p` (1.0: off) decide what can be
    drawn; a policy is scored without them (upstream: verl/workers/engine/fsdp/transformer_impl.py,
    prepare_model_outputs), while the sampler's own log-probabilities are the filtered ones
    (logprobs_mode=processed_logprobs). A row with a NaN logit gets the log-probability NaN.
    """
    logits_BV = logits_BV.float()
    is_greedy = temperature == 0
    scaled_BV = logits_BV if is_greedy else logits_BV / temperature
    peaks_B1 = scaled_BV.amax(-1, keepdim=True)
    blocks_BKW = _blocks((scaled_BV - peaks_B1).exp())
    sums_BK = kept_sums_BK = blocks_BKW.sum(-1, dtype=torch.float64)
    if is_greedy:
        tokens_B = logits_BV.argmax(-1)
    elif top_k == 0 and top_p == 1:
        tokens_B = _inverse(blocks_BKW, sums_BK, uniforms_B)
    else:
        kept_BKW = _top_p(_top_k(blocks_BKW.flatten(1), top_k), top_p).view_as(blocks_BKW)
        kept_sums_BK = kept_BKW.sum(-1, dtype=torch.float64)
        tokens_B = _inverse(kept_BKW, kept_sums_BK, uniforms_B)
    # Of a row with a NaN every comparison fails: its draw can fall behind the vocabulary's end.
    tokens_B = tokens_B.clamp(max=logits_BV.shape[1] - 1)
    chosen_B1 = (scaled_BV.gather(1, tokens_B[:, None]) - peaks_B1).double()
    log_probs_B = _log_probs(chosen_B1, sums_BK)
    is_whole = kept_sums_BK is sums_BK
    filtered_log_probs_B = log_probs_B if is_whole else _log_probs(chosen_B1, kept_sums_BK)
    return Draw(tokens_B, log_probs_B, filtered_log_probs_B)


def _log_probs(chosen_B1: Tensor, sums_BK: Tensor) -> Tensor:
    return (chosen_B1 - sums_BK.sum(-1, keepdim=True).log())[:, 0].float()


def _inverse(blocks_BKW: Tensor, sums_BK: Tensor, uniforms_B: Tensor) -> Tensor:
    block_B1, rest_B1 = _interval(_integers(sums_BK), uniforms_B[:, None])
    inside_BW = blocks_BKW.gather(1, block_B1[:, :, None].expand(-1, -1, _BLOCK_TOKENS))[:, 0]
    # A block of rare tokens is scaled by its own largest weight: none of them vanishes in the rounding.
    inside_BW = inside_BW.double() / inside_BW.amax(-1, keepdim=True)
    token_B1, _ = _interval(_integers(inside_BW), rest_B1)
    return (block_B1 * _BLOCK_TOKENS + token_B1)[:, 0]


def _interval(weights_BK: Tensor, fractions_B1: Tensor) -> tuple[Tensor, Tensor]:
    """Index of the interval that each fraction of the row's total falls into, and how far into it (0 to 1)."""
    ends_BK = weights_BK.cumsum(-1)
    totals_B1 = ends_BK[:, -1:]
    targets_B1 = torch.minimum((fractions_B1 * totals_B1).long(), totals_B1 - 1)
    index_B1 = torch.searchsorted(ends_BK, targets_B1, right=True).clamp(
        max=weights_BK.shape[1] - 1
    )
    widths_B1 = weights_BK.gather(1, index_B1)
    into_B1 = targets_B1 - (ends_BK.gather(1, index_B1) - widths_B1)
    return index_B1, into_B1.double() / widths_B1


def _top_k(weights_BV: Tensor, top_k: int) -> Tensor:
    """Weights below the k-th largest become 0; equals of the k-th stay, so that no order decides."""
    if top_k == 0 or top_k >= weights_BV.shape[1]:
        return weights_BV
    thresholds_B1 = weights_BV.topk(top_k).values[:, -1:]
    return torch.where(weights_BV >= thresholds_B1, weights_BV, 0.0)


def _top_p(weights_BV: Tensor, top_p: float) -> Tensor:
    """Keep the fewest largest weights that reach `top_p` of the row's total, and equals of the last one."""
    if top_p == 1:
        return weights_BV
    sorted_BV = weights_BV.sort(-1, descending=True).values
    integers_BV = _integers(sorted_BV.double())
    ends_BV = integers_BV.cumsum(-1)
    is_kept_BV = (ends_BV - integers_BV).double() < top_p * ends_BV[:, -1:].double()
    smallest_B1 = torch.where(is_kept_BV, sorted_BV, torch.inf).amin(-1, keepdim=True)
    return torch.where(weights_BV >= smallest_B1, weights_BV, 0.0)


def _integers(weights_BK: Tensor) -> Tensor:
    return (weights_BK * _SCALE).round().long()


def _blocks(weights_BV: Tensor) -> Tensor:
    """The vocabulary axis in blocks, the last one filled up with weights of 0."""
    missing = -weights_BV.shape[1] % _BLOCK_TOKENS
    padded_BV = functional.pad(weights_BV, (0, missing)) if missing else weights_BV
    return padded_BV.view(weights_BV.shape[0], -1, _BLOCK_TOKENS)
