"""Scores: the log-probability, and the entropy, that a model gives each response token.

The head multiplies response positions only, a few hundred at a time, and the backward pass computes its
softmax again: [B, T, V] never exists, neither do the logits of all response tokens.

Axes: B sequences, T tokens, R response positions, H hidden, V vocabulary, P response tokens of all rows
one after the other, C a chunk of them. Scores are those of logits / max(temperature, 1e-8), unfiltered
(upstream: verl/workers/engine/fsdp/transformer_impl.py, prepare_model_outputs, v0.9.0).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from miniverl.engine.models import Model
from miniverl.engine.trajectory import Batch, Trajectory, batch

_CHUNK_POSITIONS = 256
_LOWEST_TEMPERATURE = 1e-8


@dataclass(frozen=True, kw_only=True, slots=True)
class Scores:
    """One float32 tensor of shape [R] for each trajectory, its length the response's."""

    log_probs: tuple[Tensor, ...]
    entropy: tuple[Tensor, ...]


@torch.no_grad()
def score(
    model: Model,
    trajectories: Sequence[Trajectory],
    *,
    temperature: float,
    micro_batch_tokens: int,
    padding_token: int,
    with_entropy: bool,
) -> Scores:
    """Log-probs and entropies of every response token, computed in the bins that an update uses.

    Without `with_entropy` the entropies are 0.
    """
    log_probs: list[Tensor] = []
    entropy: list[Tensor] = []
    for members in bins(trajectories, micro_batch_tokens):
        tensors = batch(members, padding_token, str(model.device))
        log_probs_BR, entropy_BR = response_scores(
            model, tensors, temperature=temperature, with_entropy=with_entropy
        )
        for row, member in enumerate(members):
            log_probs.append(log_probs_BR[row, : len(member.response_tokens)].cpu())
            entropy.append(entropy_BR[row, : len(member.response_tokens)].cpu())
    return Scores(log_probs=tuple(log_probs), entropy=tuple(entropy))


def bins(
    trajectories: Sequence[Trajectory], micro_batch_tokens: int
) -> Iterator[Sequence[Trajectory]]:
    """Consecutive trajectories whose padded tokens (rows times longest row) stay within the budget.

    Order and budget come from the recipe, so the order of every sum over bins does too. A trajectory that is
    longer than the budget has a bin of its own.
    """
    start, longest = 0, 0
    for index, each in enumerate(trajectories):
        length = max(longest, len(each.prompt_tokens) + len(each.response_tokens))
        if index > start and (index - start + 1) * length > micro_batch_tokens:
            yield trajectories[start:index]
            start, length = index, len(each.prompt_tokens) + len(each.response_tokens)
        longest = length
    if trajectories:
        yield trajectories[start:]


def response_scores(
    model: Model, tensors: Batch, *, temperature: float, with_entropy: bool
) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies [B, R] of the response tokens, with gradients; 0 outside the mask.

    Without `with_entropy` the second is 0 everywhere.
    """
    hidden_BTH = model.hidden_states(tensors.tokens_BT)
    rows_B1 = torch.arange(len(tensors.tokens_BT), device=hidden_BTH.device)[:, None]
    flat_positions_BR = rows_B1 * hidden_BTH.shape[1] + tensors.logit_positions_BR
    hidden_PH = hidden_BTH.flatten(0, 1).index_select(
        0, flat_positions_BR[tensors.response_mask_BR]
    )
    log_probs_P, entropy_P = _HeadScores.apply(  # type: ignore[no-untyped-call]
        hidden_PH,
        model.head_VH,
        tensors.response_tokens_BR[tensors.response_mask_BR],
        max(temperature, _LOWEST_TEMPERATURE),
        model.compute_dtype,
        with_entropy,
    )
    return (
        _spread(log_probs_P, tensors.response_mask_BR),
        _spread(entropy_P, tensors.response_mask_BR),
    )


class _HeadScores(torch.autograd.Function):
    """With z = W h / temperature and p = softmax(z):

    log p(t) = z_t - logsumexp(z)            its gradient by z_i is [i = t] - p_i
    H        = logsumexp(z) - sum_i p_i z_i  its gradient by z_i is -p_i (log p_i + H)
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_PH: Tensor,
        head_VH: Tensor,
        targets_P: Tensor,
        temperature: float,
        dtype: torch.dtype,
        with_entropy: bool,
    ) -> tuple[Tensor, Tensor]:
        log_normaliser_P = hidden_PH.new_empty(len(hidden_PH), dtype=_at_least_float32(dtype))
        log_probs_P = torch.empty_like(log_normaliser_P)
        entropy_P = torch.zeros_like(log_normaliser_P)
        for part in _chunks(len(hidden_PH)):
            logits_CV = _logits(hidden_PH[part], head_VH, temperature, dtype)
            log_normaliser_P[part] = logits_CV.logsumexp(-1)
            chosen_C1 = logits_CV.gather(1, targets_P[part, None])
            log_probs_P[part] = chosen_C1[:, 0] - log_normaliser_P[part]
            if with_entropy:
                probabilities_CV = (logits_CV - log_normaliser_P[part, None]).exp_()
                expected_C = probabilities_CV.mul_(logits_CV).sum(-1)
                entropy_P[part] = log_normaliser_P[part] - expected_C
        ctx.save_for_backward(hidden_PH, head_VH, targets_P, log_normaliser_P, entropy_P)
        ctx.temperature, ctx.dtype, ctx.with_entropy = temperature, dtype, with_entropy
        return log_probs_P, entropy_P

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        by_log_prob_P, by_entropy_P = gradients
        hidden_PH, head_VH, targets_P, log_normaliser_P, entropy_P = ctx.saved_tensors
        by_hidden_PH = torch.empty_like(hidden_PH)
        by_head_VH = torch.zeros_like(head_VH) if ctx.needs_input_grad[1] else None
        for part in _chunks(len(hidden_PH)):
            logits_CV = _logits(hidden_PH[part], head_VH, ctx.temperature, ctx.dtype)
            log_p_CV = logits_CV.sub_(log_normaliser_P[part, None])
            by_logits_CV = log_p_CV.exp()
            if ctx.with_entropy:
                slope_CV = log_p_CV.add_(entropy_P[part, None]).mul_(by_entropy_P[part, None])
                by_logits_CV.mul_(slope_CV.add_(by_log_prob_P[part, None])).neg_()
            else:
                by_logits_CV.mul_(-by_log_prob_P[part, None])
            rows_C = torch.arange(len(by_logits_CV), device=by_logits_CV.device)
            by_logits_CV[rows_C, targets_P[part]] += by_log_prob_P[part]
            by_products_CV = by_logits_CV.div_(ctx.temperature).to(ctx.dtype)
            by_hidden_PH[part] = (by_products_CV @ head_VH.to(ctx.dtype)).to(hidden_PH.dtype)
            if by_head_VH is not None:
                by_head_VH += by_products_CV.T @ hidden_PH[part].to(ctx.dtype)
        return by_hidden_PH, by_head_VH, None, None, None, None


def _logits(hidden_CH: Tensor, head_VH: Tensor, temperature: float, dtype: torch.dtype) -> Tensor:
    """Logits / temperature of one chunk, at least in float32."""
    logits_CV = functional.linear(hidden_CH.to(dtype), head_VH.to(dtype))
    return logits_CV.to(_at_least_float32(dtype)).div_(temperature)


def _chunks(length: int) -> Iterator[slice]:
    for start in range(0, length, _CHUNK_POSITIONS):
        yield slice(start, start + _CHUNK_POSITIONS)


def _spread(values_P: Tensor, mask_BR: Tensor) -> Tensor:
    """The values at the mask's places, row by row; 0 elsewhere."""
    values_BR = values_P.new_zeros(mask_BR.shape)
    values_BR[mask_BR] = values_P
    return values_BR


def _at_least_float32(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)
