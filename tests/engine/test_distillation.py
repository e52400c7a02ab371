"""Distillation by hand, as the update uses it, and however a mini-batch is cut."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from miniverl.engine import recipe as recipes
from miniverl.engine.algorithm import Aggregation
from miniverl.engine.distillation import Compared, divergences, forward_kl_topk, per_token_loss
from miniverl.engine.experience import Experience, TeacherTargets
from miniverl.engine.models import Model, load_policy
from miniverl.engine.policy_update import PolicyObjectives
from miniverl.engine.problem import WrongCall
from miniverl.engine.recipe import Distillation, Recipe, Teacher
from miniverl.engine.score import score
from miniverl.engine.trajectory import Trajectory
from miniverl.engine.update import Plan, update

pytestmark = pytest.mark.slow

K3 = Distillation(
    teachers=(),
    routing_field="data_source",
    loss="k3",
    top_k=None,
    min_log_prob=None,
    max_loss=None,
    policy_gradient_clips=None,
    uses_task_rewards=False,
    coefficient=1.0,
)
TOP_K = replace(K3, loss="forward_kl_topk", top_k=3, min_log_prob=-4.0)
CLIPS = (0.2, 0.28)
FORMS = {
    f"{recipe.loss}, {'supervised' if clips is None else 'policy gradient'}": replace(
        recipe, policy_gradient_clips=clips
    )
    for recipe in (TOP_K, *(replace(K3, loss=loss) for loss in ("k1", "abs", "k2", "k3")))
    for clips in (None, CLIPS)
}
AGGREGATIONS = (
    Aggregation(mode="token-mean", horizon=None),
    Aggregation(mode="token-sum", horizon=None),
    Aggregation(mode="seq-mean-token-sum", horizon=None),
    Aggregation(mode="seq-mean-token-mean", horizon=None),
    Aggregation(mode="seq-mean-token-sum-norm", horizon=6),
)


def _logs(*probabilities: float) -> Tensor:
    return torch.tensor([[probabilities]], dtype=torch.float64).log()


def _one_token(student: float, teacher: float) -> Compared:
    """One row of one token, with these log-probs."""
    none_110 = torch.zeros(1, 1, 0, dtype=torch.float64)
    return Compared(
        student_log_probs_BR=torch.tensor([[student]], dtype=torch.float64, requires_grad=True),
        teacher_log_probs_BR=torch.tensor([[teacher]], dtype=torch.float64),
        student_top_log_probs_BRK=none_110,
        teacher_top_log_probs_BRK=none_110,
    )


def test_forward_kl_sums_over_the_teachers_tokens_as_they_are() -> None:
    # 1/2 (log 1/2 - log 1/4) + 1/4 (log 1/4 - log 1/2)
    found_BR = forward_kl_topk(_logs(0.25, 0.5), _logs(0.5, 0.25), min_log_prob=None)
    assert found_BR.tolist() == [[pytest.approx(0.25 * math.log(2))]]


def test_forward_kl_of_a_student_with_more_mass_is_zero_and_has_no_gradient() -> None:
    student_BRK = _logs(0.6, 0.4).requires_grad_(True)
    found_BR = forward_kl_topk(student_BRK, _logs(0.3, 0.2), min_log_prob=None)
    assert found_BR.tolist() == [[0.0]]
    (gradient_BRK,) = torch.autograd.grad(found_BR.sum(), student_BRK)
    assert gradient_BRK.tolist() == [[[0.0, 0.0]]]


def test_both_sides_are_bounded_before_the_forward_kl() -> None:
    # At -2 the student's second token, and the teacher's, which then counts exp(-2)
    student_BRK = _logs(0.5, math.exp(-9)).requires_grad_(True)
    found_BR = forward_kl_topk(student_BRK, _logs(0.75, math.exp(-5)), min_log_prob=-2.0)
    assert found_BR.tolist() == [[pytest.approx(0.75 * math.log(1.5))]]
    (gradient_BRK,) = torch.autograd.grad(found_BR.sum(), student_BRK)
    assert gradient_BRK.tolist() == [[[-0.75, 0.0]]]


@pytest.mark.parametrize(
    ("loss", "expected"),
    [("k1", -1.5), ("abs", 1.5), ("k2", 1.125), ("k3", math.exp(1.5) - 2.5)],
)
def test_estimates_are_those_of_the_sampled_token(loss: str, expected: float) -> None:
    found_BR = divergences(_one_token(-2.0, -0.5), replace(K3, loss=loss))
    assert found_BR.tolist() == [[pytest.approx(expected)]]


def test_a_divergence_is_bounded_both_ways() -> None:
    bounded = replace(K3, loss="k1", max_loss=0.75)
    assert divergences(_one_token(-2.0, -0.5), bounded).tolist() == [[-0.75]]
    assert divergences(_one_token(-0.5, -2.0), bounded).tolist() == [[0.75]]
    assert divergences(_one_token(-0.5, -0.75), bounded).tolist() == [[0.25]]


@pytest.mark.parametrize(
    ("ratio", "teacher", "expected", "slope"),
    [
        (1.0, -0.5, -1.5, -1.5),  # too unlikely by 1.5: advantage 1.5
        (1.5, -0.5, -1.5 * 1.28, 0.0),  # raised enough
        (1.0, -2.5, 0.5, 0.5),  # too likely by 0.5: advantage -0.5
        (0.5, -2.5, 0.5 * 0.8, 0.0),  # lowered enough
        (4.0, -2.5, 0.5 * 3.0, 0.0),  # bounded by the dual clip
    ],
)
def test_as_a_policy_loss_minus_the_divergence_is_the_advantage(
    ratio: float, teacher: float, expected: float, slope: float
) -> None:
    recipe = replace(K3, loss="k1", policy_gradient_clips=CLIPS)
    scores = _one_token(-2.0, teacher)
    old_BR = scores.student_log_probs_BR.detach() - math.log(ratio)
    mask_BR = torch.tensor([[True]])
    loss_BR = per_token_loss(scores, old_BR, mask_BR, None, recipe)
    assert loss_BR.tolist() == [[pytest.approx(expected)]]
    (gradient_BR,) = torch.autograd.grad(loss_BR.sum(), scores.student_log_probs_BR)
    assert gradient_BR.tolist() == [[pytest.approx(slope)]]
    weighted_BR = per_token_loss(scores, old_BR, mask_BR, torch.tensor([[0.5]]), recipe)
    assert weighted_BR.tolist() == [[pytest.approx(0.5 * expected)]]


def test_a_recipe_names_everything_that_does_not_fit_together(tiny_recipe: Recipe) -> None:
    teachers = tuple(
        Teacher(key=key, weights_sha256="0", dtype="float32") for key in ("a", None, "a")
    )
    wrong = replace(K3, teachers=teachers, top_k=3, min_log_prob=-2.0, coefficient=0.5)
    plain = recipes.to_dict(replace(tiny_recipe, distillation=wrong))
    with pytest.raises(WrongCall) as caught:
        recipes.from_dict(plain, "test")
    assert [each.field.removeprefix("recipe.distillation.") for each in caught.value.problems] == [
        "top_k",
        "min_log_prob",
        "coefficient",
        "teachers.1.key",
        "teachers.2.key",
    ]


def _experiences(model: Model) -> list[Experience]:
    """6 trajectories of 2 prompts, 21 tokens; the teacher's numbers lie about the student's."""
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
    scores = score(model, trajectories, temperature=1.0, micro_batch_tokens=100, with_entropy=False)

    def near(log_probs_R: Tensor) -> Tensor:
        return log_probs_R + 0.3 * torch.randn(log_probs_R.shape, generator=generator)

    return [
        Experience(
            trajectory=each,
            is_trained_R=torch.arange(len(log_probs)) != 3,
            old_log_probs_R=near(log_probs),
            advantages_R=torch.full_like(log_probs, 1.0 - index),
            reference_log_probs_R=near(log_probs),
            importance_weights_R=None,
            values_R=None,
            returns_R=None,
            teacher=TeacherTargets(
                log_probs_R=near(log_probs),
                tokens_RK=torch.rand(len(log_probs), 34, generator=generator).argsort(-1)[:, :3],
                top_log_probs_RK=torch.randn(len(log_probs), 3, generator=generator) - 2,
            ),
        )
        for index, (each, log_probs) in enumerate(zip(trajectories, scores.log_probs, strict=True))
    ]


def _descended(
    policy: Model, recipe: Recipe, experiences: Sequence[Experience]
) -> tuple[list[Tensor], dict[str, float]]:
    """Gradients of one mini-batch, as one step of plain descent shows them, and the step's numbers."""
    start = [each.detach().clone() for each in policy.trained().values()]
    descent = torch.optim.SGD(policy.trained().values(), lr=1.0)
    plan = Plan(
        mini_batch_size=6,
        epochs=1,
        shuffle_seed=None,
        micro_batch_tokens=recipe.update.micro_batch_tokens,
        max_gradient_norm=1e9,
    )
    objective = PolicyObjectives(policy, recipe, step=1)
    numbers = update(policy.trained(), descent, experiences, plan, objective, learning_rate=1.0)
    moved = [each.detach().clone() for each in policy.trained().values()]
    for each, before in zip(policy.trained().values(), start, strict=True):
        each.data.copy_(before)
    return [before - after for before, after in zip(start, moved, strict=True)], numbers


@pytest.mark.parametrize("aggregation", AGGREGATIONS, ids=lambda each: each.mode)
@pytest.mark.parametrize("form", FORMS)
def test_micro_batches_change_a_gradient_by_rounding_only(
    tiny_policy: Model, tiny_recipe: Recipe, form: str, aggregation: Aggregation
) -> None:
    """In float64, whose rounding is far below the bound."""
    tiny_policy.network.double()
    tiny_policy.compute_dtype = torch.float64
    experiences = _experiences(tiny_policy)
    found = []
    for budget in (1, 12, 20, 1000):
        recipe = replace(
            tiny_recipe,
            distillation=FORMS[form],
            policy_loss=replace(tiny_recipe.policy_loss, aggregation=aggregation),
            update=replace(tiny_recipe.update, micro_batch_tokens=budget),
        )
        found.append(_descended(tiny_policy, recipe, experiences))
    whole, numbers = found[-1]
    assert max(float(each.abs().max()) for each in whole) > 1e-3
    for cut, its_numbers in found[:-1]:
        for cut_each, whole_each in zip(cut, whole, strict=True):
            torch.testing.assert_close(cut_each, whole_each, atol=1e-6, rtol=1e-6)
        assert its_numbers["loss"] == pytest.approx(numbers["loss"], abs=1e-6, rel=1e-6)


def test_without_task_rewards_nothing_else_enters(tiny_policy: Model, tiny_recipe: Recipe) -> None:
    recipe = replace(tiny_recipe, distillation=TOP_K)
    experiences = _experiences(tiny_policy)
    gradients, numbers = _descended(tiny_policy, recipe, experiences)
    others = [
        replace(each, advantages_R=each.advantages_R + 9.0, reference_log_probs_R=None)
        for each in experiences
    ]
    bare = replace(
        recipe,
        kl_loss=None,
        policy_loss=replace(recipe.policy_loss, entropy_coefficient=0.0),
    )
    same, _ = _descended(tiny_policy, bare, others)
    assert all(torch.equal(a, b) for a, b in zip(gradients, same, strict=True))
    assert numbers["loss"] == numbers["distillation_loss"]
    assert not numbers.keys() & {"policy_loss", "entropy_bonus", "kl_loss", "clip_fraction"}


def test_beside_task_rewards_the_losses_add_up(tiny_policy: Model, tiny_recipe: Recipe) -> None:
    experiences = _experiences(tiny_policy)
    task, _ = _descended(tiny_policy, tiny_recipe, experiences)
    alone, _ = _descended(tiny_policy, replace(tiny_recipe, distillation=TOP_K), experiences)
    beside = replace(TOP_K, uses_task_rewards=True, coefficient=0.5)
    both, numbers = _descended(tiny_policy, replace(tiny_recipe, distillation=beside), experiences)
    for each, of_task, distilled in zip(both, task, alone, strict=True):
        torch.testing.assert_close(each, of_task + 0.5 * distilled, atol=1e-5, rtol=1e-5)
    parts = numbers["policy_loss"] - 0.01 * numbers["entropy_bonus"] + 0.1 * numbers["kl_loss"]
    assert numbers["loss"] == pytest.approx(parts + 0.5 * numbers["distillation_loss"], abs=1e-6)


def test_top_k_scores_of_the_whole_vocabulary_give_the_whole_kl(
    tiny_policy: Model, tiny_model: Path, tiny_recipe: Recipe
) -> None:
    """With all 34 tokens, the loss is the KL between two softmaxes, by transformers' logits."""
    experiences = _experiences(tiny_policy)
    other = load_policy(
        replace(tiny_recipe.policy, lora=None), tiny_model, adapter_seed=3, device="cpu"
    )
    total, taught = 0.0, []
    for each in experiences:
        tokens_1T = torch.tensor([each.trajectory.prompt_tokens + each.trajectory.response_tokens])
        rows = slice(len(each.trajectory.prompt_tokens) - 1, -1)
        teacher_RV, student_RV = (
            model.network(tokens_1T).logits[0, rows].log_softmax(-1).detach()
            for model in (other, tiny_policy)
        )
        kl_R = (teacher_RV.exp() * (teacher_RV - student_RV)).sum(-1)
        total += float(kl_R[each.is_trained_R].sum())
        tokens_RK = torch.arange(34).repeat(len(teacher_RV), 1)
        targets = TeacherTargets(log_probs_R=kl_R, tokens_RK=tokens_RK, top_log_probs_RK=teacher_RV)
        taught.append(replace(each, teacher=targets))
    recipe = replace(tiny_recipe, distillation=replace(TOP_K, top_k=34, min_log_prob=None))
    _, numbers = _descended(tiny_policy, recipe, taught)
    assert numbers["loss"] == pytest.approx(total / 21, rel=1e-5)
    assert numbers["distillation_divergence"] == pytest.approx(total / 21, rel=1e-5)
    assert numbers["distillation_teacher_mass"] == pytest.approx(18 / 21, rel=1e-5)
