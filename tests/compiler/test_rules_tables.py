"""What holds for every table: coverage, one writer for each recipe path, and sentences a user can act on."""

from collections import Counter
from itertools import chain

import pytest

from miniverl.compiler.rule import REJECTING

ACTOR = "actor_rollout_ref.actor"
MODEL = "actor_rollout_ref.model"
REF = "actor_rollout_ref.ref"
ROLLOUT = "actor_rollout_ref.rollout"

# Values that each run into the limit of one leaf.
BAD_VALUES = [
    (f"{ACTOR}._target_", "my.Actor"),
    (f"{ACTOR}.strategy", "megatron"),
    (f"{ACTOR}.ppo_mini_batch_size", 0),
    (f"{ACTOR}.ppo_mini_batch_size", 300),
    (f"{ACTOR}.ppo_micro_batch_size", 8),
    (f"{ACTOR}.ppo_max_token_len_per_gpu", None),
    (f"{ACTOR}.ppo_epochs", 0),
    (f"{ACTOR}.shuffle", None),
    (f"{ACTOR}.data_loader_seed", None),
    (f"{ACTOR}.data_loader_seed", 2**53),
    (f"{ACTOR}.clip_ratio_low", -0.1),
    (f"{ACTOR}.clip_ratio_high", "0.2"),
    (f"{ACTOR}.clip_ratio_c", 1.0),
    (f"{ACTOR}.loss_agg_mode", "token_mean"),
    (f"{ACTOR}.entropy_coeff", None),
    (f"{ACTOR}.use_kl_loss", "yes"),
    (f"{ACTOR}.calculate_sum_pi_squared", True),
    (f"{ACTOR}.policy_loss.loss_mode", "clip-cov"),
    (f"{ACTOR}.policy_loss.loss_mode", "bypass_mode"),
    (f"{ACTOR}.router_replay.mode", "R3"),
    (f"{ACTOR}.qat.enable", True),
    (f"{ACTOR}.checkpoint.async_save", True),
    (f"{ACTOR}.checkpoint.save_contents", ["weights"]),
    (f"{ACTOR}.checkpoint.load_contents", ["model"]),
    (f"{ACTOR}.fsdp_config.model_dtype", "bf16"),
    (f"{ACTOR}.fsdp_config.model_dtype", "int8"),
    (f"{ACTOR}.fsdp_config.forward_only", True),
    (f"{ACTOR}.fsdp_config.seed", -1),
    (f"{ACTOR}.optim.optimizer", "SGD"),
    (f"{ACTOR}.optim.optimizer_impl", "bitsandbytes.optim"),
    (f"{ACTOR}.optim.lr", float("nan")),
    (f"{ACTOR}.optim.lr", "1e-6"),
    (f"{ACTOR}.optim.betas", [0.9]),
    (f"{ACTOR}.optim.weight_decay", -0.1),
    (f"{ACTOR}.optim.clip_grad", 0),
    (f"{ACTOR}.optim.clip_grad", float("inf")),
    (f"{ACTOR}.optim.lr_warmup_steps", None),
    (f"{ACTOR}.optim.lr_warmup_steps_ratio", 1.5),
    (f"{ACTOR}.optim.lr_scheduler_type", "linear"),
    (f"{ACTOR}.optim.warmup_style", "linear"),
    (f"{ACTOR}.optim.override_optimizer_config.amsgrad", True),
    (f"{ACTOR}.optim.override_optimizer_config.eps", 0),
    (f"{ACTOR}.policy_loss.tau_pos", 1.0),
    ("actor_rollout_ref.hybrid_engine", False),
    (f"{MODEL}.hf_config_path", "/elsewhere"),
    (f"{MODEL}.tokenizer_path", "/elsewhere"),
    (f"{MODEL}.custom_chat_template", "{{ messages }}"),
    (f"{MODEL}.trust_remote_code", True),
    (f"{MODEL}.external_lib", "my_models"),
    (f"{MODEL}.override_config.num_hidden_layers", 2),
    (f"{MODEL}.enable_gradient_checkpointing", None),
    (f"{MODEL}.lora_rank", -1),
    (f"{MODEL}.lora_adapter_path", "/adapter"),
    (f"{MODEL}.lora.rank", 8),
    (f"{MODEL}.mtp.enable", True),
    (f"{MODEL}.target_parameters", ["w"]),
    (f"{ROLLOUT}.name", "hf"),
    (f"{ROLLOUT}.mode", "sync"),
    (f"{ROLLOUT}.temperature", -1.0),
    (f"{ROLLOUT}.top_p", 0.0),
    (f"{ROLLOUT}.top_k", -2),
    (f"{ROLLOUT}.n", 0),
    (f"{ROLLOUT}.prompt_length", 256),
    (f"{ROLLOUT}.response_length", 0),
    (f"{ROLLOUT}.max_model_len", 512),
    (f"{ROLLOUT}.seed", None),
    (f"{ROLLOUT}.dtype", "int8"),
    (f"{ROLLOUT}.ignore_eos", None),
    (f"{ROLLOUT}.logprobs_mode", "raw_logprobs"),
    (f"{ROLLOUT}.log_prob_use_dynamic_bsz", False),
    (f"{ROLLOUT}.log_prob_micro_batch_size", 8),
    (f"{ROLLOUT}.pipeline_model_parallel_size", 2),
    (f"{ROLLOUT}.expert_parallel_size", 3),
    (f"{ROLLOUT}.quantization", "fp8"),
    (f"{ROLLOUT}.quantization_config_file", "q.json"),
    (f"{ROLLOUT}.enable_rollout_routing_replay", True),
    (f"{ROLLOUT}.disaggregation.enabled", True),
    (f"{ROLLOUT}.engine_kwargs.vllm.speculative_config", "eagle"),
    (f"{ROLLOUT}.checkpoint_engine.custom_backend_module", "mine"),
    (f"{ROLLOUT}.agent.default_agent_loop", "tool_agent"),
    (f"{ROLLOUT}.agent.agent_loop_config_path", "agents.yaml"),
    (f"{ROLLOUT}.agent.custom_async_server.path", "server.py"),
    (f"{ROLLOUT}.multi_turn.enable", True),
    (f"{ROLLOUT}.multi_turn.tool_config_path", "tools.yaml"),
    (f"{ROLLOUT}.val_kwargs.n", 0),
    (f"{ROLLOUT}.val_kwargs.temperature", -1),
    (f"{ROLLOUT}.val_kwargs.top_p", 2.0),
    (f"{ROLLOUT}.val_kwargs.top_k", 1.5),
    ("critic.enable", "yes"),
    ("reward.custom_reward_function.path", ""),
    ("reward.reward_manager.name", "gdpo"),
    ("reward.reward_manager.name", "mine"),
    ("reward.reward_manager.source", "importlib"),
    ("reward.reward_model.enable", "yes"),
    ("reward.sandbox_fusion.url", "http://localhost"),
    ("distillation.enabled", "yes"),
]


def test_every_leaf_of_these_sections_has_exactly_one_rule(defaults, tables):
    rules = [rule for table in tables.values() for rule in table.RULES]
    covering = {field: [rule.pattern for rule in rules if rule.covers(field)] for field in defaults}
    ours = {field for field in defaults if field.startswith(tuple(tables))}
    assert {field for field, patterns in covering.items() if patterns} == ours
    assert [field for field in ours if len(covering[field]) != 1] == []
    assert len(ours) == 686


def test_every_rule_covers_a_leaf_of_the_tree(defaults, tables):
    rules = chain.from_iterable(table.RULES for table in tables.values())
    assert [r.pattern for r in rules if not any(map(r.covers, defaults))] == []


def test_rules_for_appended_keys_cover_no_leaf_of_the_tree(defaults, tables):
    rules = chain.from_iterable(getattr(table, "APPENDED", ()) for table in tables.values())
    assert [r.pattern for r in rules if any(map(r.covers, defaults))] == []


def test_classes_of_the_official_grpo_launch(launches):
    counts = Counter(str(v.classification) for v in launches["grpo"].verdicts.values())
    assert counts == {
        "exact": 43,
        "semantically_conformant": 23,
        "locally_lowered": 58,
        "distributed_only": 29,
        "informational_only": 533,
    }


def test_no_leaf_of_an_official_launch_is_rejected(launches):
    assert {name: judged.rejected for name, judged in launches.items() if judged.rejected} == {}
    assert len(launches) == 7


def test_each_recipe_path_has_one_writer_in_every_official_launch(launches):
    for judged in launches.values():
        counts = Counter(path for path, _ in judged.writers)
        assert [path for path, count in counts.items() if count > 1] == []


def test_recipe_paths_written_for_a_full_run_and_for_an_adapter(launches):
    shared = {
        "seeds.sampling",
        "seeds.parameters",
        "seeds.mini_batches",
        "policy.weights_sha256",
        "policy.parameter_dtype",
        "policy.compute_dtype",
        "policy.checkpoints_activations",
        "rollout.samples_per_prompt",
        "rollout.max_response_tokens",
        "rollout.temperature",
        "rollout.top_p",
        "rollout.top_k",
        "rollout.ignores_eos",
        "rollout.dtype",
        "validation.samples_per_prompt",
        "validation.temperature",
        "validation.top_p",
        "validation.top_k",
        "reward",
        "policy_loss.name",
        "policy_loss.arguments.clip_low",
        "policy_loss.arguments.clip_high",
        "policy_loss.arguments.dual_clip",
        "policy_loss.aggregation.mode",
        "policy_loss.aggregation.horizon",
        "policy_loss.entropy_coefficient",
        "kl_loss.estimator",
        "kl_loss.coefficient",
        "advantage.divides_by_std",
        "advantage.estimator",
        "group_filter",
        "kl_reward",
        "rollout_correction",
        "critic",
        "distillation",
        "optimizer.name",
        "optimizer.learning_rate",
        "optimizer.betas",
        "optimizer.epsilon",
        "optimizer.weight_decay",
        "optimizer.max_gradient_norm",
        "learning_rate_schedule.kind",
        "learning_rate_schedule.warmup_steps",
        "learning_rate_schedule.min_ratio",
        "learning_rate_schedule.num_cycles",
        "learning_rate_schedule.zero_indexed",
        "update.prompts_per_mini_batch",
        "update.epochs",
        "update.shuffles",
        "update.micro_batch_tokens",
    }
    adapter = {
        f"policy.lora.{name}" for name in ("rank", "alpha", "target_modules", "excluded_modules")
    }
    assert set(launches["grpo"].written) == shared | {"policy.lora"}
    assert set(launches["grpo_lora"].written) == shared | adapter
    assert set(launches["dr_grpo"].written) == (
        shared - {"kl_loss.estimator", "kl_loss.coefficient"} | {"policy.lora", "kl_loss"}
    )


@pytest.mark.parametrize(("field", "value"), BAD_VALUES)
def test_a_bad_value_is_rejected_once_with_a_reason_and_a_fix(judge, field, value):
    judged = judge({field: value})
    assert judged.rejected == {field}
    verdict = judged[field]
    assert verdict.classification in REJECTING
    assert verdict.reason
    assert verdict.fix
    assert not verdict.fix.endswith(".")
    assert verdict.target is None


def test_a_launch_that_changes_nothing_is_accepted_without_warnings_but_for_its_dtype(judge):
    judged = judge()
    assert judged.rejected == set()
    assert judged.warned == {f"{ROLLOUT}.n", f"{ROLLOUT}.dtype"}


def test_reasons_are_single_sentences_without_a_full_stop(launches, judge):
    verdicts = [v for judged in [*launches.values(), judge()] for v in judged.verdicts.values()]
    for reason in {verdict.reason for verdict in verdicts}:
        assert reason == reason.strip()
        assert not reason.endswith(".")
        assert ". " not in reason


def test_a_leaf_that_only_moved_with_the_one_it_copies_is_not_warned_about(judge):
    judged = judge({f"{ROLLOUT}.n": 4})
    assert judged[f"{ACTOR}.rollout_n"].warning is None
    assert judged["critic.rollout_n"].warning is None
    assert judge({f"{ACTOR}.rollout_n": 7})[f"{ACTOR}.rollout_n"].warning is not None


def test_a_leaf_without_a_reader_warns_when_it_is_set(judge):
    fields = {
        f"{ACTOR}.freeze_vision_tower": True,
        f"{ACTOR}.fsdp_config.dtype": "float16",
        f"{ACTOR}.optim.total_training_steps": 10,
        f"{ROLLOUT}.do_sample": False,
        f"{ROLLOUT}.over_sample_rate": 0.5,
        f"{MODEL}.lora.alpha": 64,
        f"{MODEL}.tiled_mlp.enabled": True,
        "actor_rollout_ref.nccl_timeout": 1200,
        "critic.cliprange_value": 0.2,
        "distillation.distillation_loss.topk": 64,
    }
    judged = judge(fields)
    assert judged.rejected == set()
    assert set(fields) <= judged.warned
    assert {judged[field].classification for field in fields} == {"informational_only"}


def test_an_unknown_key_under_a_subtree_is_rejected_with_the_nearest_known_one(judge):
    field = f"{MODEL}.mtp.enabled"
    assert judge({field: True})[field].fix == f"Did you mean {MODEL}.mtp.enable?"


def test_changing_an_exact_leaf_changes_the_recipe(judge):
    before = judge({f"{ACTOR}.use_kl_loss": True, f"{MODEL}.lora_rank": 8}).written
    changes = {
        f"{ACTOR}.optim.lr": 0.5,
        f"{ACTOR}.optim.weight_decay": 0.5,
        f"{ACTOR}.optim.betas": [0.5, 0.5],
        f"{ACTOR}.optim.clip_grad": 0.5,
        f"{ACTOR}.clip_ratio_low": 0.5,
        f"{ACTOR}.clip_ratio_high": 0.5,
        f"{ACTOR}.clip_ratio_c": 5.0,
        f"{ACTOR}.loss_agg_mode": "token-sum",
        f"{ACTOR}.entropy_coeff": 0.5,
        f"{ACTOR}.kl_loss_coef": 0.5,
        f"{ACTOR}.kl_loss_type": "k1",
        f"{ACTOR}.ppo_epochs": 2,
        f"{ACTOR}.shuffle": True,
        f"{MODEL}.lora_rank": 4,
        f"{MODEL}.lora_alpha": 4,
        f"{MODEL}.target_modules": ["q_proj"],
        f"{MODEL}.exclude_modules": ["q_proj"],
        f"{ROLLOUT}.n": 2,
        f"{ROLLOUT}.temperature": 0.5,
        f"{ROLLOUT}.top_p": 0.5,
        f"{ROLLOUT}.top_k": 5,
        f"{ROLLOUT}.ignore_eos": True,
        f"{ROLLOUT}.val_kwargs.n": 2,
        f"{ROLLOUT}.val_kwargs.temperature": 0.5,
        f"{ROLLOUT}.val_kwargs.top_p": 0.5,
        f"{ROLLOUT}.val_kwargs.top_k": 5,
    }
    for field, value in changes.items():
        stated = {f"{ACTOR}.use_kl_loss": True, f"{MODEL}.lora_rank": 8} | {field: value}
        judged = judge(stated)
        assert judged.rejected == set(), field
        assert judged.written != before, field
