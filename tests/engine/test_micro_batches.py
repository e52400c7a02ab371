"""However a mini-batch is cut, its gradient is the same: every policy loss under every aggregation.

With entropy, KL, importance weights, rejected tokens and one rejected response beside it. The model computes in
float64, so that its own rounding, which is larger than 1e-6 in float32, hides nothing.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from miniverl.engine.algorithm import Aggregation, AggregationMode, KlLoss, PolicyLoss
from miniverl.engine.experience import Experience
from miniverl.engine.models import Model
from miniverl.engine.policy_loss import POLICY_LOSSES
from miniverl.engine.policy_update import PolicyObjectives
from miniverl.engine.recipe import Recipe
from miniverl.engine.score import bins, score
from miniverl.engine.trajectory import Trajectory
from miniverl.engine.update import Normalisers

pytestmark = pytest.mark.slow

CLIPS = {"clip_low": 0.2, "clip_high": 0.28}
ARGUMENTS: dict[str, dict[str, float]] = {
    "vanilla": {**CLIPS, "dual_clip": 3.0},
    "gspo": CLIPS,
    "sapo": {"tau_positive": 1.0, "tau_negative": 1.05},
    "gpg": {},
    "cispo": CLIPS,
    "dppo_tv": {**CLIPS, "ratio_cap": 3.0},
    "dppo_kl": {**CLIPS, "ratio_cap": 3.0},
    "dro": {"beta": 0.3},
    "geo_mean": CLIPS,
    "kl_cov": {"share": 0.2, "kl_coefficient": 1.0},
    "clip_cov": {**CLIPS, "share": 0.2, "covariance_low": -0.5, "covariance_high": 5.0},
}
LENGTHS = (1, 6, 3, 5, 2, 4)
CUTS = ([0, 3, 6], [0, 1, 3, 5, 6], [0, 1, 5, 6])  # two, four, and uneven ones
TOKEN_BUDGETS = (1, 12, 20)


@pytest.fixture
def policy(tiny_policy: Model) -> Model:
    return Model(
        tiny_policy.network.double(), compute_dtype=torch.float64, checkpoints_activations=False
    )


@pytest.fixture
def members(policy: Model) -> list[Experience]:
    """Six responses to two prompts, a little off the policy that sampled them."""
    random = torch.Generator().manual_seed(7)
    trajectories = [
        Trajectory(
            prompt_id=index // 3,
            sample=index % 3,
            prompt_tokens=((1, 14, 5, 2), (1, 15, 2))[index // 3],
            response_tokens=tuple(torch.randint(34, (length,), generator=random).tolist()),
            is_finished=True,
            response="",
            reward=0.0,
        )
        for index, length in enumerate(LENGTHS)
    ]
    scores = score(
        policy, trajectories, temperature=1.0, micro_batch_tokens=100, with_entropy=False
    )

    def near(log_probs_R: Tensor) -> Tensor:
        return log_probs_R + 0.4 * torch.randn(log_probs_R.shape, generator=random)

    found = [
        Experience(
            trajectory=each,
            is_trained_R=torch.rand(log_probs_R.shape, generator=random) < 0.9,
            old_log_probs_R=near(log_probs_R),
            advantages_R=torch.randn(1, generator=random).expand_as(log_probs_R).clone(),
            reference_log_probs_R=near(log_probs_R),
            importance_weights_R=0.5 + torch.rand(log_probs_R.shape, generator=random),
            values_R=None,
            returns_R=None,
            teacher=None,
        )
        for each, log_probs_R in zip(trajectories, scores.log_probs, strict=True)
    ]
    found[4] = replace(found[4], is_trained_R=torch.zeros(LENGTHS[4], dtype=torch.bool))
    return found


def with_loss(recipe: Recipe, name: Any, mode: AggregationMode) -> Recipe:
    return replace(
        recipe,
        policy_loss=PolicyLoss(
            name=name,
            arguments=ARGUMENTS[name],
            aggregation=Aggregation(mode=mode, horizon=6),
            entropy_coefficient=0.01,
        ),
        kl_loss=KlLoss(estimator="k3", coefficient=0.1),
        rollout=replace(recipe.rollout, temperature=1.0),
    )


def gradient(
    policy: Model, recipe: Recipe, members: Sequence[Experience], parts: Sequence[int]
) -> Tensor:
    """The mini-batch's gradient by all parameters, in micro-batches that begin at `parts`."""
    normalisers = Normalisers(num_tokens=sum(LENGTHS), num_sequences=len(LENGTHS))
    objective = PolicyObjectives(policy, recipe, step=3)(members)
    for parameter in policy.trained().values():
        parameter.grad = None
    for first, end in pairwise(parts):
        objective(members[first:end], normalisers)["loss"].backward()
    gradients = [each.grad for each in policy.trained().values()]
    return torch.cat([each.flatten() for each in gradients if each is not None])


def edges(members: Sequence[Experience], budget: int) -> list[int]:
    """Where the bins of a token budget begin."""
    found = [0]
    for micro_batch in bins([each.trajectory for each in members], budget):
        found.append(found[-1] + len(micro_batch))
    return found


@pytest.mark.parametrize("mode", get_args(AggregationMode))
@pytest.mark.parametrize("loss", POLICY_LOSSES)
def test_the_gradient_does_not_depend_on_micro_batches(
    policy: Model, tiny_recipe: Recipe, members: list[Experience], loss: str, mode: Any
) -> None:
    recipe = with_loss(tiny_recipe, loss, mode)
    whole = gradient(policy, recipe, members, [0, len(members)])
    assert whole.abs().max() > 1e-3
    for parts in (*CUTS, *(edges(members, budget) for budget in TOKEN_BUDGETS)):
        cut = gradient(policy, recipe, members, parts)
        torch.testing.assert_close(cut, whole, atol=1e-6, rtol=0)


@pytest.mark.parametrize("loss", ["kl_cov", "clip_cov"])
def test_chosen_tokens_are_those_of_the_mini_batch_and_change_its_gradient(
    policy: Model, tiny_recipe: Recipe, members: list[Experience], loss: str
) -> None:
    recipe = with_loss(tiny_recipe, loss, "token-mean")
    fewest = replace(recipe.policy_loss, arguments=ARGUMENTS[loss] | {"share": 1e-9})
    parts = [0, len(members)]
    one = gradient(policy, replace(recipe, policy_loss=fewest), members, parts)
    assert not torch.allclose(one, gradient(policy, recipe, members, parts))


def test_the_draw_of_clip_cov_is_that_of_its_step_and_mini_batch(
    policy: Model, tiny_recipe: Recipe, members: list[Experience]
) -> None:
    recipe = with_loss(tiny_recipe, "clip_cov", "token-mean")
    normalisers = Normalisers(num_tokens=sum(LENGTHS), num_sequences=len(LENGTHS))

    def losses(step: int) -> list[float]:
        objective_of = PolicyObjectives(policy, recipe, step=step)
        return [objective_of(members)(members, normalisers)["loss"].item() for _ in range(4)]

    torch.manual_seed(1)
    first = losses(3)
    torch.manual_seed(2)
    assert losses(3) == first  # no global generator
    assert len(set(first)) > 1  # each mini-batch draws
    assert losses(4) != first
