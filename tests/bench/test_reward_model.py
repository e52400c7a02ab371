"""A reward model out of a language model: the pinned bytes, the first layers unchanged, a head of the seed alone."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification

from miniverl.bench import reward_model
from miniverl.bench.fetch import fetch
from miniverl.bench.pin import RewardModelPin, pin
from miniverl.compiler.upstream import quiet

HEAD = "score.weight"


def _derived(model: Path, folder: Path, *, layers: int = 1, seed: int = 1) -> Path:
    folder.mkdir()
    reward_model.derive(model, folder, layers=layers, seed=seed)
    return folder


@pytest.fixture
def model(tiny_inputs: Path) -> Path:
    return tiny_inputs / "model"


def test_the_pinned_reward_model_comes_out_of_the_pinned_language_model(tmp_path: Path) -> None:
    chosen = pin("smollm2-135m-reward")
    assert isinstance(chosen, RewardModelPin)
    model = fetch([chosen.base], quiet)[chosen.base]
    folder = _derived(model, tmp_path / "derived", layers=chosen.layers, seed=chosen.seed)
    assert reward_model.wrong_content(chosen, folder) == []
    other = _derived(model, tmp_path / "other", layers=chosen.layers, seed=chosen.seed + 1)
    assert [each.field for each in reward_model.wrong_content(chosen, other)] == [
        "model.safetensors"
    ]


def test_the_first_layers_are_those_of_the_language_model(model: Path, tmp_path: Path) -> None:
    whole = load_file(model / "model.safetensors")
    first = load_file(_derived(model, tmp_path / "derived") / "model.safetensors")
    later = {name for name in whole if name.startswith("model.layers.1.")}
    assert later
    assert first.keys() - {HEAD} == whole.keys() - later
    assert all(torch.equal(first[name], whole[name]) for name in first.keys() - {HEAD})


def test_the_head_depends_on_the_seed_alone(model: Path, tmp_path: Path) -> None:
    heads = [
        load_file(_derived(model, tmp_path / name, seed=seed) / "model.safetensors")[HEAD]
        for name, seed in (("one", 1), ("again", 1), ("two", 2))
    ]
    assert torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[0], heads[2])
    limit = json.loads((model / "config.json").read_text())["initializer_range"] * 3**0.5
    assert float(heads[0].abs().max()) <= limit


def test_transformers_reads_a_whole_classifier_with_one_output(model: Path, tmp_path: Path) -> None:
    network, loading = AutoModelForSequenceClassification.from_pretrained(
        _derived(model, tmp_path / "derived"), output_loading_info=True
    )
    assert not any(loading[kind] for kind in ("missing_keys", "unexpected_keys"))
    assert (network.num_labels, network.config.num_hidden_layers) == (1, 1)
