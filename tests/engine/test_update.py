"""The update: by hand, against a second implementation, against torch's loader, and however it is cut."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from miniverl.engine.algorithm import Aggregation, KlLoss
from miniverl.engine.experience import Experience
from miniverl.engine.models import Model, load_policy
from miniverl.engine.policy_update import PolicyObjectives
from miniverl.engine.recipe import Recipe
from miniverl.engine.score import score
from miniverl.engine.trajectory import Trajectory
from miniverl.engine.update import Plan, adamw, mini_batch_indices, update


def _experiences(model: Model, recipe: Recipe) -> list[Experience]:
    """6 trajectories of 2 prompts; old log-probs a little off the policy's, so that ratios are not 1."""
    generator = torch.Generator().manual_seed(7)
    trajectories = [
        Trajectory(
            prompt_id=index // 3,
            sample=index % 3,
            prompt_tokens=(1, 14 + index // 3, 5, 2)[index // 3 :],
            response_tokens=tuple(torch.randint(34, (1 + index,), generator=generator).tolist()),
            is_finished=True,
            response="",
            reward=0.0,
        )
        for index in range(6)
    ]
    scores = score(
        model,
        trajectories,
        temperature=recipe.rollout.temperature,
        micro_batch_tokens=100,
        with_entropy=False,
    )
    return [
        Experience(
            trajectory=each,
            is_trained_R=torch.ones(len(log_probs), dtype=torch.bool),
            advantages_R=torch.full_like(log_probs, [1.0, -1.0, 0.5, -0.5, 2.0, 0.0][index]),
            importance_weights_R=None,
            values_R=None,
            returns_R=None,
            teacher=None,
            old_log_probs_R=log_probs + 0.3 * torch.randn(log_probs.shape, generator=generator),
            reference_log_probs_R=log_probs
            + 0.3 * torch.randn(log_probs.shape, generator=generator),
        )
        for index, (each, log_probs) in enumerate(zip(trajectories, scores.log_probs, strict=True))
    ]


def _policy(folder: Path, recipe: Recipe) -> Model:
    policy = load_policy(recipe.policy, folder, adapter_seed=3, device="cpu")
    for name, parameter in policy.trained().items():
        if name.endswith("lora_B"):
            generator = torch.Generator().manual_seed(4)
            torch.nn.init.normal_(parameter, std=0.3, generator=generator)
    return policy


def _update(
    policy: Model,
    optimizer: torch.optim.Optimizer,
    experiences: Sequence[Experience],
    recipe: Recipe,
    learning_rate: float = 0.001,
) -> dict[str, float]:
    return update(
        policy.trained(),
        optimizer,
        experiences,
        Plan.of(
            recipe.update,
            recipe.rollout.samples_per_prompt,
            recipe.seeds.mini_batches,
            recipe.optimizer,
        ),
        PolicyObjectives(policy, recipe, step=1),
        learning_rate=learning_rate,
    )


def _updated(folder: Path, recipe: Recipe) -> tuple[dict[str, Tensor], dict[str, float]]:
    policy = _policy(folder, recipe)
    experiences = _experiences(policy, recipe)
    numbers = _update(policy, adamw(policy.trained(), recipe.optimizer), experiences, recipe)
    return {name: each.detach() for name, each in policy.trained().items()}, numbers


def _plain_step(
    model: Model, optimizer: torch.optim.Optimizer, members: Sequence[Experience], recipe: Recipe
) -> None:
    """One optimizer step on a mini-batch by the formulas, a trajectory at a time, from transformers' logits.

    Without the bounds on log-ratios (20) and on k3 (10), which these numbers stay far from.
    """
    assert recipe.kl_loss is not None
    num_tokens = sum(len(each.old_log_probs_R) for each in members)
    num_sequences = recipe.update.prompts_per_mini_batch * recipe.rollout.samples_per_prompt
    clips = recipe.policy_loss.arguments
    total = torch.zeros(())
    for each in members:
        tokens_1T = torch.tensor([each.trajectory.prompt_tokens + each.trajectory.response_tokens])
        logits_TV = model.network(tokens_1T).logits[0] / recipe.rollout.temperature
        all_R = logits_TV[len(each.trajectory.prompt_tokens) - 1 : -1].log_softmax(-1)
        entropy_R = -(all_R.exp() * all_R).sum(-1)
        log_probs_R = all_R[torch.arange(len(all_R)), list(each.trajectory.response_tokens)]
        advantage = float(each.advantages_R[0])
        ratio_R = (log_probs_R - each.old_log_probs_R).exp()
        losses_R = torch.maximum(
            -advantage * ratio_R,
            -advantage * ratio_R.clamp(1 - clips["clip_low"], 1 + clips["clip_high"]),
        )
        if advantage < 0:
            losses_R = losses_R.clamp(max=-advantage * clips["dual_clip"])
        assert each.reference_log_probs_R is not None
        towards_R = each.reference_log_probs_R - log_probs_R
        losses_R = losses_R - recipe.policy_loss.entropy_coefficient * entropy_R
        losses_R = losses_R + recipe.kl_loss.coefficient * (towards_R.exp() - towards_R - 1)
        if recipe.policy_loss.aggregation.mode == "token-mean":
            total = total + losses_R.sum() / num_tokens
        elif recipe.policy_loss.aggregation.mode == "seq-mean-token-mean":
            total = total + losses_R.mean() / num_sequences
        else:
            assert recipe.policy_loss.aggregation.horizon is not None
            total = total + losses_R.sum() / num_sequences / recipe.policy_loss.aggregation.horizon
    optimizer.zero_grad()
    total.backward()
    torch.nn.utils.clip_grad_norm_(
        list(model.trained().values()), recipe.optimizer.max_gradient_norm
    )
    optimizer.step()


@pytest.mark.parametrize("is_adapted", [True, False])
@pytest.mark.parametrize(
    "aggregation",
    [
        Aggregation(mode="token-mean", horizon=None),
        Aggregation(mode="seq-mean-token-mean", horizon=None),
        Aggregation(mode="seq-mean-token-sum-norm", horizon=6),
    ],
)
def test_a_step_is_that_of_a_second_implementation(
    tiny_model: Path, tiny_recipe: Recipe, aggregation: Aggregation, is_adapted: bool
) -> None:
    recipe = replace(
        tiny_recipe,
        policy=tiny_recipe.policy if is_adapted else replace(tiny_recipe.policy, lora=None),
        policy_loss=replace(tiny_recipe.policy_loss, aggregation=aggregation),
        rollout=replace(tiny_recipe.rollout, temperature=0.8),
    )
    ours, _ = _updated(tiny_model, recipe)
    policy = _policy(tiny_model, recipe)
    experiences = _experiences(policy, recipe)
    optimizer = adamw(policy.trained(), replace(recipe.optimizer, learning_rate=0.001))
    for members in mini_batch_indices(6, 3, epochs=2, shuffle_seed=42):
        _plain_step(policy, optimizer, [experiences[index] for index in members], recipe)
    before = _policy(tiny_model, recipe).trained()
    for name, plain in policy.trained().items():
        torch.testing.assert_close(ours[name], plain.detach(), atol=2e-5, rtol=1e-4)
        assert not torch.equal(plain, before[name])


def test_micro_batches_change_a_step_by_rounding_only(
    tiny_model: Path, tiny_recipe: Recipe
) -> None:
    # One optimizer step of plain descent: AdamW's division by a tiny moment would enlarge a rounding.
    recipe = replace(
        tiny_recipe, update=replace(tiny_recipe.update, prompts_per_mini_batch=2, epochs=1)
    )
    policy = _policy(tiny_model, recipe)
    experiences = _experiences(policy, recipe)
    start = {name: each.detach().clone() for name, each in policy.trained().items()}
    moved = []
    for budget in (1, 12, 20, 1000):
        for name, each in policy.trained().items():
            each.data.copy_(start[name])
        cut = replace(recipe, update=replace(recipe.update, micro_batch_tokens=budget))
        descent = torch.optim.SGD(policy.trained().values(), lr=1.0)
        numbers = _update(policy, descent, experiences, cut, 1.0)
        moved.append([each.detach().clone() for each in policy.trained().values()])
        assert numbers["optimizer_steps"] == 1
    for other in moved[:-1]:
        for cut_each, whole_each in zip(other, moved[-1], strict=True):
            torch.testing.assert_close(cut_each, whole_each, atol=1e-6, rtol=1e-6)


def test_on_policy_the_loss_is_minus_the_mean_advantage(
    tiny_model: Path, tiny_recipe: Recipe
) -> None:
    """All ratios are 1, so token-mean weighs advantages by lengths 1 to 6, and nothing is clipped."""
    recipe = replace(
        tiny_recipe,
        update=replace(tiny_recipe.update, prompts_per_mini_batch=2, epochs=1),
        policy_loss=replace(tiny_recipe.policy_loss, entropy_coefficient=0.0),
        kl_loss=KlLoss(estimator="k2", coefficient=3.0),
    )
    policy = _policy(tiny_model, recipe)
    experiences = [
        replace(each, old_log_probs_R=log_probs, reference_log_probs_R=log_probs + 0.5)
        for each, log_probs in zip(
            _experiences(policy, recipe),
            score(
                policy,
                [each.trajectory for each in _experiences(policy, recipe)],
                temperature=1.0,
                micro_batch_tokens=recipe.update.micro_batch_tokens,
                with_entropy=False,
            ).log_probs,
            strict=True,
        )
    ]
    numbers = _update(policy, adamw(policy.trained(), recipe.optimizer), experiences, recipe, 0.01)
    weighted = 1 * 1.0 + 2 * -1.0 + 3 * 0.5 + 4 * -0.5 + 5 * 2.0 + 6 * 0.0  # 8.5 over 21 tokens
    assert numbers["policy_loss"] == pytest.approx(-weighted / 21, abs=1e-6)
    assert numbers["kl_loss"] == pytest.approx(0.5 * 0.5**2, abs=1e-6)
    assert numbers["loss"] == pytest.approx(-weighted / 21 + 3.0 * 0.125, abs=1e-6)
    assert (numbers["clip_fraction"], numbers["approximate_kl"]) == (0.0, 0.0)


def test_at_learning_rate_zero_the_moments_move_and_no_weight_does(
    tiny_model: Path, tiny_recipe: Recipe
) -> None:
    recipe = replace(tiny_recipe, kl_loss=None)
    policy = _policy(tiny_model, recipe)
    before = {name: each.detach().clone() for name, each in policy.trained().items()}
    optimizer = adamw(policy.trained(), recipe.optimizer)
    numbers = _update(policy, optimizer, _experiences(policy, recipe), recipe, 0.0)
    assert all(torch.equal(each, before[name]) for name, each in policy.trained().items())
    assert {int(state["step"]) for state in optimizer.state.values()} == {4}
    assert (numbers["optimizer_steps"], numbers["skipped_steps"]) == (4, 0)
    assert "kl_loss" not in numbers


def test_a_gradient_that_is_not_finite_skips_its_step_and_is_counted(
    tiny_model: Path, tiny_recipe: Recipe
) -> None:
    policy = _policy(tiny_model, tiny_recipe)
    experiences = _experiences(policy, tiny_recipe)
    experiences[0] = replace(
        experiences[0], advantages_R=torch.full_like(experiences[0].advantages_R, math.inf)
    )
    once = replace(tiny_recipe, update=replace(tiny_recipe.update, epochs=1, shuffles=False))
    optimizer = adamw(policy.trained(), once.optimizer)
    numbers = _update(policy, optimizer, experiences, once, 0.01)
    assert (numbers["optimizer_steps"], numbers["skipped_steps"]) == (1, 1)
    assert all(each.isfinite().all() for each in policy.trained().values())
    assert {int(state["step"]) for state in optimizer.state.values()} == {1}


def test_weight_decay_reaches_norms_and_embeddings(tiny_model: Path, tiny_recipe: Recipe) -> None:
    recipe = replace(
        tiny_recipe,
        policy=replace(tiny_recipe.policy, lora=None),
        optimizer=replace(tiny_recipe.optimizer, weight_decay=0.5),
    )
    policy = _policy(tiny_model, recipe)
    (group,) = adamw(policy.trained(), recipe.optimizer).param_groups
    assert group["weight_decay"] == 0.5
    assert len(group["params"]) == len(policy.trained())


def test_the_shuffle_is_that_of_the_data_loader() -> None:
    for seed in (42, 7):
        loader = DataLoader(
            torch.arange(12),  # type: ignore[arg-type]
            batch_size=4,
            shuffle=True,
            generator=torch.Generator().manual_seed(seed),
        )
        expected = [part.tolist() for _ in range(3) for part in loader]
        assert list(mini_batch_indices(12, 4, epochs=3, shuffle_seed=seed)) == expected


def test_the_shuffle_of_a_known_case() -> None:
    found = list(mini_batch_indices(8, 4, epochs=2, shuffle_seed=42))
    assert found == [[4, 6, 2, 3], [0, 7, 1, 5], [7, 4, 3, 1], [5, 0, 2, 6]]


def test_mini_batches_are_consecutive_and_the_last_may_be_short() -> None:
    assert list(mini_batch_indices(6, 4, epochs=1, shuffle_seed=None)) == [[0, 1, 2, 3], [4, 5]]
    assert list(mini_batch_indices(2, 4, epochs=2, shuffle_seed=None)) == [[0, 1], [0, 1]]
    shuffled = list(mini_batch_indices(6, 4, epochs=1, shuffle_seed=42))
    assert shuffled == [[4, 2, 3], [0, 1, 5]]  # the known case without rows 6 and 7
