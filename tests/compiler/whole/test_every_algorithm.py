"""Every algorithm compiles to a recipe of its own, and in each a change of an exact leaf is a change of the recipe."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from miniverl.compiler import profiles
from miniverl.compiler.bindings import Bindings, Model
from miniverl.compiler.judge import context_of, judge
from miniverl.compiler.lower import seen_by_rules, written
from miniverl.compiler.rule import REJECTING, Class
from miniverl.engine import recipe as recipes
from miniverl.engine.algorithm import Estimator, PolicyLossName

pytestmark = pytest.mark.slow

ACTOR = "actor_rollout_ref.actor"
MODEL = "actor_rollout_ref.model"
ROLLOUT = "actor_rollout_ref.rollout"
LOSS = f"{ACTOR}.policy_loss"
OPTIM = f"{ACTOR}.optim"
CORRECTION = "algorithm.rollout_correction"
DISTILLATION = "distillation.distillation_loss"
TEACHERS = "distillation.teacher_models"

PPO = {"algorithm.adv_estimator": "gae", "critic.model.path": "Qwen/Qwen3-8B"}
TEACHER = {
    "distillation.enabled": True,
    "distillation.nnodes": 1,
    f"{TEACHERS}.teacher_model.model_path": "Qwen/Qwen3-32B",
}
TWO_TEACHERS = {
    "distillation.enabled": True,
    "distillation.nnodes": 1,
    f"{TEACHERS}.one.key": "sums",
    f"{TEACHERS}.one.model_path": "one",
    f"{TEACHERS}.one.num_replicas": 2,
    f"{TEACHERS}.one.inference.name": "vllm",
    f"{TEACHERS}.one.inference.tensor_model_parallel_size": 2,
    f"{TEACHERS}.one.inference.max_model_len": 4096,
    f"{TEACHERS}.two.key": "words",
    f"{TEACHERS}.two.model_path": "two",
    f"{TEACHERS}.two.num_replicas": 2,
    f"{TEACHERS}.two.inference.name": "vllm",
    f"{DISTILLATION}.loss_mode": "forward_kl_topk",
    "distillation.teacher_key": "data_source",
}
KL = {"algorithm.use_kl_in_reward": True, f"{ACTOR}.use_kl_loss": False}

CASES: dict[str, dict[str, Any]] = {
    "as launched": {},
    "an adapter, a cosine": {
        f"{MODEL}.lora_rank": 16,
        f"{OPTIM}.lr_scheduler_type": "cosine",
        f"{ACTOR}.loss_agg_mode": "seq-mean-token-sum-norm",
        f"{ACTOR}.loss_scale_factor": 512,
        "trainer.total_training_steps": 40,
    },
    "ppo": {**PPO, "trainer.critic_warmup": 3, "critic.shuffle": True},
    "ppo, its critic on a cosine": {
        **PPO,
        "critic.optim.lr_scheduler_type": "cosine",
        "critic.loss_agg_mode": "seq-mean-token-sum-norm",
        "critic.loss_scale_factor": 64,
        "trainer.total_training_steps": 40,
    },
    "a critic that nothing reads": {"critic.enable": True, "critic.model.path": "Qwen/Qwen3-8B"},
    **{
        f"estimator {name}": {"algorithm.adv_estimator": name}
        for name in get_args(Estimator)
        if name != "gae"
    },
    **{f"loss {name}": {f"{LOSS}.loss_mode": name} for name in get_args(PolicyLossName)},
    "loss dro": {f"{LOSS}.loss_mode": "dro", f"{LOSS}.dro_beta": 0.5},
    "one clip for both sides": {f"{ACTOR}.clip_ratio_low": None, f"{ACTOR}.clip_ratio_high": None},
    "kl in the reward": {**KL, "algorithm.adv_estimator": "rloo"},
    "adaptive kl": {**KL, "algorithm.kl_ctrl.type": "adaptive", "algorithm.kl_penalty": "k3+"},
    "importance weights": {
        f"{CORRECTION}.rollout_is": "token",
        f"{CORRECTION}.rollout_is_threshold": "0.5_2.0",
        f"{CORRECTION}.rollout_is_batch_normalize": True,
    },
    "rejection": {
        f"{CORRECTION}.rollout_rs": "token_k1,seq_mean_k3",
        f"{CORRECTION}.rollout_rs_threshold": "2.0,0.01",
    },
    "bypass": {f"{CORRECTION}.bypass_mode": True},
    "group filter": {
        "algorithm.filter_groups.enable": True,
        "algorithm.filter_groups.metric": "acc",
    },
    "small draws": {"data.gen_batch_size": 256},
    "mini-batches dealt": {f"{ACTOR}.shuffle": True},
    "a teacher": TEACHER,
    "a teacher's likeliest tokens": {
        **TEACHER,
        f"{DISTILLATION}.loss_mode": "forward_kl_topk",
        f"{DISTILLATION}.use_task_rewards": False,
        f"{DISTILLATION}.log_prob_min_clamp": -10.0,
        f"{DISTILLATION}.loss_max_clamp": 10.0,
    },
    "a teacher by policy gradient": {
        **TEACHER,
        f"{DISTILLATION}.loss_mode": "k1",
        f"{DISTILLATION}.use_policy_gradient": True,
        f"{DISTILLATION}.clip_ratio_high": 0.3,
    },
    "two teachers": TWO_TEACHERS,
}
# What no algorithm reads otherwise than another: changed in the first case alone.
SHARED = ("data.", "trainer.", f"{ROLLOUT}.", f"{MODEL}.", f"{OPTIM}.")


@pytest.fixture(scope="module")
def all_bound(bound: Bindings) -> Bindings:
    """Teachers and reward as well."""
    folders = {None: "d", "sums": "e", "words": "f"}
    teachers = {
        key: Model(path=Path(letter), sha256=letter * 64) for key, letter in folders.items()
    }
    return replace(bound, teachers=teachers)


@pytest.fixture
def recipe_of(compiled, all_bound) -> Any:
    def compile_case(changes: dict[str, Any]) -> recipes.Recipe:
        result = compiled(changes, bindings=all_bound)
        assert result.problems == ()
        assert result.recipe is not None, result.execution
        recipe: recipes.Recipe = result.recipe
        return recipe

    return compile_case


@pytest.mark.parametrize("case", CASES)
def test_each_algorithm_becomes_a_recipe_that_is_read_back(recipe_of, case):
    recipe = recipe_of(CASES[case])
    assert recipes.loads(recipes.dumps(recipe), "a test") == recipe


@pytest.mark.parametrize("case", CASES)
def test_each_recipe_path_has_one_writer_and_each_leaf_one_verdict(change, all_bound, case):
    source = change(CASES[case])
    table = profiles.named(None).table
    findings = judge(source, table, context_of(source, seen_by_rules(all_bound, source)))
    counts = Counter(one.field for one in findings)
    assert set(counts.values()) == {1}
    assert len(counts.keys() & source.defaults.keys()) == 855
    assert written(findings)  # asserts that no path is written twice, and none lies under another


def test_algorithms_differ_in_their_recipes(recipe_of):
    digests = {case: recipe_of(changes).sha256 for case, changes in CASES.items()}
    same = {("as launched", "loss vanilla"), ("as launched", "estimator grpo")}
    for one, other in same:
        assert digests[one] == digests[other]
    named = {case: digest for case, digest in digests.items() if case != "one clip for both sides"}
    assert len(set(named.values())) == len(named) - len(same)


def changed_value(value: Any) -> Any:
    """Another value of the same kind, far enough away to mean something else."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return abs(value) + 7
    if isinstance(value, float):
        return value / 2 + 0.125
    if isinstance(value, str):
        return f"{value}x"
    if isinstance(value, list):
        return [0.25] * len(value)
    return {"x": 1} if value == {} else 7


@pytest.mark.parametrize("case", CASES)
def test_changing_any_exact_leaf_changes_the_recipe_or_is_rejected(change, all_bound, case):
    table = profiles.named(None).table

    def outcome(changes: dict[str, Any]) -> tuple[dict[str, Any], set[str], list[str]]:
        source = change(changes)
        findings = judge(source, table, context_of(source, seen_by_rules(all_bound, source)))
        rejected = {one.field for one in findings if one.classification in REJECTING}
        exact = [one.field for one in findings if one.classification is Class.EXACT]
        return written(findings), rejected, exact

    before, rejected, exact = outcome(CASES[case])
    assert not rejected
    assert len(exact) > 30
    leaves = change(CASES[case]).leaves
    shared = SHARED if case not in ("as launched", "an adapter, a cosine") else ()
    for field in (one for one in exact if not one.startswith(tuple(shared))):
        after, rejected, _ = outcome({**CASES[case], field: changed_value(leaves[field])})
        assert after != before or rejected, field
