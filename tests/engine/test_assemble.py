"""What a step's updates learn from: in which order KL, correction and advantages come, and what makes a group."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from miniverl.engine.algorithm import Advantage, KlReward, Rejection, RolloutCorrection
from miniverl.engine.assemble import Scored, assemble, token_rewards
from miniverl.engine.recipe import Recipe
from miniverl.engine.trajectory import Trajectory


def _trajectory(prompt_id: int, sample: int, reward: float, length: int = 2) -> Trajectory:
    return Trajectory(
        prompt_id=prompt_id,
        sample=sample,
        prompt_tokens=(1,),
        response_tokens=(5,) * length,
        is_finished=True,
        response="",
        reward=reward,
    )


def _scored(
    trajectories: Sequence[Trajectory], *, sampled: float, old: float, reference: float | None
) -> Scored:
    """Every token alike for each of the models."""

    def rows(log_prob: float) -> list[Tensor]:
        return [torch.full((len(each.response_tokens),), log_prob) for each in trajectories]

    return Scored(
        trajectories=trajectories,
        sampled=rows(sampled),
        old=rows(old),
        entropy=None,
        reference=None if reference is None else rows(reference),
        values=None,
        teacher=None,
    )


@pytest.fixture
def recipe(tiny_recipe: Recipe) -> Recipe:
    """Dr.GRPO in pairs."""
    return replace(
        tiny_recipe,
        kl_loss=None,
        rollout=replace(tiny_recipe.rollout, samples_per_prompt=2),
        advantage=Advantage(estimator="grpo", divides_by_std=False, gamma=None, gae_lambda=None),
    )


def test_the_reward_stands_at_the_last_token_of_each_response() -> None:
    rewards_NR, mask_NR = token_rewards([_trajectory(0, 0, 3.0), _trajectory(0, 1, 4.0, length=3)])
    assert rewards_NR.tolist() == [[0.0, 3.0, 0.0], [0.0, 0.0, 4.0]]
    assert mask_NR.tolist() == [[True, True, False], [True, True, True]]


def test_a_prompt_that_is_drawn_twice_in_a_step_has_two_groups(recipe: Recipe) -> None:
    """In one group of four the advantages would be 1.5, 0.5, -0.5 and -1.5."""
    drawn = [_trajectory(4, sample, reward) for sample, reward in enumerate([3.0, 2.0, 1.0, 0.0])]
    found = assemble(
        recipe, _scored(drawn, sampled=-1.0, old=-1.0, reference=None), kl_coefficient=None
    )
    advantages = [each.advantages_R.tolist() for each in found.experiences]
    assert advantages == [[0.5, 0.5], [-0.5, -0.5], [0.5, 0.5], [-0.5, -0.5]]


def test_the_kl_is_paid_before_tokens_are_rejected_and_counts_where_they_are(
    recipe: Recipe,
) -> None:
    """k1 is 0.5 on every token: 2 tokens pay 1, 4 tokens 2, at a coefficient of 1, though all are rejected."""
    wanted = replace(
        recipe,
        kl_reward=KlReward(estimator="k1", coefficient=9.0, adaptive=None),
        rollout_correction=RolloutCorrection(
            bypasses_scoring=False,
            importance_weights=None,
            rejections=(Rejection(statistic="token_k1", lower=0.9, upper=1.1),),
        ),
        advantage=replace(recipe.advantage, estimator="rloo", divides_by_std=None),
    )
    drawn = [_trajectory(4, 0, 1.0, length=2), _trajectory(4, 1, 1.0, length=4)]
    scored = _scored(drawn, sampled=-2.0, old=-1.0, reference=-1.5)
    found = assemble(wanted, scored, kl_coefficient=1.0)
    assert found.current_kl == pytest.approx(0.5)
    assert found.metrics["kl_coefficient"] == 1.0
    for each in found.experiences:
        assert not each.is_trained_R.any()
        assert not each.advantages_R.any()
    assert found.metrics["correction_rejected_tokens_any"] == pytest.approx(1.0)
    kept = assemble(replace(wanted, rollout_correction=None), scored, kl_coefficient=1.0)
    assert [each.advantages_R[0].item() for each in kept.experiences] == pytest.approx([1.0, -1.0])


def test_bypassed_nothing_is_weighed_or_rejected(recipe: Recipe) -> None:
    bypass = RolloutCorrection(bypasses_scoring=True, importance_weights=None, rejections=())
    drawn = [_trajectory(4, 0, 1.0), _trajectory(4, 1, 0.0)]
    scored = _scored(drawn, sampled=-2.0, old=-2.0, reference=None)
    found = assemble(replace(recipe, rollout_correction=bypass), scored, kl_coefficient=None)
    for each in found.experiences:
        assert each.importance_weights_R is None
        assert each.is_trained_R.all()
    assert found.metrics == {}
