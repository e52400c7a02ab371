"""Counts from a config alone, against the published models and against the networks that transformers builds."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig, LlamaConfig, Qwen2Config, Qwen3Config

from miniverl.engine import footprint
from miniverl.engine.models import load_policy
from miniverl.engine.problem import WrongCall
from miniverl.engine.recipe import Lora, Recipe

# HuggingFaceTB/SmolLM2-135M-Instruct
SMOLLM2: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 49152,
    "hidden_size": 576,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "intermediate_size": 1536,
    "tie_word_embeddings": True,
}
# Qwen/Qwen3-0.6B at c1899de289a04d12100db370d81485cdf75e47ca
QWEN3: dict[str, Any] = {
    "model_type": "qwen3",
    "vocab_size": 151936,
    "hidden_size": 1024,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 3072,
    "tie_word_embeddings": True,
}
ALL_LINEAR = Lora(rank=16, alpha=32.0, target_modules=("all-linear",), excluded_modules=())


def _shape(config: dict[str, Any], **changes: Any) -> footprint.ModelShape:
    return footprint.model_shape(config | changes, "test")


def test_the_parameters_of_smollm2_are_the_published_ones() -> None:
    counted = footprint.parameters(_shape(SMOLLM2))
    assert counted.total == 134_515_008
    assert counted.embedding == 49152 * 576
    assert counted.head == 0
    assert counted.norm == 61 * 576


def test_the_parameters_of_qwen3_fill_its_published_file() -> None:
    """The file holds the tied head once more: 1,503,300,328 bytes, of which the header is 35,560."""
    counted = footprint.parameters(_shape(QWEN3))
    assert counted.total == 596_049_920
    untied = footprint.weight_bytes(_shape(QWEN3, tie_word_embeddings=False), "bfloat16")
    assert untied == 1_503_300_328 - 35_560
    assert footprint.cache_bytes_per_token(_shape(QWEN3), "bfloat16") == 112 * 1024


@pytest.mark.parametrize("config_class", [LlamaConfig, Qwen2Config, Qwen3Config])
@pytest.mark.parametrize("tied", [True, False])
def test_counts_are_those_of_the_network(
    make_model: Callable[..., Path], tiny_recipe: Recipe, config_class: type, tied: bool
) -> None:
    folder = make_model(config_class, tie_word_embeddings=tied)
    shape = footprint.model_shape(AutoConfig.from_pretrained(folder).to_dict(), str(folder))
    assert tiny_recipe.policy.lora is not None
    lora = replace(tiny_recipe.policy.lora, excluded_modules=("1.mlp.up_proj", "k_proj"))
    policy = load_policy(
        replace(tiny_recipe.policy, lora=lora), folder, adapter_seed=0, device="cpu"
    )
    assert footprint.parameters(shape).total == policy.num_parameters()
    trained = sum(each.numel() for each in policy.trained().values())
    assert footprint.adapter_parameters(shape, lora) == trained
    assert footprint.trained_parameters(shape, None) == policy.num_parameters()


def test_an_adapter_of_rank_16_on_smollm2() -> None:
    # per layer: q and o 576+576, k and v 576+192, gate, up and down 576+1536
    per_layer = 16 * (2 * 1152 + 2 * 768 + 3 * 2112)
    assert footprint.adapter_parameters(_shape(SMOLLM2), ALL_LINEAR) == 30 * per_layer == 4_884_480
    assert footprint.optimizer_bytes(4_884_480, "float32") == 4_884_480 * 8


def test_a_decode_step_reads_every_weight_once_and_the_cache_of_each_row() -> None:
    shape = _shape(SMOLLM2)
    weights = 134_515_008 * 4  # the embedding as the tied head
    cache = 2 * 30 * 192 * 4
    assert footprint.cache_bytes_per_token(shape, "float32") == cache
    read = footprint.decode_bytes_per_step(shape, "float32", rows=16, mean_tokens=70.0)
    assert read == weights + 16 * 576 * 4 + 16 * 70 * cache


def test_operations_of_a_decoded_token() -> None:
    shape = _shape(SMOLLM2)
    linear = 2 * 30 * (2 * 576 * 576 + 2 * 576 * 192 + 3 * 576 * 1536)
    head = 2 * 49152 * 576
    assert footprint.decode_flops_per_token(shape, mean_tokens=0.0) == linear + head
    attention = 4 * 30 * 576 * 70
    assert footprint.decode_flops_per_token(shape, mean_tokens=70.0) == linear + head + attention


def test_training_all_weights_costs_three_forwards_and_an_adapter_two() -> None:
    shape = _shape(SMOLLM2)
    linear = footprint.body_flops_per_token(shape, mean_tokens=0.0)
    adapter = 2 * 4_884_480

    def cost(lora: Lora | None, checkpoints: bool) -> float:
        return footprint.update_flops_per_token(
            shape, lora, checkpoints_activations=checkpoints, mean_tokens=0.0
        )

    assert cost(None, False) == 3 * linear
    assert cost(None, True) == 4 * linear
    assert cost(ALL_LINEAR, False) == 2 * linear + 3 * adapter
    assert cost(ALL_LINEAR, True) == 3 * linear + 4 * adapter


def test_everything_that_a_config_lacks_is_named_at_once() -> None:
    with pytest.raises(WrongCall) as caught:
        footprint.model_shape({"model_type": "gpt2", "vocab_size": 10, "hidden_size": 0}, "test")
    assert [problem.field for problem in caught.value.problems] == [
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "intermediate_size",
        "model_type",
    ]
