"""A run that starts from an adapter trained before: peft's own files, and what is refused of them."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from miniverl.engine import recipe as recipes
from miniverl.engine.adapter import CONFIG, WEIGHTS, check_adapter
from miniverl.engine.digest import weights_sha256
from miniverl.engine.export import export
from miniverl.engine.models import load_policy, reference_of
from miniverl.engine.problem import WrongCall
from miniverl.engine.recipe import Recipe

TOKENS = torch.tensor([[1, 14, 5, 2, 7]])


@pytest.fixture(scope="module")
def theirs(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, torch.Tensor]:
    """An adapter that peft made and saved, nowhere zero, and the logits that peft computes with it."""
    folder = tmp_path_factory.mktemp("peft")
    base = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    adapted = get_peft_model(
        base, LoraConfig(r=2, lora_alpha=4, target_modules="all-linear", task_type="CAUSAL_LM")
    )
    torch.manual_seed(5)
    for name, each in adapted.named_parameters():
        if "lora_" in name:
            each.data.normal_(std=0.2)
    adapted.save_pretrained(folder)
    with torch.no_grad():
        return folder, adapted.eval()(TOKENS).logits


def _started(recipe: Recipe, model: Path, adapter: Path) -> Any:
    return load_policy(recipe.policy, model, adapter_seed=0, device="cpu", adapter=adapter)


def test_the_policy_starts_where_the_adapter_ended(
    tiny_model: Path, tiny_recipe: Recipe, theirs: tuple[Path, torch.Tensor], tmp_path: Path
) -> None:
    folder, logits = theirs
    assert tiny_recipe.policy.lora is not None
    check_adapter(tiny_recipe.policy.lora, weights_sha256(folder), folder)
    policy = _started(tiny_recipe, tiny_model, folder)
    with torch.no_grad():
        torch.testing.assert_close(policy.network(TOKENS).logits, logits)
    exported = export(policy, tiny_recipe.policy, tmp_path, tiny_model)
    assert weights_sha256(exported) == weights_sha256(folder)


def test_the_reference_is_the_model_without_the_adapter(
    tiny_model: Path, tiny_recipe: Recipe, theirs: tuple[Path, torch.Tensor]
) -> None:
    """As upstream, which takes the actor with its adapter off (trainer/ppo/v1/trainer_base.py:744)."""
    base = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    with reference_of(_started(tiny_recipe, tiny_model, theirs[0]))() as reference:
        assert torch.equal(reference.network(TOKENS).logits, base(TOKENS).logits)


Change = Callable[[Path], None]


def _config(**changes: Any) -> Change:
    def change(folder: Path) -> None:
        path = folder / CONFIG
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


def _text(text: str) -> Change:
    return lambda folder: (folder / CONFIG).write_text(text) and None


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (_config(r=3), "its rank is 3, and the launch says 2"),
        (_config(lora_alpha=8), "its lora_alpha is 8, and the launch says 4"),
        (_config(lora_alpha="4"), "its lora_alpha is '4'"),
        (_config(lora_dropout=0.05), "its lora_dropout is 0.05, which computes something else"),
        (_config(use_dora=True), "its use_dora is True, which computes something else"),
        (_config(peft_type="IA3"), "only LORA is read"),
        (_text("{"), "is not JSON"),
        (_text("[]"), "holds no object"),
        (lambda folder: (folder / CONFIG).unlink(), "no adapter_config.json"),
        (
            lambda folder: (folder / WEIGHTS).rename(folder / "adapter_model.bin") and None,
            "no adapter_model.safetensors",
        ),
    ],
)
def test_another_adapter_than_the_recipes_is_told_before_weights_are_loaded(
    tiny_recipe: Recipe,
    theirs: tuple[Path, torch.Tensor],
    tmp_path: Path,
    change: Change,
    told: str,
) -> None:
    folder = shutil.copytree(theirs[0], tmp_path / "adapter")
    sha256 = weights_sha256(folder)
    change(folder)
    assert tiny_recipe.policy.lora is not None
    with pytest.raises(WrongCall, match=told):
        check_adapter(tiny_recipe.policy.lora, sha256, folder)


def test_tensors_of_other_layers_are_all_told(
    tiny_model: Path, tiny_recipe: Recipe, theirs: tuple[Path, torch.Tensor], tmp_path: Path
) -> None:
    folder = shutil.copytree(theirs[0], tmp_path / "adapter")
    tensors = load_file(folder / WEIGHTS)
    first, second, third, *_ = sorted(tensors)
    tensors["base_model.model.lm_head.lora_A.weight"] = tensors.pop(first)
    tensors[second] = tensors[second][:1]
    tensors[third] = torch.full_like(tensors[third], torch.nan)
    save_file(tensors, folder / WEIGHTS)
    with pytest.raises(WrongCall) as raised:
        _started(tiny_recipe, tiny_model, folder)
    told = [problem.reason for problem in raised.value.problems]
    assert len(told) == 4
    for reason in (
        "lm_head",
        f"lacks {first}",
        f"{second} has the shape",
        f"{third} is not finite",
    ):
        assert any(reason in each for each in told), reason


def test_a_recipe_without_a_first_adapter_keeps_its_digest_and_one_with_it_has_an_input_more(
    tiny_recipe: Recipe,
) -> None:
    assert "adapter_sha256" not in recipes.to_dict(tiny_recipe)["policy"]
    assert "adapter" not in tiny_recipe.inputs
    started = replace(tiny_recipe, policy=replace(tiny_recipe.policy, adapter_sha256="a" * 64))
    assert recipes.loads(recipes.dumps(started), "a test") == started
    assert started.inputs[:2] == ("model", "adapter")
    whole = replace(started, policy=replace(started.policy, lora=None))
    with pytest.raises(WrongCall, match="starts from no adapter"):
        recipes.loads(recipes.dumps(whole), "a test")
