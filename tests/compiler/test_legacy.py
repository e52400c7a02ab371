"""Names of earlier releases: each leads to a leaf or a section of the pinned tree, or is said to be gone."""

import pytest

from miniverl.compiler.legacy import GONE, HEIRS, fix, heir
from miniverl.compiler.profiles import named
from miniverl.compiler.rule import Context
from miniverl.compiler.rules import RL_V09_APPENDED

OLD = {
    "reward_model.reward_manager": "reward.reward_manager.name",
    "reward_model.sandbox_fusion.url": "reward.sandbox_fusion.url",
    "custom_reward_function.path": "reward.custom_reward_function.path",
    "kl_ctrl.kl_coef": "algorithm.kl_ctrl.kl_coef",
    "critic.kl_ctrl.type": "algorithm.kl_ctrl.type",
    "actor_rollout_ref.actor.ppo_micro_batch_size": (
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"
    ),
    "actor_rollout_ref.rollout.log_prob_micro_batch_size": (
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu"
    ),
    "actor_rollout_ref.actor.checkpoint.contents": (
        "actor_rollout_ref.actor.checkpoint.save_contents"
    ),
    "critic.model.fsdp_config.param_offload": "critic.fsdp.param_offload",
    "ray_init.num_cpus": "ray_kwargs.ray_init.num_cpus",
    "trainer.val_generations_to_log_to_wandb": "trainer.log_val_generations",
    "trainer.worker_nsight_options.trace": (
        "global_profiler.global_tool_config.nsys.worker_nsight_options.trace"
    ),
}


@pytest.mark.parametrize("old", OLD)
def test_an_old_name_leads_to_the_one_that_took_its_place(old, defaults):
    assert heir(old) == OLD[old]
    assert OLD[old] in defaults
    assert fix(old) == f"A name of before v0.9: set {OLD[old]} in its place"


def test_every_successor_is_in_the_tree_or_can_be_appended(defaults):
    known = set(defaults)
    for field in defaults:
        known.update(field[:end] for end, mark in enumerate(field) if mark == ".")
    known.update(rule.pattern.removesuffix(".*") for rule in RL_V09_APPENDED)
    assert [successor for successor in HEIRS.values() if successor not in known] == []


def test_names_that_nothing_took_the_place_of_are_said_to_be_gone(defaults):
    assert "nothing took its place" in (fix("reward_model.micro_batch_size") or "")
    assert "nothing took its place" in (fix("critic.model.fsdp_config.grad_offload") or "")
    assert [old for old in GONE if heir(old) is not None or old in defaults] == []


def test_a_name_of_today_is_no_old_one(defaults):
    still_there = set(HEIRS) | {f"{section}.*" for section in GONE}
    sections = tuple(name.removesuffix("*") for name in still_there if name.endswith(".*"))
    today = [f for f in defaults if f not in still_there and not f.startswith(sections)]
    assert [field for field in today if fix(field) is not None] == []
    assert fix("data.max_prompt_lenght") is None


def test_rules_name_the_successor(compiled_leaf):
    assert "reward.reward_manager.name" in compiled_leaf("reward_model.reward_manager", "naive").fix
    assert "ppo_micro_batch_size_per_gpu" in (
        compiled_leaf("actor_rollout_ref.actor.ppo_micro_batch_size", 4).fix
    )


@pytest.fixture
def compiled_leaf(defaults):
    def judged(field, value):
        leaves = {**defaults, field: value}
        context = Context(leaves=leaves, defaults=defaults, bindings={})
        return named(None).table.judge(field, value, context)

    return judged
