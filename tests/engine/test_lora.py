"""Adapters: what they compute, which layers get one, and that real peft reads what we export."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from transformers import AutoModelForCausalLM

from miniverl.engine import lora, seeds
from miniverl.engine.export import export
from miniverl.engine.models import Model, load_policy
from miniverl.engine.problem import Refused
from miniverl.engine.recipe import Lora, Recipe

TOKENS = torch.tensor([[1, 14, 5, 2, 7], [1, 15, 9, 2, 3]])


def _layer(rank: int, alpha: float) -> lora.LoraLinear:
    base = nn.Linear(2, 2, bias=False)
    base.weight.data = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    recipe = Lora(rank=rank, alpha=alpha, target_modules=("all-linear",), excluded_modules=())
    return lora.LoraLinear(base, recipe, seeds.generator(0, "test"), base.weight)


def _adapted(
    folder: Path, recipe: Recipe, targets: tuple[str, ...], excluded: tuple[str, ...]
) -> set[str]:
    assert recipe.policy.lora is not None
    changed = replace(recipe.policy.lora, target_modules=targets, excluded_modules=excluded)
    policy = load_policy(replace(recipe.policy, lora=changed), folder, adapter_seed=0, device="cpu")
    return set(lora.adapters(policy.network))


def test_an_adapter_adds_alpha_over_rank_times_its_product() -> None:
    layer = _layer(rank=1, alpha=3.0)
    layer.lora_A.data = torch.tensor([[1.0, -1.0]])
    layer.lora_B.data = torch.tensor([[2.0], [0.5]])
    # x = [5, 3]: W x = [11, 27], A x = [2], B A x = [4, 1], times 3 / 1
    expected = torch.tensor([[11.0 + 12.0, 27.0 + 3.0]])
    assert torch.equal(layer(torch.tensor([[5.0, 3.0]])), expected)
    assert torch.equal(layer(torch.tensor([[[5.0, 3.0]]])), expected[None])
    merged = torch.empty(2, 2)
    lora.write_effective_weight(layer, merged)
    assert torch.equal(merged, torch.tensor([[1.0 + 6.0, 2.0 - 6.0], [3.0 + 1.5, 4.0 - 1.5]]))


@pytest.mark.parametrize("has_bias", [True, False])
def test_gradients_are_those_of_the_formula(has_bias: bool) -> None:
    generator = torch.Generator().manual_seed(2)
    base = nn.Linear(6, 5, bias=has_bias, dtype=torch.float64).requires_grad_(False)
    recipe = Lora(rank=2, alpha=3.0, target_modules=("all-linear",), excluded_modules=())
    layer = lora.LoraLinear(base, recipe, generator, base.weight)
    layer.lora_B.data.normal_(generator=generator)
    inputs_SI = torch.randn(4, 6, dtype=torch.float64, generator=generator, requires_grad=True)
    plain_SO = base(inputs_SI) + layer.scale * (inputs_SI @ layer.lora_A.T @ layer.lora_B.T)
    torch.testing.assert_close(layer(inputs_SI), plain_SO)
    of = (inputs_SI, layer.lora_A, layer.lora_B)
    results = [
        torch.autograd.grad(outputs.square().sum(), of) for outputs in (layer(inputs_SI), plain_SO)
    ]
    for ours, plain in zip(*results, strict=True):
        torch.testing.assert_close(ours, plain)


def test_a_new_adapter_changes_nothing_and_is_named_by_its_layer(
    tiny_model: Path, tiny_recipe: Recipe
) -> None:
    first, second, other = (
        load_policy(tiny_recipe.policy, tiny_model, adapter_seed=seed, device="cpu")
        for seed in (3, 3, 4)
    )
    names = list(first.trained())
    for name in names:
        assert torch.equal(first.trained()[name], second.trained()[name])
        if name.endswith("lora_B"):
            assert not first.trained()[name].any()
        else:
            bound = first.trained()[name].shape[1] ** -0.5
            assert first.trained()[name].abs().max() <= bound
            assert not torch.equal(first.trained()[name], other.trained()[name])
    downs = [name for name in names if name.endswith("q_proj.lora_A")]
    assert len(downs) == 2
    assert not torch.equal(*(first.trained()[name] for name in downs))


def test_a_disabled_adapter_leaves_the_base(tiny_policy: Model) -> None:
    adapted_BTV = tiny_policy.network(TOKENS).logits
    with lora.disabled(tiny_policy.network):
        base_BTV = tiny_policy.network(TOKENS).logits
    assert not torch.equal(base_BTV, adapted_BTV)
    assert torch.equal(tiny_policy.network(TOKENS).logits, adapted_BTV)


def test_all_linear_is_every_linear_layer_but_the_head(
    tiny_model: Path, tiny_recipe: Recipe
) -> None:
    adapted = _adapted(tiny_model, tiny_recipe, ("all-linear",), ())
    leaves = {name.rpartition(".")[2] for name in adapted}
    assert leaves == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    assert len(adapted) == 2 * 7


def test_layers_are_chosen_by_the_end_of_their_name(tiny_model: Path, tiny_recipe: Recipe) -> None:
    chosen = _adapted(tiny_model, tiny_recipe, ("q_proj", "mlp.up_proj"), ("1.self_attn.q_proj",))
    assert chosen == {
        "model.layers.0.self_attn.q_proj",
        "model.layers.0.mlp.up_proj",
        "model.layers.1.mlp.up_proj",
    }


def test_every_name_without_a_layer_is_refused(tiny_model: Path, tiny_recipe: Recipe) -> None:
    with pytest.raises(Refused) as caught:
        _adapted(tiny_model, tiny_recipe, ("q_proj", "qkv", "proj"), ("lm_head",))
    assert [problem.value for problem in caught.value.problems] == ["qkv", "proj", "lm_head"]


def test_an_adapter_on_no_layer_is_refused(tiny_model: Path, tiny_recipe: Recipe) -> None:
    with pytest.raises(Refused, match="nothing would be trained"):
        _adapted(tiny_model, tiny_recipe, ("q_proj",), ("q_proj",))


@pytest.mark.parametrize("targets", [("all-linear",), ("0.self_attn.q_proj", "down_proj")])
def test_peft_computes_the_same_from_what_we_export(
    tiny_model: Path, tiny_recipe: Recipe, tmp_path: Path, targets: tuple[str, ...]
) -> None:
    from peft import PeftModel  # six seconds, in this test only

    assert tiny_recipe.policy.lora is not None
    recipe = replace(
        tiny_recipe.policy, lora=replace(tiny_recipe.policy.lora, target_modules=targets)
    )
    policy = load_policy(recipe, tiny_model, adapter_seed=3, device="cpu")
    for layer in lora.adapters(policy.network).values():
        nn.init.normal_(layer.lora_B, std=0.3, generator=torch.Generator().manual_seed(4))
    folder = export(policy, recipe, tmp_path, tiny_model)
    base = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    before_BTV = base(TOKENS).logits
    loaded = PeftModel.from_pretrained(base, folder)
    theirs_BTV = loaded(TOKENS).logits
    torch.testing.assert_close(theirs_BTV, policy.network(TOKENS).logits, atol=1e-5, rtol=1e-5)
    assert (theirs_BTV - before_BTV).abs().max() > 0.1
    assert set(load_file(folder / "adapter_model.safetensors")) == {
        f"base_model.model.{name}.{part}.weight"
        for name in lora.adapters(policy.network)
        for part in ("lora_A", "lora_B")
    }
    config = json.loads((folder / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"]) == (2, 4.0)
