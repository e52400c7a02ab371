"""How a critic is lowered: its own optimizer, schedule, mini-batches and value clip; nothing without one."""

import pytest

PPO = {"algorithm.adv_estimator": "gae", "critic.model.path": "Qwen/Qwen3-8B"}


@pytest.fixture
def ppo(judge):
    """Judges a launch with a critic, with overrides on top."""
    return lambda overrides=None, **bindings: judge(PPO | dict(overrides or {}), **bindings)


def test_a_critic_has_an_optimizer_schedule_and_mini_batches_of_its_own(ppo):
    written = ppo(
        {
            "critic.optim.lr": 1e-4,
            "critic.optim.lr_warmup_steps": 3,
            "critic.ppo_mini_batch_size": 128,
            "critic.ppo_epochs": 2,
            "critic.cliprange_value": 0.25,
        }
    ).written
    assert written["critic.optimizer.learning_rate"] == 1e-4
    assert written["optimizer.learning_rate"] == 1e-6
    assert written["critic.learning_rate_schedule.warmup_steps"] == 3
    assert written["critic.update.prompts_per_mini_batch"] == 128
    assert written["update.prompts_per_mini_batch"] == 256
    assert written["critic.update.epochs"] == 2
    assert written["critic.value_clip"] == 0.25


def test_what_a_critic_leaves_to_the_actor_is_rejected_once(ppo):
    actor = "actor_rollout_ref.actor.ppo_mini_batch_size"
    assert ppo({actor: 300}).rejected == {actor}
    assert ppo({"critic.ppo_mini_batch_size": 300}).rejected == {"critic.ppo_mini_batch_size"}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("critic._target_", "my.Critic"),
        ("critic.cliprange_value", -0.1),
        ("critic.checkpoint.async_save", True),
        ("critic.data_loader_seed", -1),
        ("critic.fsdp.forward_only", True),
        ("critic.fsdp.model_dtype", "bf16"),
        ("critic.loss_agg_mode", "token_mean"),
        ("critic.model.external_lib", "my_models"),
        ("critic.model.lora_adapter_path", "/adapter"),
        ("critic.model.lora_rank", 4),
        ("critic.model.mtp.enable", True),
        ("critic.model.trust_remote_code", True),
        ("critic.optim.clip_grad", 0),
        ("critic.optim.lr", "1e-6"),
        ("critic.optim.lr_scheduler_type", "linear"),
        ("critic.optim.optimizer", "SGD"),
        ("critic.ppo_epochs", 0),
        ("critic.ppo_max_token_len_per_gpu", 0),
        ("critic.strategy", "megatron"),
    ],
)
def test_a_bad_value_is_rejected_with_a_critic_and_not_read_without_one(ppo, judge, field, value):
    assert ppo({field: value}).rejected == {field}
    unread = judge({field: value})
    assert unread.rejected == set()
    assert unread[field].reason == "not read: this launch has no critic"
    assert unread[field].warning == f"{field} is set, and nothing reads it"


def test_a_critic_with_static_micro_batches_needs_their_size(ppo):
    static = {"critic.use_dynamic_bsz": False}
    assert ppo(static).rejected == {"critic.ppo_micro_batch_size_per_gpu"}
    assert ppo(static | {"critic.ppo_micro_batch_size_per_gpu": 4}).rejected == set()


def test_the_budget_that_upstreams_critic_reads_wins_where_it_is_appended(ppo):
    appended = "critic.ppo_infer_max_token_len_per_gpu"
    target = "critic.update.micro_batch_tokens"
    assert ppo({"critic.ppo_max_token_len_per_gpu": 5000}).written[target] == 5000
    judged = ppo({"critic.ppo_max_token_len_per_gpu": 5000, appended: 6000})
    assert judged.written[target] == 6000
    assert judged["critic.ppo_max_token_len_per_gpu"].warning is not None


def test_a_critic_is_the_bound_model_where_both_launch_paths_are_equal(ppo):
    equal = {"actor_rollout_ref.model.path": "Qwen/Qwen3-8B"}
    assert ppo(equal).written["critic.weights_sha256"] == "a" * 64
    assert ppo(equal, critic="d" * 64).written["critic.weights_sha256"] == "d" * 64
    assert ppo().written["critic.weights_sha256"] is None


def test_a_critic_that_no_estimator_needs_is_trained_and_said_to_be_in_vain(judge):
    judged = judge({"critic.enable": True})
    assert "in vain" in str(judged["critic.enable"].warning)
    assert "critic.optimizer.name" in judged.written


def test_a_critic_is_trained_whole(ppo):
    """Upstream's adapter of a critic is that of a causal model, which stops, or leaves the head as it was."""
    assert ppo().written["critic.lora"] is None
