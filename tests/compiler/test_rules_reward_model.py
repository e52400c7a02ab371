"""How a trained reward model is lowered, and which of its server's settings upstream or we refuse."""

import pytest

MODEL = "reward.reward_model"
SERVER = f"{MODEL}.rollout"
ON = {f"{MODEL}.enable": True, f"{MODEL}.model_path": "a/model", f"{SERVER}.name": "vllm"}
POOL = {f"{MODEL}.enable_resource_pool": True}


def test_the_models_score_is_the_reward_whatever_scorer_is_bound(judge):
    judged = judge(ON, reward_model="d" * 64, reward="last_number")
    assert judged.rejected == set()
    assert judged.written["reward"] == {
        "scorer": "reward_model",
        "arguments": {},
        "function": None,
        "model": {"weights_sha256": "d" * 64, "dtype": "float32"},
        "overlong_penalty": None,
    }
    assert judged[f"{MODEL}.enable"].classification == "exact"


def test_an_unbound_model_is_accepted_and_left_open(judge):
    judged = judge(ON)
    assert judged.rejected == set()
    assert judged.written["reward"]["model"] == {"weights_sha256": None, "dtype": "float32"}


def test_without_a_reward_model_its_section_is_not_read(judge):
    judged = judge({f"{MODEL}.model_path": "a/model", f"{SERVER}.quantization": "fp8"})
    assert judged.rejected == set()
    assert {f"{MODEL}.model_path", f"{SERVER}.quantization"} <= judged.warned


def test_a_function_of_the_users_stays_refused_beside_a_model(judge):
    path = "reward.custom_reward_function.path"
    assert judge(ON | {path: "f.py"}).rejected == {path}


@pytest.mark.parametrize(
    ("changed", "rejected"),
    [
        ({f"{MODEL}.enable": "yes"}, f"{MODEL}.enable"),
        ({f"{MODEL}.model_path": None}, f"{MODEL}.model_path"),
        ({f"{MODEL}.model_path": 3}, f"{MODEL}.model_path"),
        ({f"{MODEL}.enable_resource_pool": 1}, f"{MODEL}.enable_resource_pool"),
        (POOL | {f"{MODEL}.nnodes": 0}, f"{MODEL}.nnodes"),
        (POOL | {f"{MODEL}.nnodes": 1, f"{MODEL}.n_gpus_per_node": 0}, f"{MODEL}.n_gpus_per_node"),
        ({f"{SERVER}.name": "trtllm"}, f"{SERVER}.name"),
        ({f"{SERVER}.name": "???"}, f"{SERVER}.name"),
        ({f"{SERVER}.skip_tokenizer_init": True}, f"{SERVER}.skip_tokenizer_init"),
        ({f"{SERVER}.quantization": "fp8"}, f"{SERVER}.quantization"),
        ({f"{SERVER}.mtp": {"enable": True}}, f"{SERVER}.mtp"),
        ({f"{SERVER}.disaggregation.enabled": True}, f"{SERVER}.disaggregation.enabled"),
        ({f"{SERVER}.engine_kwargs.vllm.x": 1}, f"{SERVER}.engine_kwargs.vllm.x"),
        ({f"{SERVER}.unheard_of": 1}, f"{SERVER}.unheard_of"),
        (
            {"trainer.nnodes": 1, "trainer.n_gpus_per_node": 1},
            f"{SERVER}.tensor_model_parallel_size",
        ),
    ],
)
def test_what_the_pin_or_we_cannot_score_with_is_refused(judge, changed, rejected):
    verdicts = judge(ON | changed)
    assert verdicts.rejected == {rejected}
    assert verdicts[rejected].fix


def test_a_pool_of_its_own_changes_no_score(judge):
    judged = judge(ON | POOL | {f"{MODEL}.nnodes": 1})
    assert judged.rejected == set()
    assert judged[f"{MODEL}.enable_resource_pool"].classification == "semantically_conformant"


def test_sizes_of_the_server_are_lowered_and_sampling_is_not_read(judge):
    judged = judge(ON | {f"{SERVER}.max_num_seqs": 8, f"{SERVER}.temperature": 0.5})
    assert judged[f"{SERVER}.max_num_seqs"].classification == "locally_lowered"
    assert judged[f"{SERVER}.gpu_memory_utilization"].classification == "locally_lowered"
    assert judged[f"{SERVER}.temperature"].classification == "informational_only"
    assert f"{SERVER}.temperature" in judged.warned


def test_scoring_in_another_type_than_upstreams_server_is_told(judge):
    assert "float32 here, in bfloat16 upstream" in str(judge(ON)[f"{SERVER}.dtype"].warning)
    assert judge(ON, compute_dtype="bfloat16")[f"{SERVER}.dtype"].warning is None


def test_groups_are_not_filtered_by_a_model_which_gives_no_metric(judge):
    on = {"algorithm.filter_groups.enable": True, "algorithm.filter_groups.metric": "acc"}
    assert "algorithm.filter_groups.enable" in judge(ON | POOL | on).rejected
