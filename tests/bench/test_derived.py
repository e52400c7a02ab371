"""Small models out of a language model: the pinned bytes, the first layers unchanged, a head of the seed alone."""

import json
import shutil
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from miniverl.bench import derived
from miniverl.bench.fetch import check, fetch
from miniverl.bench.pin import DerivedPin, pin
from miniverl.bench.workload import parse, workload
from miniverl.compiler.upstream import quiet
from miniverl.engine.problem import Refused, WrongCall

pytestmark = pytest.mark.slow

HEAD = "score.weight"


def _derived(model: Path, folder: Path, *, layers: int = 1, seed: int = 1) -> Path:
    folder.mkdir()
    derived.make_reward_model(model, folder, layers=layers, head_seed=seed)
    return folder


@pytest.fixture
def model(tiny_inputs: Path) -> Path:
    return tiny_inputs / "model"


def test_the_pinned_reward_model_comes_out_of_the_pinned_language_model(tmp_path: Path) -> None:
    chosen = pin("smollm2-135m-reward")
    assert isinstance(chosen, DerivedPin)
    model = fetch([chosen.base], quiet)[chosen.base]
    assert chosen.head_seed is not None
    folder = _derived(model, tmp_path / "derived", layers=chosen.layers, seed=chosen.head_seed)
    assert derived.wrong_content(chosen, folder) == []
    other = _derived(model, tmp_path / "other", layers=chosen.layers, seed=chosen.head_seed + 1)
    assert [each.field for each in derived.wrong_content(chosen, other)] == ["model.safetensors"]


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


def test_the_pinned_short_model_comes_out_of_the_pinned_language_model(tmp_path: Path) -> None:
    chosen = pin("smollm2-135m-20-layers")
    assert isinstance(chosen, DerivedPin)
    derived.fill(chosen, tmp_path, quiet)
    assert derived.wrong_content(chosen, tmp_path) == []


def test_a_short_model_is_a_whole_language_model_of_the_first_layers(
    model: Path, tmp_path: Path
) -> None:
    shutil.copyfile(model / "config.json", model / "generation_config.json")  # it need not be read
    derived.shorten(model, tmp_path, layers=1)
    network, loading = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(loading[kind] for kind in ("missing_keys", "unexpected_keys"))
    whole = AutoModelForCausalLM.from_pretrained(model)
    assert (whole.config.num_hidden_layers, network.config.num_hidden_layers) == (2, 1)
    tokens_BT = torch.tensor([[1, 5, 14]])
    whole.model.layers = whole.model.layers[:1]
    assert torch.equal(network(tokens_BT).logits, whole(tokens_BT, use_cache=False).logits)


def test_a_damaged_model_is_refused_before_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = fetch(["smollm2-135m-instruct"], quiet)["smollm2-135m-instruct"]
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / base.name).symlink_to(base)
    monkeypatch.setenv("MINIVERL_CACHE", str(tmp_path))
    folder = fetch(["smollm2-135m-reward"], quiet)["smollm2-135m-reward"]
    assert check(["smollm2-135m-reward"]) == {"smollm2-135m-reward": folder}
    (folder / "config.json").write_text("{}")
    with pytest.raises(Refused, match=r"config\.json"):
        fetch(["smollm2-135m-reward"], quiet)


def test_a_reward_model_is_bound_where_one_is_wanted_and_nowhere_else() -> None:
    chosen = workload("smollm2-grpo-reward-model")
    plain = json.loads(json.dumps(asdict(chosen)))
    parse(plain, "a test")
    plain["bindings"] |= {"model": "smollm2-135m-reward", "reward_model": "smollm2-135m-20-layers"}
    with pytest.raises(WrongCall) as raised:
        parse(plain, "a test")
    assert [problem.field for problem in raised.value.problems] == [
        "workload.bindings.model",
        "workload.bindings.reward_model",
    ]
