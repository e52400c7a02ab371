"""Scores: the log-probability, and the entropy, that a model gives each response token.

The head multiplies response positions only, a few hundred at a time: the logits of all response tokens never exist at
once, neither here nor in the backward pass.

Axes: R response positions, H hidden, V vocabulary, P response tokens of all rows one after the other,
C a chunk of them, K other tokens that are scored at each. Scores are those of logits / max(temperature, 1e-8), unfiltered
(upstream: verl/workers/engine/fsdp/transformer_impl.py, prepare_model_outputs, v0.9.0).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from miniverl.engine.forward import predicting_states
from miniverl.engine.layer import at_least_float32
from miniverl.engine.models import Model
from miniverl.engine.packed import Packed, num_packed_tokens, pack
from miniverl.engine.trajectory import Trajectory

_CHUNK_LOGITS = 256 * 49152  # 50 MB in float32, of which a few copies exist at once
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
    with_entropy: bool,
) -> Scores:
    """Log-probs and entropies of every response token, computed in the bins that an update uses.

    Without `with_entropy` the entropies are 0.
    """
    log_probs: list[Tensor] = []
    entropy: list[Tensor] = []
    for members in bins(trajectories, micro_batch_tokens):
        packed = pack(members, model.device)
        scores = response_scores(
            model, packed, temperature=temperature, entropy="told" if with_entropy else "none"
        )
        for kept, values_P in zip((log_probs, entropy), scores, strict=True):
            kept += values_P.cpu().split(packed.response_lengths)
    return Scores(log_probs=tuple(log_probs), entropy=tuple(entropy))


def bins(
    trajectories: Sequence[Trajectory], micro_batch_tokens: int
) -> Iterator[Sequence[Trajectory]]:
    """Consecutive trajectories that stay within the budget of tokens, a shared prompt counted once.

    Order and budget come from the recipe, so the order of every sum over bins does too. A trajectory that is
    longer than the budget has a bin of its own.
    """
    members: list[Trajectory] = []
    for each in trajectories:
        if members and num_packed_tokens([*members, each]) > micro_batch_tokens:
            yield members
            members = []
        members.append(each)
    if members:
        yield members


# What is asked of the entropy: nothing, its value, or its gradient too.
Entropy = Literal["none", "told", "trained"]


def response_scores(
    model: Model, packed: Packed, *, temperature: float, entropy: Entropy
) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies [P] of the response tokens, with gradients.

    With the entropy "none", the second is 0 everywhere.
    """
    none_P0 = packed.targets_P.new_empty(len(packed.targets_P), 0)
    log_probs_P, entropy_P, _ = response_scores_at(
        model, packed, none_P0, temperature=temperature, entropy=entropy
    )
    return log_probs_P, entropy_P


def response_scores_at(
    model: Model, packed: Packed, tokens_PK: Tensor, *, temperature: float, entropy: Entropy
) -> tuple[Tensor, Tensor, Tensor]:
    """What `response_scores` gives, and the log-probs [P, K] of other tokens in the place of each response token.

    The tokens of one place are distinct.
    """
    scores: tuple[Tensor, Tensor, Tensor] = _HeadScores.apply(  # type: ignore[no-untyped-call]
        predicting_states(model, packed),
        model.head_VH,
        packed.targets_P,
        tokens_PK,
        max(temperature, _LOWEST_TEMPERATURE),
        model.compute_dtype,
        entropy,
    )
    return scores


class _HeadScores(torch.autograd.Function):
    """With z = W h / temperature and p = softmax(z):

    log p(t) = z_t - logsumexp(z)            its gradient by z_i is [i = t] - p_i
    H        = logsumexp(z) - sum_i p_i z_i  its gradient by z_i is -p_i (log p_i + H)

    Of a frozen head, the gradient of log p(t) by h is (W_t - m) / temperature with m = sum_i p_i W_i: the forward, which
    has p at hand, leaves m, and the backward needs no logits. Otherwise it makes them again.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_PH: Tensor,
        head_VH: Tensor,
        targets_P: Tensor,
        tokens_PK: Tensor,
        temperature: float,
        dtype: torch.dtype,
        entropy: Entropy,
    ) -> tuple[Tensor, Tensor, Tensor]:
        log_normaliser_P = hidden_PH.new_empty(len(hidden_PH), dtype=at_least_float32(dtype))
        log_probs_P = torch.empty_like(log_normaliser_P)
        entropy_P = torch.zeros_like(log_normaliser_P)
        log_probs_PK = log_normaliser_P.new_empty(tokens_PK.shape)
        of_hidden, of_head = ctx.needs_input_grad[:2]
        leaves_mean = of_hidden and not of_head and entropy != "trained"
        mean_PH = torch.empty_like(hidden_PH) if leaves_mean else None
        for part in chunks(len(hidden_PH), len(head_VH)):
            logits_CV = chunk_logits(hidden_PH[part], head_VH, temperature, dtype)
            log_normaliser_P[part] = logits_CV.logsumexp(-1)
            log_normaliser_C1 = log_normaliser_P[part, None]
            chosen_C1 = logits_CV.gather(1, targets_P[part, None])
            log_probs_P[part] = (chosen_C1 - log_normaliser_C1)[:, 0]
            log_probs_PK[part] = logits_CV.gather(1, tokens_PK[part]) - log_normaliser_C1
            if entropy == "none" and mean_PH is None:
                continue
            probabilities_CV = (logits_CV - log_normaliser_C1).exp_()
            if mean_PH is not None:
                mean_PH[part] = probabilities_CV.to(dtype) @ head_VH.to(dtype)
            if entropy != "none":
                expected_C = probabilities_CV.mul_(logits_CV).sum(-1)
                entropy_P[part] = log_normaliser_P[part] - expected_C
        ctx.save_for_backward(
            hidden_PH, head_VH, targets_P, tokens_PK, log_normaliser_P, entropy_P, mean_PH
        )
        ctx.temperature, ctx.dtype, ctx.entropy = temperature, dtype, entropy
        ctx.set_materialize_grads(False)
        return log_probs_P, entropy_P, log_probs_PK

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        _, _, targets_P, tokens_PK, log_normaliser_P, _, mean_PH = ctx.saved_tensors
        by_log_prob_P, by_log_prob_PK = (
            log_normaliser_P.new_zeros(tokens.shape) if gradient is None else gradient
            for gradient, tokens in ((gradients[0], targets_P), (gradients[2], tokens_PK))
        )
        if mean_PH is not None:
            by_hidden_PH = _by_hidden(ctx, by_log_prob_P, by_log_prob_PK)
            return by_hidden_PH, None, None, None, None, None, None
        by_entropy_P = gradients[1] if ctx.entropy == "trained" else None
        by_both = _by_hidden_and_head(ctx, by_log_prob_P, by_entropy_P, by_log_prob_PK)
        return *by_both, None, None, None, None, None


def _by_hidden(ctx: Any, by_log_prob_P: Tensor, by_log_prob_PK: Tensor) -> Tensor:
    """The gradient by the hidden states [P, H], from the mean row of the head that the forward left."""
    hidden_PH, head_VH, targets_P, tokens_PK, _, _, mean_PH = ctx.saved_tensors
    by_all_P = by_log_prob_P + by_log_prob_PK.sum(-1)
    by_hidden_PH = torch.empty_like(hidden_PH)
    for part in chunks(len(hidden_PH), len(head_VH)):
        by_part_CH = head_VH[targets_P[part]] * by_log_prob_P[part, None]
        by_part_CH -= mean_PH[part] * by_all_P[part, None]
        if tokens_PK.shape[1]:
            rows_CKH = head_VH[tokens_PK[part]].to(by_log_prob_PK.dtype)
            by_part_CH += torch.bmm(by_log_prob_PK[part, None], rows_CKH)[:, 0]
        by_hidden_PH[part] = by_part_CH.div_(ctx.temperature)
    return by_hidden_PH


def _by_hidden_and_head(
    ctx: Any, by_log_prob_P: Tensor, by_entropy_P: Tensor | None, by_log_prob_PK: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Both gradients, [P, H] and [V, H], from logits made again; the second only where the head is trained."""
    hidden_PH, head_VH, targets_P, tokens_PK, log_normaliser_P, entropy_P, _ = ctx.saved_tensors
    by_all_P = by_log_prob_P + by_log_prob_PK.sum(-1)
    by_hidden_PH = torch.empty_like(hidden_PH)
    by_head_VH = torch.zeros_like(head_VH) if ctx.needs_input_grad[1] else None
    for part in chunks(len(hidden_PH), len(head_VH)):
        logits_CV = chunk_logits(hidden_PH[part], head_VH, ctx.temperature, ctx.dtype)
        log_p_CV = logits_CV.sub_(log_normaliser_P[part, None])
        by_logits_CV = log_p_CV.exp()
        if by_entropy_P is not None:
            slope_CV = log_p_CV.add_(entropy_P[part, None]).mul_(by_entropy_P[part, None])
            by_logits_CV.mul_(slope_CV.add_(by_all_P[part, None])).neg_()
        else:
            by_logits_CV.mul_(-by_all_P[part, None])
        # Not in one: a target may be among the tokens, and repeated indices add up in no fixed order.
        rows_C = torch.arange(len(by_logits_CV), device=by_logits_CV.device)
        by_logits_CV[rows_C, targets_P[part]] += by_log_prob_P[part]
        by_logits_CV[rows_C[:, None], tokens_PK[part]] += by_log_prob_PK[part]
        by_products_CV = by_logits_CV.div_(ctx.temperature).to(ctx.dtype)
        by_hidden_PH[part] = (by_products_CV @ head_VH.to(ctx.dtype)).to(hidden_PH.dtype)
        if by_head_VH is not None:
            by_head_VH += by_products_CV.T @ hidden_PH[part].to(ctx.dtype)
    return by_hidden_PH, by_head_VH


def chunk_logits(
    hidden_CH: Tensor, head_VH: Tensor, temperature: float, dtype: torch.dtype
) -> Tensor:
    """Logits / temperature of one chunk, at least in float32."""
    logits_CV = functional.linear(hidden_CH.to(dtype), head_VH.to(dtype))
    return logits_CV.to(at_least_float32(dtype)).div_(temperature)


def chunks(length: int, num_tokens: int) -> Iterator[slice]:
    """Slices of positions whose logits, over a vocabulary of `num_tokens`, exist at once: as many as memory is for."""
    size = max(1, _CHUNK_LOGITS // num_tokens)
    for start in range(0, length, size):
        yield slice(start, start + size)
