"""How sampling is lowered, and which settings of the inference server end here."""

import pytest

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
VAL = f"{ROLLOUT}.val_kwargs"


def test_sampling_is_written_with_filters_off_as_zero_and_one(judge):
    written = judge({f"{ROLLOUT}.n": 5, "data.max_response_length": 64}).written
    assert {path: value for path, value in written.items() if path.startswith("rollout.")} == {
        "rollout.samples_per_prompt": 5,
        "rollout.max_response_tokens": 64,
        "rollout.temperature": 1.0,
        "rollout.top_p": 1.0,
        "rollout.top_k": 0,
        "rollout.ignores_eos": False,
        "rollout.dtype": "float32",
    }
    assert written["seeds.sampling"] == 42


@pytest.mark.parametrize(("upstream", "written"), [(-1, 0), (0, 0), (1, 1), (50, 50)])
def test_top_k_off_is_zero(judge, upstream, written):
    judged = judge({f"{ROLLOUT}.top_k": upstream, f"{VAL}.top_k": upstream})
    assert judged.written["rollout.top_k"] == written
    assert judged.written["validation.top_k"] == written


def test_one_response_to_a_prompt_is_warned_about_where_groups_count(judge):
    assert judge({f"{ROLLOUT}.n": 1})[f"{ROLLOUT}.n"].warning is not None
    assert judge({f"{ROLLOUT}.n": 2})[f"{ROLLOUT}.n"].warning is None


def test_greedy_rollouts_are_accepted_with_a_warning(judge):
    verdict = judge({f"{ROLLOUT}.temperature": 0})[f"{ROLLOUT}.temperature"]
    assert verdict.lowered == 0.0
    assert verdict.warning is not None


def test_validation_is_greedy_by_default_whatever_do_sample_says(judge):
    judged = judge({f"{VAL}.do_sample": True})
    assert judged.written["validation.temperature"] == 0.0
    assert judged[f"{VAL}.do_sample"].warning is not None


def test_sampled_validation_of_a_greedy_policy_stops_the_pin(judge):
    judged = judge({f"{VAL}.do_sample": True, f"{ROLLOUT}.temperature": 0.0})
    assert judged.rejected == {f"{VAL}.do_sample"}


@pytest.mark.parametrize(
    ("leaves", "bindings"),
    [
        ({"trainer.val_before_train": False, "trainer.test_freq": -1}, {}),
        ({}, {"without_validation": True}),
    ],
)
def test_without_validation_none_of_it_is_written(judge, leaves, bindings):
    judged = judge(leaves, **bindings)
    assert not any(path.startswith("validation") for path in judged.written)


def test_prompt_bounds_that_differ_are_rejected(judge):
    assert judge({"data.max_prompt_length": 100}).rejected == set()
    judged = judge({"data.max_prompt_length": 100, f"{ROLLOUT}.prompt_length": 50})
    assert judged.rejected == {f"{ROLLOUT}.prompt_length"}
    assert "=100" in judged[f"{ROLLOUT}.prompt_length"].fix


def test_a_context_that_holds_prompt_and_response_bounds_neither(judge):
    field = f"{ROLLOUT}.max_model_len"
    assert judge({field: 1024}).rejected == set()
    assert judge({field: 1023}).rejected == {field}


def test_binning_of_actor_and_rollout_must_agree_as_upstream_asserts(judge):
    judged = judge({f"{ROLLOUT}.log_prob_use_dynamic_bsz": False})
    assert judged.rejected == {f"{ROLLOUT}.log_prob_use_dynamic_bsz"}
    assert judged[f"{ROLLOUT}.log_prob_use_dynamic_bsz"].classification == "unsupported"


def test_the_open_server_name_is_rejected_until_one_is_set(judge):
    judged = judge({f"{ROLLOUT}.name": "???"})
    assert judged.rejected == {f"{ROLLOUT}.name"}
    assert "vllm" in judged[f"{ROLLOUT}.name"].fix


def test_arguments_that_only_tune_the_server_are_accepted(judge):
    tuning = f"{ROLLOUT}.engine_kwargs.vllm.compilation_config.cudagraph_mode"
    assert judge({tuning: "FULL"})[tuning].classification == "locally_lowered"
    sampling = f"{ROLLOUT}.engine_kwargs.vllm.quantization"
    assert judge({sampling: "fp8"}).rejected == {sampling}


def test_arguments_to_another_server_are_not_read(judge):
    other = f"{ROLLOUT}.engine_kwargs.sglang.quantization"
    judged = judge({other: "fp8"})
    assert judged.rejected == set()
    assert judged[other].warning is not None


def test_bypassing_old_log_probs_needs_those_of_the_server(judge):
    field = f"{ROLLOUT}.calculate_log_probs"
    assert judge({field: False}).rejected == set()
    bypass = {"algorithm.rollout_correction.bypass_mode": True}
    assert judge(bypass | {field: False}).rejected == {field}


def test_experts_spread_over_all_devices_of_a_server_or_none(judge):
    sizes = {f"{ROLLOUT}.tensor_model_parallel_size": 4, f"{ROLLOUT}.data_parallel_size": 2}
    field = f"{ROLLOUT}.expert_parallel_size"
    assert judge(sizes | {field: 8}).rejected == set()
    assert judge(sizes | {field: 4})[field].fix == f"Set {field}=8, or to 1"


def test_keys_that_upstream_scripts_append_are_known(judge):
    judged = judge(
        {
            f"{ROLLOUT}.enable_sleep_mode": True,
            f"{ROLLOUT}.moe_tensor_parallel_size": 2,
            f"{ROLLOUT}.server.timeout": 10,
            f"{ROLLOUT}.repetition_penalty": 1.1,
        }
    )
    assert judged.rejected == set()
    assert judged[f"{ROLLOUT}.repetition_penalty"].warning is not None
