"""On-policy distillation: the policy comes near its teachers on the responses that it sampled itself.

The divergence of each token is minimised, or its negative is the token's advantage in a clipped policy loss.

Axes: B sequences, R response positions, K the teacher's most probable tokens at one position (0 where the loss
reads none), P response tokens of all rows one after the other.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from miniverl.engine.experience import Experience, TeacherTargets, padded, present
from miniverl.engine.loss import kl_estimate
from miniverl.engine.policy_loss import vanilla
from miniverl.engine.policy_metrics import policy_metrics
from miniverl.engine.recipe import Distillation, Recipe

# What upstream's vanilla loss takes where the config has no clip_ratio_c, as that of distillation has none:
# verl/trainer/ppo/core_algos.py:1320, verl/workers/config/distillation.py:32 (v0.9.0).
_DUAL_CLIP = 3.0


def forward_kl_topk(
    student_log_probs_BRK: Tensor, teacher_log_probs_BRK: Tensor, *, min_log_prob: float | None
) -> Tensor:
    """KL(teacher || student) over the teacher's most probable tokens, per position.

        max(0, sum_k p_k (log p_k - log q_k))        p the teacher's, q the student's probabilities

    Neither is made to add up to 1 over the K tokens, so the sum can be negative. `min_log_prob` bounds both
    log-probs from below first; a bounded one has no gradient.
    Paper: arXiv 2306.13649; upstream: verl/trainer/distillation/fsdp/losses.py:75,
    verl/trainer/distillation/losses.py:365 (v0.9.0).
    """
    if min_log_prob is not None:
        student_log_probs_BRK = student_log_probs_BRK.clamp(min=min_log_prob)
        teacher_log_probs_BRK = teacher_log_probs_BRK.clamp(min=min_log_prob)
    differences_BRK = teacher_log_probs_BRK - student_log_probs_BRK
    return (teacher_log_probs_BRK.exp() * differences_BRK).sum(-1).clamp(min=0.0)


def policy_gradient(
    divergences_BR: Tensor,
    log_probs_BR: Tensor,
    old_log_probs_BR: Tensor,
    mask_BR: Tensor,
    importance_weights_BR: Tensor | None,
    *,
    clips: tuple[float, float],
) -> Tensor:
    """The clipped policy loss per token, whose advantage is minus the token's divergence, as it stands.

    Upstream: verl/trainer/distillation/losses.py:270 (v0.9.0).
    """
    per_token_BR = vanilla(
        log_probs_BR,
        old_log_probs_BR,
        -divergences_BR.detach(),
        mask_BR,
        clip_low=clips[0],
        clip_high=clips[1],
        dual_clip=_DUAL_CLIP,
    )
    return per_token_BR if importance_weights_BR is None else per_token_BR * importance_weights_BR


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """What student and teacher give the same tokens; only the student's have gradients."""

    student_log_probs_BR: Tensor
    teacher_log_probs_BR: Tensor
    student_top_log_probs_BRK: Tensor
    teacher_top_log_probs_BRK: Tensor


def compared(
    rows: Sequence[Experience], student_log_probs_BR: Tensor, student_top_log_probs_PK: Tensor
) -> Compared:
    """The rows' targets beside the student's scores of them."""
    device = student_log_probs_BR.device
    targets = _targets(rows)
    lengths = [len(each.log_probs_R) for each in targets]
    teacher_log_probs_BR = padded([each.log_probs_R for each in targets], device)
    student_top_log_probs_BRK = padded(student_top_log_probs_PK.split(lengths), device)
    return Compared(
        student_log_probs_BR=student_log_probs_BR,
        teacher_log_probs_BR=teacher_log_probs_BR,
        student_top_log_probs_BRK=student_top_log_probs_BRK,
        teacher_top_log_probs_BRK=torch.zeros_like(student_top_log_probs_BRK)
        if targets[0].top_log_probs_RK is None
        else padded(present([each.top_log_probs_RK for each in targets]), device),
    )


def teacher_tokens(rows: Sequence[Experience], device: torch.device) -> Tensor:
    """The tokens [P, K] whose log-probs the loss needs of the student besides its own."""
    tokens = [each.tokens_RK for each in _targets(rows)]
    if tokens[0] is None:
        num_tokens = sum(len(each.trajectory.response_tokens) for each in rows)
        return torch.empty(num_tokens, 0, dtype=torch.int64, device=device)
    return torch.cat(present(tokens)).to(device)


def divergences(scores: Compared, recipe: Distillation) -> Tensor:
    """How far the student is from its teacher at each token [B, R], bounded by `max_loss` both ways.

    Every loss but forward_kl_topk estimates KL(student || teacher) from the sampled token
    (upstream: verl/trainer/distillation/losses.py:373, v0.9.0).
    """
    if recipe.loss == "forward_kl_topk":
        divergences_BR = forward_kl_topk(
            scores.student_top_log_probs_BRK,
            scores.teacher_top_log_probs_BRK,
            min_log_prob=recipe.min_log_prob,
        )
    else:
        divergences_BR = kl_estimate(
            scores.student_log_probs_BR, scores.teacher_log_probs_BR, recipe.loss
        )
    if recipe.max_loss is not None:
        divergences_BR = divergences_BR.clamp(-recipe.max_loss, recipe.max_loss)
    return divergences_BR


def per_token_loss(
    scores: Compared,
    old_log_probs_BR: Tensor,
    mask_BR: Tensor,
    importance_weights_BR: Tensor | None,
    recipe: Distillation,
) -> Tensor:
    """What is aggregated and minimised: the divergence, or its policy loss."""
    divergences_BR = divergences(scores, recipe)
    if recipe.policy_gradient_clips is None:
        return divergences_BR
    return policy_gradient(
        divergences_BR,
        scores.student_log_probs_BR,
        old_log_probs_BR,
        mask_BR,
        importance_weights_BR,
        clips=recipe.policy_gradient_clips,
    )


@torch.no_grad()
def distillation_metrics(
    scores: Compared,
    old_log_probs_BR: Tensor,
    mask_BR: Tensor,
    recipe: Distillation,
    *,
    num_tokens: int,
) -> dict[str, Tensor]:
    """Shares of the mini-batch's tokens: summed over its micro-batches they are means.

    `divergence`; `teacher_mass` and `student_mass`: probability of the teacher's most probable tokens; what the
    clipping of the policy loss did.
    """
    divergences_BR = divergences(scores, recipe)
    shares = {"divergence": divergences_BR}
    if recipe.top_k is not None:
        shares["teacher_mass"] = scores.teacher_top_log_probs_BRK.exp().sum(-1)
        shares["student_mass"] = scores.student_top_log_probs_BRK.exp().sum(-1)
    found = {
        f"distillation_{name}": torch.where(mask_BR, share_BR, 0.0).sum() / num_tokens
        for name, share_BR in shares.items()
    }
    if recipe.policy_gradient_clips is None:
        return found
    clip_low, clip_high = recipe.policy_gradient_clips
    clipping = policy_metrics(
        scores.student_log_probs_BR,
        old_log_probs_BR,
        -divergences_BR,
        mask_BR,
        "vanilla",
        {"clip_low": clip_low, "clip_high": clip_high, "dual_clip": _DUAL_CLIP},
        num_tokens=num_tokens,
    )
    return found | {f"distillation_{name}": share for name, share in clipping.items()}


def uses_task_rewards(recipe: Recipe) -> bool:
    """Whether the rewards, and with them the policy loss, the entropy and the KL, are trained on."""
    return recipe.distillation is None or recipe.distillation.uses_task_rewards


def _targets(rows: Sequence[Experience]) -> list[TeacherTargets]:
    """The targets of the rows, all of which a recipe with distillation made."""
    targets = [each.teacher for each in rows if each.teacher is not None]
    assert len(targets) == len(rows), "a recipe with distillation, and rows without targets"
    return targets
