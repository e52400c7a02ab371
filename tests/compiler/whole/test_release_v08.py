"""On-policy distillation of verl v0.8.0: the table of v0.9.0, with what the older release means otherwise on top."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from miniverl.compiler import profiles
from miniverl.compiler import source as sources
from miniverl.compiler.bindings import Bindings, Model
from miniverl.compiler.lower import Compiled, compile_source

pytestmark = pytest.mark.slow

TOP_K = "verl-opd-v0.8-single-gpu-v1"
PG_K1 = "verl-opd-v0.8-single-gpu-pg-k1-v1"
LOSS = "distillation.distillation_loss"
TEACHER = "distillation.teacher_models.teacher_model"
LAUNCH = (
    "distillation.enabled=True",
    "distillation.nnodes=1",
    f"{LOSS}.use_task_rewards=False",
    f"{TEACHER}.model_path=Qwen/Qwen3-8B",
    f"{TEACHER}.inference.tensor_model_parallel_size=1",
    "actor_rollout_ref.rollout.name=vllm",
    "actor_rollout_ref.actor.use_dynamic_bsz=True",
    "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=True",
    "algorithm.adv_estimator=grpo",
)
WAYS = {
    TOP_K: (f"{LOSS}.loss_mode=forward_kl_topk", f"{LOSS}.topk=64"),
    PG_K1: (f"{LOSS}.loss_mode=k1", f"{LOSS}.use_policy_gradient=True"),
}


@pytest.fixture
def with_teacher(bound: Bindings) -> Bindings:
    return replace(bound, teachers={None: Model(path=Path("bound/teacher"), sha256="d" * 64)})


def compiled(profile: str, bindings: Bindings, *more: str) -> Compiled:
    chosen = profiles.named(profile)
    launch = sources.numbered([*LAUNCH, *WAYS[profile], *more])
    return compile_source(
        sources.compose("ppo_trainer", launch, version=chosen.verl), bindings, chosen
    )


def why(one: Compiled) -> dict[str, str]:
    return {problem.field: problem.reason for problem in one.problems}


@pytest.mark.parametrize("name", [TOP_K, PG_K1])
def test_every_leaf_of_the_older_tree_has_a_verdict_and_no_other_is_shown(name, with_teacher):
    one = compiled(name, with_teacher)
    assert one.status == "accepted", one.problems
    fields = [finding.field for finding in one.findings]
    assert len(fields) == len(set(fields)) == 787
    assert "trainer.use_v1" not in fields
    assert one.report["source_verl"]["commit"] == "7aed6b230776f963fa09509c10d9c3a767d1102c"


def test_top_k_is_lowered_to_the_same_part_of_the_recipe_as_from_the_later_release(with_teacher):
    older = compiled(TOP_K, with_teacher)
    later = profiles.named(None)
    overrides = sources.numbered([*LAUNCH, *WAYS[TOP_K]])
    newer = compile_source(
        sources.compose("ppo_trainer", overrides, version=later.verl), with_teacher, later
    )
    assert older.recipe is not None
    assert newer.recipe is not None
    assert older.recipe.distillation == newer.recipe.distillation
    assert older.recipe.distillation is not None
    assert (older.recipe.distillation.loss, older.recipe.distillation.top_k) == (
        "forward_kl_topk",
        64,
    )


def test_the_policy_gradient_has_its_clips_and_no_top_k(with_teacher):
    recipe = compiled(PG_K1, with_teacher).recipe
    assert recipe is not None
    assert recipe.distillation is not None
    assert recipe.distillation.policy_gradient_clips == (0.2, 0.2)
    assert (recipe.distillation.loss, recipe.distillation.top_k) == ("k1", None)


@pytest.mark.parametrize("name", [TOP_K, PG_K1])
def test_the_older_normaliser_is_declared(name, with_teacher):
    report = compiled(name, with_teacher).report
    (said,) = [text for text in report["warnings"] if "first micro-batch" in text]
    assert said.startswith(f"{LOSS}.loss_mode: verl v0.8.0 divides")
    (row,) = [
        row
        for row in report["field_classification"]
        if row["upstream_field"] == f"{LOSS}.loss_mode"
    ]
    assert row["classification"] == "semantically_conformant"


def test_the_older_order_is_declared_only_where_a_batch_is_cut(with_teacher):
    def declared(*more: str) -> bool:
        return any(
            "sorts a batch" in text for text in compiled(TOP_K, with_teacher, *more).warnings
        )

    assert declared("data.train_batch_size=256", "actor_rollout_ref.actor.ppo_mini_batch_size=128")
    assert not declared(
        "data.train_batch_size=256", "actor_rollout_ref.actor.ppo_mini_batch_size=256"
    )


@pytest.mark.parametrize(
    ("profile", "override", "field", "reason"),
    [
        (
            TOP_K,
            f"{LOSS}.loss_mode=k3",
            f"{LOSS}.loss_mode",
            "takes no other value than forward_kl",
        ),
        (PG_K1, f"{LOSS}.loss_mode=k3", f"{LOSS}.loss_mode", "takes no other value than k1"),
        (TOP_K, f"{LOSS}.use_task_rewards=True", f"{LOSS}.use_task_rewards", "than False"),
        (TOP_K, "distillation.enabled=False", "distillation.enabled", "than True"),
        (
            TOP_K,
            f"{TEACHER}.inference.temperature=0.7",
            f"{TEACHER}.inference.temperature",
            "at temperature 1 only",
        ),
        (
            TOP_K,
            "actor_rollout_ref.rollout.skip.enable=True",
            "actor_rollout_ref.rollout.skip.enable",
            "never replayed",
        ),
        (
            TOP_K,
            "custom_reward_function.path=x.py",
            "custom_reward_function.path",
            "v0.8.0 moves to its heir",
        ),
        (TOP_K, "+data.gen_batch_size=4", "data.gen_batch_size", "no leaf of v0.8.0's tree"),
        (TOP_K, "+trainer.use_v1=False", "trainer.use_v1", "no leaf of v0.8.0's tree"),
    ],
)
def test_what_these_profiles_do_not_take_is_named(profile, override, field, reason, with_teacher):
    one = compiled(profile, with_teacher, override)
    assert one.status == "rejected"
    assert reason in why(one)[field]


def test_a_teachers_temperature_follows_the_students_and_is_refused_with_it(with_teacher):
    one = compiled(TOP_K, with_teacher, "actor_rollout_ref.rollout.temperature=0.7")
    assert set(why(one)) == {f"{TEACHER}.inference.temperature"}


def test_the_later_release_takes_its_own_distillation(with_teacher):
    later = profiles.named(None)
    for way in WAYS.values():
        source = sources.compose(
            "ppo_trainer", sources.numbered([*LAUNCH, *way]), version=later.verl
        )
        one: Any = compile_source(source, with_teacher, later)
        assert one.status == "accepted"
        assert one.recipe.distillation is not None
