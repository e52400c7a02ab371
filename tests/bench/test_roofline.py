"""Bytes, operations and shares of phases, counted by hand for a model whose sizes are round."""

from dataclasses import asdict
from typing import Any

import pytest

from miniverl.bench.roofline import phase_work, roofline
from miniverl.engine.footprint import ModelShape

# 10 x 10 everywhere: a layer has 7 matrices of 100 weights; the embedding of 100 words has 1000 and is the head.
SHAPE = ModelShape(
    vocabulary=100,
    hidden=10,
    num_layers=1,
    num_query_heads=1,
    num_kv_heads=1,
    head_size=10,
    mlp=10,
    has_tied_head=True,
    has_query_key_value_bias=False,
    has_output_bias=False,
    has_mlp_bias=False,
    has_query_key_norm=False,
)
WEIGHTS = 4 * (700 + 1000 + 3 * 10)  # bytes; three norms
LORA = {"rank": 1, "alpha": 2.0, "target_modules": ["q_proj"], "excluded_modules": []}
COMPILED: dict[str, Any] = {
    "data": {"prompts_per_step": 2},
    "policy": {
        "compute_dtype": "float32",
        "parameter_dtype": "float32",
        "checkpoints_activations": False,
        "lora": None,
    },
    "rollout": {"dtype": "float32"},
    "update": {"epochs": 1, "prompts_per_mini_batch": 1},
}
# One prompt of 2 tokens (3 attended), one response of 3 (3 + 4 + 5).
WORK = {
    "prompt_ids": [0],
    "prompt_tokens": 2,
    "prompt_attended_tokens": 3,
    "response_tokens": 3,
    "response_attended_tokens": 12,
    "longest_response": 3,
}
MACHINE = {"memory_bytes_per_second": 1e5, "matmul_flops_per_second": {"float32": 1e6}}
LINEAR, HEAD, ATTENTION = (
    2 * 700,
    2 * 1000,
    4 * 10,
)  # operations of a token, a position, an attended token


def step(number: int = 2, **phases: float) -> dict[str, Any]:
    return {
        "step": number,
        "is_finished": True,
        "is_warmup": False,
        "work": WORK,
        "phases": {
            name: {"seconds": s, "tokens": 3, "at_seconds": 1.0} for name, s in phases.items()
        },
    }


def test_decoding_reads_the_weights_once_a_token_and_every_cached_token() -> None:
    work = phase_work(step(rollout=1.0), COMPILED, {"policy": SHAPE})["rollout"]

    cache = 2 * 10 * 4 * 12  # keys and values of one layer
    assert work.bytes == WEIGHTS * (1 + 3) + cache
    assert work.flops == 5 * LINEAR + 15 * ATTENTION + (3 + 1) * HEAD


def test_scoring_reads_the_weights_once_a_physical_batch() -> None:
    scored = step(rollout=1.0, score_old=1.0)
    work = phase_work(scored, COMPILED, {"policy": SHAPE})["score_old"]
    assert work.bytes == WEIGHTS
    assert work.flops == 5 * LINEAR + 15 * ATTENTION + 3 * HEAD

    scored["phases"]["score_old"]["batches"] = 4
    assert phase_work(scored, COMPILED, {"policy": SHAPE})["score_old"].bytes == 4 * WEIGHTS


def test_an_update_of_all_weights_takes_three_forwards_and_moves_gradients_and_moments() -> None:
    work = phase_work(step(rollout=1.0, update=1.0), COMPILED, {"policy": SHAPE})["update"]

    assert work.flops == 3 * (5 * LINEAR + 15 * ATTENTION + 3 * HEAD)
    # Two mini-batches: weights forward and backward; gradients and weights twice each, both moments twice.
    assert work.bytes == 2 * (2 * WEIGHTS + (4 + 4) * WEIGHTS)


def test_an_adapter_needs_no_gradient_of_the_frozen_weights() -> None:
    compiled = {**COMPILED, "policy": {**COMPILED["policy"], "lora": LORA}}
    work = phase_work(step(rollout=1.0, update=1.0), compiled, {"policy": SHAPE})["update"]

    adapter = 2 * (10 + 10)
    assert work.flops == 5 * (2 * LINEAR + 3 * adapter) + 3 * 15 * ATTENTION + 2 * 3 * HEAD


def test_a_filter_that_sampled_more_than_it_kept_leaves_nothing_to_count_with() -> None:
    filtered = step(rollout=1.0)
    filtered["phases"]["rollout"]["tokens"] = 6

    assert phase_work(filtered, COMPILED, {"policy": SHAPE}) == {}


def test_a_share_is_the_longer_of_two_times_over_the_time_taken() -> None:
    steps = [step(number, rollout=seconds) for number, seconds in ((2, 1.0), (3, 2.0), (4, 4.0))]
    record = {
        "recipe": {"compiled": COMPILED},
        "launches": [{"role": "straight", "steps": steps}],
        "roofline": {"machine": MACHINE, "shapes": {"policy": asdict(SHAPE)}},
    }
    (phase,) = roofline(record)["roofline"]["phases"].values()

    read = (4 * WEIGHTS + 960) / 1e5
    computed = (5 * LINEAR + 15 * ATTENTION + 4 * HEAD) / 1e6
    assert read > computed
    assert phase["bound"] == "memory"
    assert phase["least_seconds"] == pytest.approx(read, rel=1e-5)
    assert phase["seconds"] == 2.0
    assert phase["share"] == pytest.approx(read / 2.0, rel=1e-5)


def test_a_type_whose_peak_was_not_measured_has_no_share() -> None:
    half = {**COMPILED, "rollout": {"dtype": "float16"}}
    record = {
        "recipe": {"compiled": half},
        "launches": [{"role": "straight", "steps": [step(rollout=1.0)]}],
        "roofline": {"machine": MACHINE, "shapes": {"policy": asdict(SHAPE)}},
    }

    assert roofline(record) == {"roofline": {"phases": {}}}
    del record["roofline"]
    assert roofline(record) == {}


def test_quantised_weights_are_read_as_they_are_held() -> None:
    quantised = {
        **COMPILED,
        "policy": {**COMPILED["policy"], "lora": LORA, "quantization": "nf4"},
    }
    phases = step(rollout=1.0, score_old=1.0)
    found = phase_work(phases, quantised, {"policy": SHAPE})
    # 700 linear weights: half a byte, a byte for 64 of them and 4 for 64 x 256.
    assert found["score_old"].bytes == int(700 * (0.5 + 1 / 64 + 1 / 4096)) + 4 * 1030
    plain = phase_work(phases, COMPILED, {"policy": SHAPE})
    assert found["rollout"].bytes == plain["rollout"].bytes  # over a copy
    beside = {**quantised, "rollout": {"dtype": "float32", "weights": "nf4"}}
    copied = phase_work(phases, beside, {"policy": SHAPE})["rollout"].bytes
    assert found["rollout"].bytes - copied == 4 * (WEIGHTS - found["score_old"].bytes)
