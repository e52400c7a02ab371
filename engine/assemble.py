"""From what a step's trajectories earned and how each model scores them to what the updates learn from.

The order is upstream's (verl/trainer/ppo/v1/trainer_base.py:528, v0.9.0): KL in the reward, rollout correction,
then advantages. Pure: tensors in, tensors out.

Axes: N trajectories of the step, R response positions.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from miniverl.engine.advantage import ADVANTAGES, Estimate, Outcomes
from miniverl.engine.correction import Correction, correct
from miniverl.engine.experience import Experience, TeacherTargets, padded
from miniverl.engine.kl_reward import kl_rewards
from miniverl.engine.recipe import Recipe
from miniverl.engine.trajectory import Trajectory

Rows = Sequence[Tensor]  # one float32 [R] a trajectory


@dataclass(frozen=True, kw_only=True, slots=True)
class Scored:
    """A step's trajectories, and what each model says of their tokens; None where the recipe has no such model.

    `sampled` are the sampler's own log-probabilities, of what top-k and top-p left. `old` and `entropy` are the
    policy's, None where its update computes them.
    """

    trajectories: Sequence[Trajectory]
    sampled: Rows
    old: Rows | None
    entropy: Rows | None
    reference: Rows | None
    values: Rows | None
    teacher: Sequence[TeacherTargets] | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Assembled:
    """`current_kl` is the step's KL to the reference, where the reward pays for it."""

    experiences: list[Experience]
    current_kl: float | None
    metrics: Mapping[str, float]


def assemble(recipe: Recipe, scored: Scored, *, kl_coefficient: float | None) -> Assembled:
    """Everything the updates learn from. `kl_coefficient` is that of this step."""
    rewards_NR, mask_NR = token_rewards(scored.trajectories)
    current_kl = None
    paid: dict[str, float] = {}
    if recipe.kl_reward is not None:
        assert scored.reference is not None
        assert scored.old is not None, "who pays for the KL scores before the update"
        assert kl_coefficient is not None
        rewards_NR, current_kl = kl_rewards(
            rewards_NR,
            padded(scored.old, "cpu"),
            padded(scored.reference, "cpu"),
            mask_NR,
            recipe.kl_reward,
            kl_coefficient,
        )
        paid = {"kl_reward": current_kl, "kl_coefficient": kl_coefficient}
    correction = _correction(recipe, scored, mask_NR)
    estimate = ADVANTAGES[recipe.advantage.estimator](
        Outcomes(
            token_rewards_NR=rewards_NR,
            mask_NR=correction.mask_NR,
            # A prompt met twice in one step has two groups.
            groups_N=torch.arange(len(scored.trajectories)) // recipe.rollout.samples_per_prompt,
            values_NR=None if scored.values is None else padded(scored.values, "cpu"),
        ),
        recipe.advantage,
    )
    return Assembled(
        experiences=list(_experiences(scored, correction, estimate)),
        current_kl=current_kl,
        metrics={**paid, **correction.metrics},
    )


def token_rewards(trajectories: Sequence[Trajectory]) -> tuple[Tensor, Tensor]:
    """The reward of each response at its last token [N, R], and where its tokens are (bool)."""
    lengths_N = torch.tensor([len(each.response_tokens) for each in trajectories])
    positions_R = torch.arange(int(lengths_N.max()))
    rewards_N = torch.tensor([each.reward for each in trajectories])
    is_last_NR = positions_R == lengths_N[:, None] - 1
    return torch.where(is_last_NR, rewards_N[:, None], 0.0), positions_R < lengths_N[:, None]


def _correction(recipe: Recipe, scored: Scored, mask_NR: Tensor) -> Correction:
    wanted = recipe.rollout_correction
    if wanted is None or wanted.bypasses_scoring:
        return Correction(weights_NR=None, mask_NR=mask_NR, metrics={})
    assert scored.old is not None, "who corrects scores before the update"
    return correct(padded(scored.sampled, "cpu"), padded(scored.old, "cpu"), mask_NR, wanted)


def _experiences(
    scored: Scored, correction: Correction, estimate: Estimate
) -> Iterator[Experience]:
    for index, trajectory in enumerate(scored.trajectories):
        inside = (index, slice(len(trajectory.response_tokens)))
        weights_NR, returns_NR = correction.weights_NR, estimate.returns_NR
        yield Experience(
            trajectory=trajectory,
            is_trained_R=correction.mask_NR[inside],
            old_log_probs_R=None if scored.old is None else scored.old[index],
            advantages_R=estimate.advantages_NR[inside],
            reference_log_probs_R=None if scored.reference is None else scored.reference[index],
            importance_weights_R=None if weights_NR is None else weights_NR[inside],
            values_R=None if scored.values is None else scored.values[index],
            returns_R=None if returns_NR is None else returns_NR[inside],
            teacher=None if scored.teacher is None else scored.teacher[index],
            entropy_R=None if scored.entropy is None else scored.entropy[index],
        )
