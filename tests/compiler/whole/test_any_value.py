"""Whatever a leaf holds, it is accepted or rejected: no value of it stops the compiler."""

from typing import Any

import pytest

from miniverl.compiler import profiles
from miniverl.compiler.judge import context_of, judge
from miniverl.compiler.lower import seen_by_rules
from miniverl.compiler.rule import REJECTING

pytestmark = pytest.mark.slow

VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    10**400,
    -0.5,
    "",
    "x",
    "1_2",
    [],
    [[1]],
    {},
    ["a", 2],
)
TEACHERS = "distillation.teacher_models"
LAUNCHES: dict[str, dict[str, Any]] = {
    "grpo": {},
    "ppo with everything": {
        "algorithm.adv_estimator": "gae",
        "algorithm.use_kl_in_reward": True,
        "algorithm.kl_ctrl.type": "adaptive",
        "algorithm.filter_groups.enable": True,
        "algorithm.filter_groups.metric": "acc",
        "algorithm.rollout_correction.rollout_is": "token",
        "algorithm.rollout_correction.rollout_rs": "token_k1,token_k2",
        "algorithm.rollout_correction.rollout_rs_threshold": "2,1",
        "critic.model.path": "Qwen/Qwen3-8B",
    },
    "two teachers": {
        "distillation.enabled": True,
        "distillation.nnodes": 1,
        "distillation.distillation_loss.loss_mode": "forward_kl_topk",
        f"{TEACHERS}.one.key": "a",
        f"{TEACHERS}.one.model_path": "one",
        f"{TEACHERS}.one.inference.name": "vllm",
    },
}
SECTIONS = (
    "algorithm.",
    "critic.",
    "distillation.",
    "actor_rollout_ref.actor.",
    "data.",
    "trainer.",
)
QUIET = ("profiler", "_target_", ".mtp.", ".qat.", ".lora.")


@pytest.mark.parametrize("name", LAUNCHES)
def test_any_value_of_any_leaf_is_judged(change, bound, name):
    table = profiles.named(None).table
    fields = [
        field
        for field in change(LAUNCHES[name]).leaves
        if field.startswith(SECTIONS) and not any(part in field for part in QUIET)
    ]
    for field in fields:
        for value in VALUES:
            source = change({**LAUNCHES[name], field: value})
            context = context_of(source, seen_by_rules(bound, source))
            verdict = table.judge(field, value, context)
            assert verdict.reason
            assert verdict.fix or verdict.classification not in REJECTING


@pytest.mark.parametrize("name", LAUNCHES)
@pytest.mark.parametrize("value", [None, "x", [[1]], {}, 10**400], ids=lambda value: str(value)[:8])
def test_a_switch_of_any_value_leaves_every_other_leaf_judged(change, bound, name, value):
    table = profiles.named(None).table
    for field in (
        "actor_rollout_ref.actor.policy_loss.loss_mode",
        "actor_rollout_ref.model.path",
        "actor_rollout_ref.rollout.n",
        "algorithm.adv_estimator",
        "algorithm.kl_ctrl.type",
        "algorithm.rollout_correction.rollout_rs",
        "critic.enable",
        "critic.model.path",
        "data.train_batch_size",
        "distillation.enabled",
        "distillation.n_gpus_per_node",
        "distillation.distillation_loss.loss_mode",
        f"{TEACHERS}.one.key",
        f"{TEACHERS}.one.inference.tensor_model_parallel_size",
    ):
        source = change({**LAUNCHES[name], field: value})
        findings = judge(source, table, context_of(source, seen_by_rules(bound, source)))
        assert len(findings) >= 855
