"""How the policy's update is lowered: mini-batches, micro-batches, seeds and dtypes."""

import pytest

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
MINI = f"{ACTOR}.ppo_mini_batch_size"


def test_mini_batches_count_prompts(judge):
    verdict = judge({"data.train_batch_size": 8, MINI: 4})[MINI]
    assert verdict.classification == "semantically_conformant"
    assert (verdict.target, verdict.lowered) == ("update.prompts_per_mini_batch", 4)


@pytest.mark.parametrize(
    ("prompts", "mini", "nearest"),
    [(12, 5, "4 or 6"), (7, 2, "1 or 7"), (4, 256, "4"), (1024, 300, "256 or 512")],
)
def test_a_mini_batch_that_does_not_divide_the_batch_names_the_nearest_ones(
    judge, prompts, mini, nearest
):
    verdict = judge({"data.train_batch_size": prompts, MINI: mini})[MINI]
    assert verdict.classification == "not_implemented"
    assert f"{mini} prompts" in verdict.reason
    assert f"the {prompts} of" in verdict.reason
    assert verdict.fix.startswith(f"Set {MINI} to {nearest}, or")


def test_with_dynamic_bins_the_token_budget_bounds_a_micro_batch(judge):
    judged = judge({f"{ACTOR}.ppo_max_token_len_per_gpu": 4096})
    assert judged.written["update.micro_batch_tokens"] == 4096
    assert judged[f"{ACTOR}.ppo_micro_batch_size_per_gpu"].reason.startswith("not read")


def test_with_static_bins_a_micro_batch_holds_so_many_longest_sequences(judge):
    judged = judge(
        {
            f"{ACTOR}.use_dynamic_bsz": False,
            f"{ACTOR}.ppo_micro_batch_size_per_gpu": 3,
            f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": 3,
            "data.max_prompt_length": 100,
            "data.max_response_length": 50,
        }
    )
    assert judged.rejected == set()
    assert judged.written["update.micro_batch_tokens"] == 450
    assert judged[f"{ACTOR}.ppo_max_token_len_per_gpu"].reason.startswith("not read")


def test_a_budget_below_the_longest_sequence_is_warned_about(judge):
    field = f"{ACTOR}.ppo_max_token_len_per_gpu"
    assert judge({field: 1023})[field].warning is not None
    assert judge({field: 1024})[field].warning is None


def test_static_bins_without_a_size_are_rejected_for_actor_rollout_and_reference(judge):
    judged = judge({f"{ACTOR}.use_dynamic_bsz": False, f"{ACTOR}.use_kl_loss": True})
    assert judged.rejected == {
        f"{ACTOR}.ppo_micro_batch_size_per_gpu",
        f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu",
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu",
    }


def test_a_mistyped_number_of_prompts_is_not_counted_up_to(judge):
    verdict = judge({"data.train_batch_size": 10**26 + 1, MINI: 256})[MINI]
    assert "a divisor of 1000" in verdict.fix


def test_the_seed_of_mini_batches_is_read_only_when_they_are_shuffled(judge):
    seed = f"{ACTOR}.data_loader_seed"
    still = judge({seed: 7})
    assert (still[seed].classification, still[seed].lowered) == ("informational_only", 42)
    assert still[seed].warning is not None
    shuffled = judge({seed: 7, f"{ACTOR}.shuffle": True})
    assert (shuffled[seed].classification, shuffled[seed].lowered) == ("exact", 7)


@pytest.mark.parametrize("dtype", [None, "fp32", "float32", "32", 32])
def test_every_upstream_name_of_float32_is_float32(judge, dtype):
    field = f"{ACTOR}.fsdp_config.model_dtype"
    assert judge({field: dtype})[field].lowered == "float32"


def test_half_precision_weights_are_not_implemented_and_unknown_ones_unsupported(judge):
    field = f"{ACTOR}.fsdp_config.model_dtype"
    assert judge({field: "bfloat16"})[field].classification == "not_implemented"
    assert judge({field: "int4"})[field].classification == "unsupported"


def test_the_bound_dtype_decides_what_is_computed_in(judge):
    judged = judge(compute_dtype="float16")
    assert judged.written["policy.compute_dtype"] == "float16"
    assert judged.written["rollout.dtype"] == "float16"


def test_an_appended_autocast_dtype_that_is_not_the_bound_one_is_warned_about(judge):
    field = f"{ACTOR}.fsdp_config.mixed_precision.param_dtype"
    assert judge({field: "bf16"}, compute_dtype="float32")[field].warning is not None
    assert judge({field: "fp32"}, compute_dtype="float32")[field].warning is None
    assert judge({field: "bfloat16"}, compute_dtype="bfloat16")[field].warning is None


def test_the_dead_gradient_clip_is_warned_about_where_it_contradicts_the_living_one(judge):
    dead = f"{ACTOR}.grad_clip"
    assert judge({dead: 0.5})[dead].warning is not None
    assert judge({dead: 0.5, f"{ACTOR}.optim.clip_grad": 0.5})[dead].warning is None


def test_what_a_checkpoint_leaves_out_upstream_is_kept_here(judge):
    judged = judge({f"{ACTOR}.checkpoint.save_contents": ["model", "hf_model"]})
    assert judged.rejected == set()
    partial = {f"{ACTOR}.checkpoint.load_contents": ["model"]}
    assert judge(partial).rejected == {f"{ACTOR}.checkpoint.load_contents"}


def test_sequence_parallelism_needs_packed_sequences_as_upstream(judge):
    field = f"{ACTOR}.ulysses_sequence_parallel_size"
    assert judge({field: 2})[field].classification == "distributed_only"
    unpacked = judge({field: 2, "actor_rollout_ref.model.use_remove_padding": False})
    assert unpacked[field].classification == "unsupported"
