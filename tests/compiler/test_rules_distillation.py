"""How learning from teachers is lowered, and what upstream refuses of it."""

import pytest

LOSS = "distillation.distillation_loss"
MODELS = "distillation.teacher_models"
ONLY = f"{MODELS}.teacher_model"
TEACHER = {
    "distillation.enabled": True,
    "distillation.nnodes": 1,
    f"{ONLY}.model_path": "Qwen/Qwen3-32B",
}
TOP_K = TEACHER | {f"{LOSS}.loss_mode": "forward_kl_topk"}


def _named(name: str, key: str) -> dict[str, object]:
    path = f"{MODELS}.{name}"
    return {
        f"{path}.key": key,
        f"{path}.model_path": name,
        f"{path}.num_replicas": 2,
        f"{path}.inference.name": "vllm",
    }


TWO = {
    "distillation.enabled": True,
    "distillation.nnodes": 1,
    **_named("a", "x"),
    **_named("b", "w"),
}


def test_the_loss_of_one_teacher(judge):
    judged = judge(TEACHER, teachers={None: "d" * 64})
    assert judged.rejected == set()
    written = {path: value for path, value in judged.written.items() if "distillation" in path}
    assert written == {
        "distillation.teachers": [{"key": None, "weights_sha256": "d" * 64, "dtype": "float32"}],
        "distillation.routing_field": "data_source",
        "distillation.loss": "k3",
        "distillation.top_k": None,
        "distillation.min_log_prob": None,
        "distillation.max_loss": None,
        "distillation.policy_gradient_clips": None,
        "distillation.uses_task_rewards": True,
        "distillation.coefficient": 1.0,
    }


def test_several_teachers_are_sorted_by_the_key_of_their_prompts(judge):
    judged = judge(TWO, train_columns=frozenset({"data_source", "prompt"}), teachers={})
    assert judged.rejected == set()
    assert [one["key"] for one in judged.written["distillation.teachers"]] == ["w", "x"]
    assert judged["distillation.teacher_key"].classification == "exact"
    assert judged[f"{ONLY}.model_path"].reason.startswith("not read: beside teachers")


@pytest.mark.parametrize(
    ("base", "changes", "field"),
    [
        (TEACHER, {f"{ONLY}.model_path": None}, f"{ONLY}.model_path"),
        (TEACHER, {"distillation.nnodes": 0}, "distillation.nnodes"),
        (TEACHER, {"distillation.n_gpus_per_node": 0}, "distillation.n_gpus_per_node"),
        (TEACHER, {"distillation.n_gpus_per_node": 3}, "distillation.nnodes"),
        (TEACHER, {f"{ONLY}.inference.max_model_len": 1024}, f"{ONLY}.inference.max_model_len"),
        (TEACHER, {f"{LOSS}.loss_mode": "k1"}, f"{LOSS}.loss_mode"),
        (TEACHER, {f"{LOSS}.loss_mode": "k3+"}, f"{LOSS}.loss_mode"),
        (TEACHER, {f"{LOSS}.policy_loss_mode": "gspo"}, f"{LOSS}.policy_loss_mode"),
        (TEACHER, {f"{LOSS}.loss_max_clamp": -1}, f"{LOSS}.loss_max_clamp"),
        (TEACHER, {f"{ONLY}.inference.max_model_length": 9}, f"{ONLY}.inference.max_model_length"),
        (TOP_K, {"actor_rollout_ref.actor.strategy": "fsdp2"}, f"{LOSS}.loss_mode"),
        (TOP_K, {f"{LOSS}.topk": None}, f"{LOSS}.topk"),
        (TOP_K, {f"{ONLY}.inference.name": "trtllm"}, f"{ONLY}.inference.name"),
        (TWO, {f"{MODELS}.b.key": "x"}, f"{MODELS}.b.key"),
        (TWO, {f"{MODELS}.b.num_replicas": 1}, "distillation.nnodes"),
        (TWO, {"distillation.teacher_key": "topic"}, "distillation.teacher_key"),
    ],
)
def test_what_upstream_stops_at_is_refused(judge, base, changes, field):
    assert field in judge(base | changes).rejected
    assert len(judge(base | changes).rejected - {f"{MODELS}.a.key"}) == 1


def test_a_teacher_with_a_name_needs_key_path_and_server(judge):
    judged = judge(TWO | {f"{MODELS}.c.key": "z"})
    assert "distillation.enabled" in judged.rejected
    assert f"{MODELS}.c.inference.name" in judged["distillation.enabled"].reason


def test_only_the_likeliest_tokens_have_a_count_and_a_clamp(judge):
    judged = judge(TOP_K | {f"{LOSS}.log_prob_min_clamp": -10.0}).written
    assert (judged["distillation.top_k"], judged["distillation.min_log_prob"]) == (32, -10.0)
    unread = judge(TEACHER | {f"{LOSS}.topk": 64, f"{LOSS}.log_prob_min_clamp": -10.0})
    assert {f"{LOSS}.topk", f"{LOSS}.log_prob_min_clamp"} <= unread.warned


def test_by_policy_gradient_the_clips_count(judge):
    changes = {f"{LOSS}.loss_mode": "k1", f"{LOSS}.use_policy_gradient": True}
    clips = {f"{LOSS}.clip_ratio_low": None, f"{LOSS}.clip_ratio": 0.1}
    written = judge(TEACHER | changes | clips).written
    assert written["distillation.policy_gradient_clips"] == [0.1, 0.2]
    assert f"{LOSS}.clip_ratio_high" in judge(TEACHER | {f"{LOSS}.clip_ratio_high": 0.3}).warned


def test_without_task_rewards_the_policy_loss_and_its_terms_are_not_read(judge):
    actor = "actor_rollout_ref.actor"
    alone = {f"{LOSS}.use_task_rewards": False, f"{LOSS}.distillation_loss_coef": 0.5}
    judged = judge(TEACHER | alone | {f"{actor}.use_kl_loss": True, f"{actor}.entropy_coeff": 0.1})
    assert judged.written["distillation.coefficient"] == 1.0
    assert judged.written["kl_loss"] is None
    for field in ("use_kl_loss", "entropy_coeff", "policy_loss.loss_mode", "clip_ratio_low"):
        assert judged[f"{actor}.{field}"].classification == "informational_only"
    assert judged[f"{actor}.loss_agg_mode"].classification == "exact"


def test_a_teachers_temperature_is_1_whatever_the_rollouts_is(judge):
    judged = judge(TEACHER | {"actor_rollout_ref.rollout.temperature": 0.7})
    assert "0.7" in str(judged["distillation.enabled"].warning)
    assert judged[f"{ONLY}.inference.temperature"].classification == "informational_only"


def test_disabled_nothing_of_the_section_is_read(judge):
    judged = judge({f"{LOSS}.loss_mode": "nonsense", f"{MODELS}.maths.model_path": "teacher"})
    assert judged.rejected == set()
    assert judged.written["distillation"] is None
