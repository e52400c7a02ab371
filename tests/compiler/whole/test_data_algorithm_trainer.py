"""Rules of `data`, `algorithm`, `trainer` and the top level: limits, switches, and what is lowered where."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from miniverl.compiler.rule import REJECTING, Finding

pytestmark = pytest.mark.slow

SAMPLER = "trainer.v1.sampler"
CORRECTION = "algorithm.rollout_correction"


@pytest.fixture
def finding(compiled) -> Callable[..., Finding]:
    """The finding on `field` after the given changes; by default the field's own."""

    def found(field: str, *value: Any, **other: Any) -> Finding:
        changes = {**({field: value[0]} if value else {}), **other.get("changes", {})}
        bindings = {"bindings": other["bindings"]} if "bindings" in other else {}
        return next(one for one in compiled(changes, **bindings).findings if one.field == field)

    return found


@pytest.mark.parametrize(
    ("field", "value", "classification"),
    [
        ("data.train_files", 3, "unsupported"),
        ("data.train_max_samples", None, "unsupported"),
        ("data.val_max_samples", 100, "not_implemented"),
        ("data.prompt_key", "question", "unsupported"),
        ("data.max_prompt_length", 0, "unsupported"),
        ("data.train_batch_size", 0, "unsupported"),
        ("data.train_batch_size", 8192, "unsupported"),
        ("data.gen_batch_size", 1000, "unsupported"),
        ("data.tool_config_path", "tools.yaml", "not_implemented"),
        ("data.shuffle", None, "unsupported"),
        ("data.seed", -1, "unsupported"),
        ("data.seed", 2**53, "unsupported"),
        ("data.dataloader_num_workers", -1, "unsupported"),
        ("data.image_key", "reward_model", "not_implemented"),
        ("data.filter_overlong_prompts", "yes", "unsupported"),
        ("data.truncation", "right", "unsupported"),
        ("data.trust_remote_code", True, "unsupported"),
        ("data.custom_cls.path", "mine.py", "not_implemented"),
        ("data.apply_chat_template_kwargs.tools", [], "unsupported"),
        ("data.continuous_token.enable", True, "not_implemented"),
        ("algorithm.adv_estimator", "remax", "unsupported"),
        ("algorithm.adv_estimator", "gdpo", "unsupported"),
        ("algorithm.adv_estimator", "optimal_token_baseline", "unsupported"),
        ("algorithm.adv_estimator", "grop", "unsupported"),
        ("algorithm.norm_adv_by_std_in_grpo", None, "unsupported"),
        ("algorithm.use_kl_in_reward", "yes", "unsupported"),
        ("algorithm.filter_groups.enable", "yes", "unsupported"),
        (f"{CORRECTION}.rollout_is", "word", "unsupported"),
        (f"{CORRECTION}.rollout_rs", "veto", "unsupported"),
        (f"{CORRECTION}.bypass_mode", None, "unsupported"),
        ("algorithm.use_pf_ppo", True, "unsupported"),
        ("algorithm._target_", "my.Config", "unsupported"),
        ("trainer.total_epochs", 0, "unsupported"),
        ("trainer.total_training_steps", 0, "unsupported"),
        ("trainer.save_freq", None, "unsupported"),
        ("trainer.resume_mode", "resume_path", "not_implemented"),
        ("trainer.resume_mode", "sometimes", "unsupported"),
        ("trainer.val_before_train", "yes", "unsupported"),
        ("trainer.val_only", True, "not_implemented"),
        ("trainer.test_freq", None, "unsupported"),
        ("trainer.critic_warmup", 2, "unsupported"),
        ("trainer.max_actor_ckpt_to_keep", -1, "unsupported"),
        ("trainer.device", "npu", "unsupported"),
        ("trainer.use_v1", False, "not_implemented"),
        ("trainer.v1.trainer_mode", "separate_async", "not_implemented"),
        ("trainer.v1.sync.parameter_sync_step", 2, "not_implemented"),
        (f"{SAMPLER}.sync_refill_failed_groups", None, "unsupported"),
        (f"{SAMPLER}.custom_sampler.path", "mine.py", "not_implemented"),
        ("model_engine", "veomni", "not_implemented"),
        ("skip.rollout_tq.enable", True, "not_implemented"),
        ("skip.rollout.enable", True, "unsupported"),
        ("skip.rollout.nonsense", 1, "unsupported"),
        ("global_profiler._target_", "my.Profiler", "unsupported"),
    ],
)
def test_a_value_that_cannot_be_run_is_rejected_alone_with_a_fix(
    compiled, field, value, classification
):
    result = compiled({field: value})
    rejected = {one.field: one for one in result.findings if one.classification in REJECTING}
    assert set(rejected) == {field}
    assert rejected[field].classification == classification
    assert rejected[field].fix
    assert rejected[field].target is None


@pytest.mark.parametrize(
    ("field", "value", "heir"),
    [
        ("custom_reward_function.path", "r.py", "reward.custom_reward_function.path"),
        ("reward_model.reward_manager", "dapo", "reward.reward_manager.name"),
        ("reward_model.enable", False, "reward.reward_model.enable"),
        ("reward_model.model.path", "m", "reward.reward_model.model_path"),
        ("reward_model.rollout.name", "vllm", "reward.reward_model.rollout.name"),
        ("sandbox_fusion.url", "http", "reward.sandbox_fusion.url"),
    ],
)
def test_a_legacy_reward_key_is_rejected_with_the_one_that_took_its_place(
    finding, field, value, heir
):
    assert finding(field, value).classification == "unsupported"
    assert finding(field, value).fix == f"Set {heir} in its place"


def test_a_legacy_key_without_an_heir_is_to_be_removed(finding):
    fix = finding("reward_model.model.external_lib", "lib").fix
    assert fix == "Remove reward_model.model.external_lib: nothing took its place"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("data.return_raw_chat", False),
        ("data.tokenizer", "gpt2"),
        ("data.reward_fn_key", "source"),
        ("algorithm.gamma", 0.9),
        ("algorithm.kl_ctrl.kl_coef", 0.5),
        ("algorithm.filter_groups.metric", "acc"),
        (f"{CORRECTION}.rollout_is_threshold", 3.0),
        ("trainer.balance_batch", False),
        ("trainer.esi_redundant_time", 5),
        ("trainer.v1.separate_async.parameter_sync_step", 8),
        (f"{SAMPLER}.max_off_policy_threshold", 4),
        ("skip.rollout_tq.action", "repeat"),
    ],
)
def test_what_nothing_reads_is_accepted_with_a_warning_when_it_is_set(compiled, field, value):
    result = compiled({field: value})
    assert result.status == "accepted"
    assert [warning for warning in result.warnings if field in warning]
    assert result.recipe == compiled().recipe


def test_the_seed_of_the_data_is_torchs_default_where_none_is_given(finding):
    assert finding("data.seed").lowered == 67280421310721
    assert finding("data.seed", 0).lowered == 0


def test_without_shuffling_nothing_reads_seed_and_workers(finding):
    unshuffled = {"data.shuffle": False}
    assert finding("data.seed", 5, changes=unshuffled).lowered == 67280421310721
    assert finding("data.seed", 5, changes=unshuffled).classification == "informational_only"
    assert finding("data.dataloader_num_workers", changes=unshuffled).lowered == 1


@pytest.mark.parametrize(("workers", "permutation"), [(0, 1), (1, 2), (8, 2)])
def test_worker_processes_move_the_first_epoch_to_the_second_permutation(
    finding, workers, permutation
):
    assert finding("data.dataloader_num_workers", workers).lowered == permutation


def test_a_subset_of_the_rows_is_the_first_ones_or_drawn_where_they_are_shuffled(finding, bound):
    unshuffled = {"data.shuffle": False}
    assert finding("data.train_max_samples", 2048, changes=unshuffled).lowered == 2048
    drawn = finding("data.train_max_samples", 2048, changes={"data.seed": 7})
    assert (drawn.lowered, drawn.classification) == (2048, "exact")
    unseeded = finding("data.train_max_samples", 2048)
    assert (unseeded.lowered, unseeded.classification) == (2048, "semantically_conformant")
    assert finding("data.train_max_samples", 0).lowered is None
    assert finding("data.train_max_samples", 4096).lowered == 4096  # all that are bound


def test_arguments_of_the_chat_template_are_written_one_by_one(compiled):
    recipe = compiled(
        {"data.apply_chat_template_kwargs.enable_thinking": False},
        without=("data.apply_chat_template_kwargs",),
    ).recipe
    assert recipe.data.chat_template_arguments == {"enable_thinking": False}


def test_a_response_length_of_the_rollouts_own_wins(finding):
    field = "data.max_response_length"
    assert finding(field).classification == "semantically_conformant"
    alone = finding(field, changes={"actor_rollout_ref.rollout.response_length": 64})
    assert alone.classification == "informational_only"
    assert alone.warning


def test_dividing_by_the_deviation_is_what_tells_grpo_from_dr_grpo(compiled):
    recipe = compiled({"algorithm.norm_adv_by_std_in_grpo": False}).recipe
    assert recipe.advantage.divides_by_std is False


@pytest.mark.parametrize(
    ("stated", "rows", "ends_by"), [(None, 0, None), (60, 0, None), (61, 0, 60), (31, 2048, 30)]
)
def test_epochs_that_end_the_run_before_its_steps_are_warned_about(finding, stated, rows, ends_by):
    """4096 rows are 4 batches of 1024, and 15 epochs 60 steps; 2048 rows are half as many."""
    changes = {"trainer.total_training_steps": stated, "data.train_max_samples": rows}
    warning = finding("trainer.total_epochs", changes=changes).warning
    assert (warning is None) == (ends_by is None)
    assert ends_by is None or f"ends the run by step {ends_by}; " in str(warning)


def test_epochs_of_rows_that_are_not_bound_yet_end_at_no_known_step(finding, unbound):
    changes = {"trainer.total_training_steps": 10**6}
    assert finding("trainer.total_epochs", changes=changes, bindings=unbound).warning is None


@pytest.mark.parametrize("drops", [True, False])
def test_stopping_at_a_prompt_that_is_too_long_is_told_to_be_read_by_nothing(finding, drops):
    """Upstream's default `error` sounds like a stop; such a prompt is dropped, or cut from the left."""
    changes = {"data.filter_overlong_prompts": drops}
    verdict = finding("data.truncation", "error", changes=changes)
    assert verdict.classification == "informational_only"
    assert verdict.reason.startswith("nothing reads it: a prompt that is too long is dropped, or")
    assert finding("data.truncation", "middle", changes=changes).classification == "unsupported"


@pytest.mark.parametrize(("every", "written"), [(-1, 0), (0, 0), (3, 3)])
def test_checkpoints_are_saved_at_the_steps_stated(finding, every, written):
    assert finding("trainer.save_freq", every).lowered == written


@pytest.mark.parametrize(("kept", "written"), [(None, None), (0, None), (2, 2)])
def test_as_many_checkpoints_are_kept_as_upstream_would(finding, kept, written):
    assert finding("trainer.max_actor_ckpt_to_keep", kept).lowered == written


@pytest.mark.parametrize("every", [0, -1])
def test_without_a_frequency_only_the_untrained_policy_is_validated(compiled, every):
    result = compiled({"trainer.test_freq": every})
    validation = result.recipe.validation
    assert (validation.before_training, validation.every_steps) == (True, 0)
    assert not [one for one in result.warnings if one.startswith("trainer.test_freq")]
    rows = [row for row in result.report["local_lowering"] if row["kind"] == "local_value"]
    assert "trainer.test_freq" not in [row["source_field"] for row in rows]


def test_more_rows_than_one_step_needs_are_asked_of_the_binding(compiled, bound):
    few = replace(bound, train=replace(bound.train, count=1000))
    (problem,) = compiled(bindings=few).problems
    assert problem.fix == "Set data.train_batch_size to at most 1000, or bind a larger file"


def test_the_older_trainers_differences_are_listed(finding):
    reason = finding("trainer.use_v1", False).reason
    for topic in ("order", "normaliser", "group filters", "saves"):
        assert topic in reason
