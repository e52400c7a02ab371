"""Models of an exact architecture with seeded weights: names and sizes as transformers has them, bytes of the seed."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from miniverl.bench import seeded_weights
from miniverl.bench.pin import ShapePin, pin, pins
from miniverl.compiler.upstream import quiet
from miniverl.engine.footprint import model_shape, parameters

SHAPES = [name for name, chosen in pins().items() if isinstance(chosen, ShapePin)]
SMALL = {
    "attention_bias": False,
    "dtype": "float32",
    "head_dim": 8,
    "hidden_size": 16,
    "initializer_range": 0.02,
    "intermediate_size": 24,
    "mlp_bias": False,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "tie_word_embeddings": False,
    "vocab_size": 50,
}
FAMILIES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}


def written(folder: Path, config: dict[str, Any], seed: int = 1) -> dict[str, torch.Tensor]:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    seeded_weights.write_weights(folder / "model.safetensors", config, seed, quiet, "a test")
    return load_file(folder / "model.safetensors")


@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_finds_every_tensor_and_no_other(family: str, tmp_path: Path) -> None:
    config = {**SMALL, "model_type": family, "architectures": [FAMILIES[family]]}
    if family == "qwen2":
        config["head_dim"] = 4  # it has no field for it: hidden over heads
    written(tmp_path, config)
    _, loading = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)

    assert not any(loading[kind] for kind in ("missing_keys", "unexpected_keys"))
    assert not loading["mismatched_keys"]


@pytest.mark.parametrize("name", SHAPES)
def test_a_pinned_shape_is_of_a_config_that_transformers_reads_and_of_its_tensors(
    name: str, tmp_path: Path
) -> None:
    chosen = pin(name)
    assert isinstance(chosen, ShapePin)
    (tmp_path / "config.json").write_text(json.dumps(dict(chosen.config)))
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(tmp_path))
    expected = {key: tuple(value.shape) for key, value in model.state_dict().items()}
    del expected["lm_head.weight"]  # it is the embedding

    assert seeded_weights.tensor_sizes(model_shape(chosen.config, name)) == expected


def test_the_qwen3_shapes_have_as_many_parameters_as_the_models() -> None:
    counted = {
        name: parameters(model_shape(chosen.config, name)).total
        for name, chosen in pins().items()
        if isinstance(chosen, ShapePin)
    }
    assert counted["qwen3-0.6b-shape"] == 596_049_920
    assert counted["qwen3-1.7b-shape"] == 1_720_574_976


def test_weights_are_a_function_of_the_seed_and_the_tensors_name(tmp_path: Path) -> None:
    config = {**SMALL, "model_type": "llama"}
    one, again = written(tmp_path / "1", config), written(tmp_path / "2", config)
    other = written(tmp_path / "3", config, seed=2)
    name = "model.layers.0.mlp.up_proj.weight"

    assert all(torch.equal(one[each], again[each]) for each in one)
    assert not torch.equal(one[name], other[name])
    assert not torch.equal(one[name], one["model.layers.1.mlp.up_proj.weight"])
    assert float(one[name].abs().max()) <= 0.02 * 3**0.5
    assert float(one[name].std()) == pytest.approx(0.02, rel=0.1)
    assert bool((one["model.norm.weight"] == 1).all())


def test_bfloat16_is_rounded_as_torch_rounds_it() -> None:
    values = np.random.RandomState(1).standard_normal(1000).astype(np.float32)
    ours = torch.frombuffer(bytearray(seeded_weights._bfloat16(values)), dtype=torch.bfloat16)

    assert torch.equal(ours, torch.from_numpy(values).to(torch.bfloat16))
