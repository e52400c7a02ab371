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

    `old_log_probs_R` and `entropy_R` are the policy's as it enters the step's updates. None: until its update has
    computed them (engine/cycle.py, is_scored_by_update); the entropy also where the sampler's log-probs stand for
    the policy's.
    """

    trajectory: Trajectory
    is_trained_R: Tensor
    old_log_probs_R: Tensor | None
    advantages_R: Tensor
    reference_log_probs_R: Tensor | None
    importance_weights_R: Tensor | None
    values_R: Tensor | None
    returns_R: Tensor | None
    teacher: TeacherTargets | None
    entropy_R: Tensor | None = None


def padded(rows: Sequence[Tensor], device: str | torch.device) -> Tensor:
    """Ragged rows as one tensor, 0 (False) where there is nothing."""
    return pad_sequence(list(rows), batch_first=True).to(device)


def given(row: Tensor | None) -> Tensor:
    """The row, which the recipe made."""
    assert row is not None, "the recipe's parts say what is computed, and this one was not"
    return row


def present(rows: Sequence[Tensor | None]) -> list[Tensor]:
    """The rows, all of which the recipe made."""
    return [given(row) for row in rows]
