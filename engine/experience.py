"""What the updates know of a step: each trajectory, and what was computed of its tokens.

Axes: R response positions of one trajectory, K the tokens that a teacher names at each.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from miniverl.engine.trajectory import Trajectory


@dataclass(frozen=True, kw_only=True, slots=True)
class TeacherTargets:
    """A teacher's log-probabilities, float32, at temperature 1.

    `log_probs_R` are those of the response's own tokens. `tokens_RK` (int64) and `top_log_probs_RK` are its
    most probable tokens in falling order; None where the loss needs the former only.
    """

    log_probs_R: Tensor
    tokens_RK: Tensor | None
    top_log_probs_RK: Tensor | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Experience:
    """A trajectory and what the updates need to know of it; tensors are float32 [R] on the CPU.

    `is_trained_R` (bool) leaves out what rollout correction rejects. Losses are summed over it; the
    normalisers count every response token (upstream: verl/trainer/ppo/v1/trainer_base.py, v0.9.0, hands the
    mask of before on as `loss_mask`).
    """

    trajectory: Trajectory
    is_trained_R: Tensor
    old_log_probs_R: Tensor
    advantages_R: Tensor
    reference_log_probs_R: Tensor | None
    importance_weights_R: Tensor | None
    values_R: Tensor | None
    returns_R: Tensor | None
    teacher: TeacherTargets | None


def padded(rows: Sequence[Tensor], device: str | torch.device) -> Tensor:
    """Ragged rows as one tensor, 0 (False) where there is nothing."""
    return pad_sequence(list(rows), batch_first=True).to(device)


def present(rows: Sequence[Tensor | None]) -> list[Tensor]:
    """The rows, all of which the recipe made."""
    known = [row for row in rows if row is not None]
    assert len(known) == len(rows), "the recipe's parts say what is computed, and this one was not"
    return known
