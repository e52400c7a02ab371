"""Capacity: sums that can be checked by hand, and peaks that runs of the workloads have measured."""

import json
from pathlib import Path
from typing import Any

import pytest

from miniverl.compiler.capacity import (
    GIB,
    PROCESS_BYTES,
    activation_values,
    assess,
    batch_of,
    parts,
    roles,
)
from miniverl.engine.footprint import NF4_BYTES, model_shape, parameters

RESULTS = Path(__file__).parents[2] / "results"
TINY = {
    "model_type": "llama",
    "vocab_size": 1000,
    "hidden_size": 10,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 20,
    "tie_word_embeddings": True,
}
SMOLLM2 = {
    "model_type": "llama",
    "vocab_size": 49152,
    "hidden_size": 576,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "intermediate_size": 1536,
    "tie_word_embeddings": True,
}
QWEN3_8B = {
    "model_type": "qwen3",
    "vocab_size": 151936,
    "hidden_size": 4096,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 12288,
    "head_dim": 128,
    "tie_word_embeddings": False,
}


def launch(**changes: Any) -> dict[str, Any]:
    """One step: 2 prompts of 4 tokens, 3 responses of 6 tokens to each, all in one bin."""
    return {
        "data": {"max_prompt_tokens": 4, "prompts_per_step": 2},
        "rollout": {"samples_per_prompt": 3, "max_response_tokens": 6, "dtype": "float32"},
        "update": {"micro_batch_tokens": 100, "prompts_per_mini_batch": 2},
        "policy": {
            "parameter_dtype": "float32",
            "compute_dtype": "float32",
            "lora": None,
            "checkpoints_activations": False,
        },
        **changes,
    }


def by_name(lowered: dict[str, Any], **shapes: Any) -> dict[Any, int]:
    held = parts(lowered, {role: model_shape(one, "") for role, one in shapes.items()})
    return {(each.role, each.part): each.bytes for each in held}


def test_a_bin_holds_whole_groups_for_as_long_as_its_budget_lasts():
    batch = batch_of(launch())
    assert (batch.prompts, batch.responses, batch.tokens) == (2, 6, 2 * 4 + 6 * 6)
    one = batch_of(launch(update={"micro_batch_tokens": 30, "prompts_per_mini_batch": 2}))
    assert (one.prompts, one.responses) == (1, 3)
    cut = batch_of(launch(update={"micro_batch_tokens": 17, "prompts_per_mini_batch": 2}))
    assert (cut.prompts, cut.responses) == (1, 2)
    least = batch_of(launch(update={"micro_batch_tokens": 1, "prompts_per_mini_batch": 2}))
    assert (least.prompts, least.responses) == (1, 1)


def test_a_layer_keeps_the_inputs_of_its_products_and_of_its_attention():
    tokens = 44 * (4 * 10 + 10 + 4 * 20)
    attention = 4 * 10 * 2 * 4 + 2 * 10 * 6 * (4 + 2 * 6)
    shape = model_shape(TINY, "")
    assert activation_values(shape, batch_of(launch())) == tokens + attention


def test_all_weights_cost_themselves_gradients_two_moments_and_the_samplers_copy():
    count = parameters(model_shape(TINY, "")).total
    held = by_name(launch(), model=TINY)
    assert held["policy", "weights"] == held["policy", "gradients"] == 4 * count
    assert held["policy", "optimizer"] == 8 * count
    assert held["sampler", "weights"] == 4 * count
    assert held["process", "process"] == PROCESS_BYTES
    assert ("policy", "cast weights") not in held


def test_the_cache_is_of_the_rows_that_are_decoded_at_once():
    # 6 rows of 10 tokens, keys and values of 5 numbers in 2 layers.
    assert by_name(launch(), model=TINY)["sampler", "keys and values"] == 6 * 10 * 2 * 2 * 5 * 4


def test_a_reference_is_a_copy_unless_adapters_can_be_turned_off():
    with_kl = launch(kl_loss={"estimator": "k3", "coefficient": 0.1})
    assert ("reference", "weights") in by_name(with_kl, model=TINY)
    lora = {"rank": 2, "alpha": 4.0, "target_modules": ["q_proj"], "excluded_modules": []}
    with_kl["policy"] = {**with_kl["policy"], "lora": lora}
    held = by_name(with_kl, model=TINY)
    assert ("reference", "weights") not in held
    assert held["policy", "gradients"] == 4 * 2 * 2 * (10 + 10)  # rank times inputs and outputs


def test_checkpointing_keeps_one_input_of_each_layer_and_one_layers_values():
    batch = batch_of(launch())
    one_layer = activation_values(model_shape(TINY, ""), batch)
    plain = launch()
    plain["policy"] = {**plain["policy"], "checkpoints_activations": True}
    kept = by_name(plain, model=TINY)["policy", "activations"]
    assert kept == 4 * (2 * batch.tokens * 10 + one_layer)


def test_critic_teachers_and_reward_model_are_counted_where_the_launch_has_them():
    policy = launch()["policy"]
    lowered = launch(
        critic={**policy},
        reward={"model": {"dtype": "float32"}},
        distillation={"teachers": [{"key": "a"}, {"key": "b"}]},
    )
    assert roles(lowered) == ("model", "critic", "reward_model", "teacher.a", "teacher.b")
    held = by_name(
        lowered,
        model=TINY,
        critic=TINY,
        reward_model=TINY,
        **{"teacher.a": TINY, "teacher.b": TINY},
    )
    assert {role for role, _ in held} == {"process", "sampler", "policy", *roles(lowered)[1:]}
    assert held["critic", "optimizer"] == held["policy", "optimizer"]
    assert ("teacher.a", "gradients") not in held


LORA = {"rank": 2, "alpha": 4.0, "target_modules": ["q_proj"], "excluded_modules": []}


def quantised(weights: str | None) -> dict[str, Any]:
    lowered = launch()
    lowered["policy"] |= {"lora": LORA, "quantization": "nf4"}
    lowered["rollout"] |= {"weights": weights}
    return lowered


def test_nf4_holds_linear_weights_in_half_a_byte_and_takes_one_back_at_a_time():
    counted = parameters(model_shape(TINY, ""))
    held = by_name(quantised(None), model=TINY)
    rest = counted.total - counted.linear
    assert held["policy", "weights"] == int(counted.linear * NF4_BYTES) + 4 * rest
    assert held["sampler", "weights"] == 4 * counted.total
    # The largest is 10 x 20: float32, its codes as numbers, and in the type of the product.
    assert held["policy", "a layer's weight taken back"] == 200 * (4 + 1 + 4)
    assert 0.5 < NF4_BYTES < 0.52


def test_sampling_over_nf4_holds_head_and_adapter_alone():
    held = by_name(quantised("nf4"), model=TINY)
    assert held["sampler", "weights"] == 4 * (1000 * 10 + 2 * 2 * (10 + 10))
    assert held["sampler", "a layer's weight taken back"] == 200 * (4 + 1 + 8)


def test_a_quantised_teacher_is_counted_as_one():
    lowered = launch(distillation={"teachers": [{"key": None, "quantization": "nf4"}]})
    held = by_name(lowered, model=TINY, teacher=TINY)
    assert held["teacher", "weights"] < held["policy", "weights"]
    assert ("teacher", "a layer's weight taken back") in held


def test_the_smallest_form_trains_a_critic_whole():
    """An adapter for it is what the pin cannot train."""
    lowered = launch(critic={**launch()["policy"]})
    answer = assess(lowered, {"model": TINY, "critic": TINY}, gpu="any", memory_bytes=GIB)
    whole = by_name(lowered, model=TINY, critic=TINY)
    small = {(each["role"], each["part"]): each["bytes"] for each in answer["nf4_lora"]["parts"]}
    assert small["critic", "weights"] == whole["critic", "weights"]
    assert small["policy", "optimizer"] < whole["policy", "optimizer"]


@pytest.mark.parametrize(
    ("config", "memory", "expected"),
    [
        (SMOLLM2, 16 * GIB, "fits"),
        (QWEN3_8B, 16 * GIB, "fits_with_nf4_lora"),
        (QWEN3_8B, 4 * GIB, "does_not_fit"),
    ],
)
def test_the_answer_is_by_how_much(config, memory, expected):
    answer = assess(launch(), {"model": config}, gpu="any", memory_bytes=memory)
    assert answer["answer"] == expected
    assert answer["free_bytes"] == memory - answer["peak_bytes"]
    assert answer["peak_bytes"] == sum(part["bytes"] for part in answer["parts"])
    assert answer["peak_bytes"] == max(answer["phases"].values())
    assert json.loads(json.dumps(answer)) == answer


@pytest.mark.parametrize("configs", [{}, {"model": {"model_type": "mixture"}}])
def test_nothing_is_promised_of_a_model_whose_sizes_are_unknown(configs):
    answer = assess(launch(), configs, gpu="any", memory_bytes=GIB)
    assert (answer["answer"], answer["missing"]) == ("unknown", ["model"])


def test_a_missing_teacher_leaves_it_open():
    lowered = launch(distillation={"teachers": [{"key": None}]})
    answer = assess(lowered, {"model": SMOLLM2}, gpu="any", memory_bytes=16 * GIB)
    assert (answer["answer"], answer["missing"]) == ("unknown", ["teacher"])


def of_cpu_builds() -> dict[str, dict[str, Any]]:
    """Records by name. On a CPU the libraries of a CUDA build take half a GB that a CPU build does not have."""
    paths = sorted(RESULTS.glob("records/cpu/smollm2-*/*/*.json"))
    found = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in paths}
    return {
        name: record
        for name, record in found.items()
        if record["environment"]["packages"]["torch"].endswith("+cpu")
    }


@pytest.mark.parametrize("measured", [pytest.param(v, id=k) for k, v in of_cpu_builds().items()])
def test_the_peak_is_within_15_percent_of_a_straight_runs(measured):
    """A resumed launch loads less at a time, and is not compared."""
    compiled = measured["recipe"]["compiled"]
    answer = assess(compiled, {"model": SMOLLM2}, gpu="cpu", memory_bytes=16 * GIB)
    straight = measured["launches"][0]["memory"]["peak_rss_bytes"]
    assert answer["peak_bytes"] == pytest.approx(straight, rel=0.15)
