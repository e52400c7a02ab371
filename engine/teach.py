"""Teacher targets: what a teacher thinks of the student's own responses, token by token, at temperature 1.

It reads exactly the tokens that the student read and wrote, packed as in scoring, and its logits exist for a few
hundred positions at a time.

Axes: R response positions, P response tokens of all rows one after the other, C a chunk of them, H hidden,
V vocabulary, K the teacher's most probable tokens at one position.
"""

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from miniverl.engine.experience import TeacherTargets
from miniverl.engine.forward import predicting_states
from miniverl.engine.models import Model
from miniverl.engine.packed import pack
from miniverl.engine.problem import Problem, Refused
from miniverl.engine.score import bins, chunk_logits, chunks
from miniverl.engine.trajectory import Trajectory

_TEMPERATURE = 1.0


@torch.no_grad()
def teacher_targets(
    teacher: Model,
    trajectories: Sequence[Trajectory],
    *,
    micro_batch_tokens: int,
    top_k: int | None,
    num_tokens: int,
) -> list[TeacherTargets]:
    """The targets of every trajectory; with `top_k`, also that many of the teacher's most probable tokens.

    Those are chosen among the student's `num_tokens` tokens; their log-probs are the teacher's own, not made to
    add up to 1. Upstream: verl/experimental/teacher_loop/teacher_manager.py:115 (v0.9.0). Raises Refused where
    the teacher gives what is not a number.
    """
    targets: list[TeacherTargets] = []
    for members in bins(trajectories, micro_batch_tokens):
        packed = pack(members, teacher.device)
        hidden_PH = predicting_states(teacher, packed)
        found = _head_targets(teacher, hidden_PH, packed.targets_P, top_k or 0, num_tokens)
        rows = zip(*(each.cpu().split(packed.response_lengths) for each in found), strict=True)
        for log_probs_R, tokens_RK, top_log_probs_RK in rows:
            targets.append(
                TeacherTargets(
                    log_probs_R=log_probs_R,
                    tokens_RK=None if top_k is None else tokens_RK,
                    top_log_probs_RK=None if top_k is None else top_log_probs_RK,
                )
            )
    return targets


def most_probable(logits_CV: Tensor, top_k: int) -> Tensor:
    """The tokens [C, K] of the largest logits in falling order; of equal ones, the smaller tokens first.

    torch.topk gives the same logits, but which of the tokens with equal ones is left to its kernel.
    """
    least_C1 = logits_CV.topk(top_k).values[:, -1:]
    is_above_CV = logits_CV > least_C1
    is_least_CV = logits_CV == least_C1
    num_missing_C1 = top_k - is_above_CV.sum(-1, keepdim=True)
    is_early_CV = is_least_CV.cumsum(-1, dtype=torch.int32) <= num_missing_C1
    tokens_CK = (is_above_CV | is_least_CV & is_early_CV).nonzero()[:, 1].view(-1, top_k)
    order_CK = logits_CV.gather(1, tokens_CK).argsort(dim=-1, descending=True, stable=True)
    return tokens_CK.gather(1, order_CK)


def target_row(
    step: int, trajectory: Trajectory, teacher: str | None, targets: TeacherTargets
) -> dict[str, Any]:
    """The trajectory's line in teacher_targets.jsonl: which teacher, and what tells its targets from others."""
    top_log_probs_RK = targets.top_log_probs_RK
    mass_R = None if top_log_probs_RK is None else top_log_probs_RK.double().exp().sum(-1)
    return {
        "step": step,
        "prompt_id": trajectory.prompt_id,
        "sample": trajectory.sample,
        "teacher": teacher,
        "log_prob_mean": float(targets.log_probs_R.double().mean()),
        "top_mass_mean": None if mass_R is None else float(mass_R.mean()),
        "targets_sha256": _sha256(targets),
    }


def _head_targets(
    teacher: Model, hidden_PH: Tensor, targets_P: Tensor, top_k: int, num_tokens: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probs [P] of the response tokens; the most probable tokens [P, K], and theirs."""
    log_probs_P = hidden_PH.new_empty(len(hidden_PH), dtype=torch.float32)
    tokens_PK = targets_P.new_empty(len(hidden_PH), top_k)
    top_log_probs_PK = log_probs_P.new_empty(tokens_PK.shape)
    for part in chunks(len(hidden_PH), len(teacher.head_VH)):
        logits_CV = chunk_logits(
            hidden_PH[part], teacher.head_VH, _TEMPERATURE, teacher.compute_dtype
        )
        log_normaliser_C1 = logits_CV.logsumexp(-1, keepdim=True)
        if not log_normaliser_C1.isfinite().all():
            raise Refused([_NOT_FINITE])
        chosen_C1 = logits_CV.gather(1, targets_P[part, None])
        log_probs_P[part] = (chosen_C1 - log_normaliser_C1)[:, 0]
        if top_k:
            tokens_PK[part] = most_probable(logits_CV[:, :num_tokens], top_k)
            top_logits_CK = logits_CV.gather(1, tokens_PK[part])
            top_log_probs_PK[part] = top_logits_CK - log_normaliser_C1
    return log_probs_P, tokens_PK, top_log_probs_PK


def _sha256(targets: TeacherTargets) -> str:
    """Over the bytes of the tensors: the log-probs, the most probable tokens, and theirs."""
    tensors = (targets.log_probs_R, targets.tokens_RK, targets.top_log_probs_RK)
    digest = hashlib.sha256()
    for tensor in tensors:
        if tensor is not None:
            digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()


_NOT_FINITE = Problem(
    field="teacher",
    value="log-probabilities",
    origin="training",
    reason="the teacher's log-probabilities are not finite",
    fix="Compile with a wider type for the teacher, or bind another one",
)
