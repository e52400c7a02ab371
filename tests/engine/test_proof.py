"""What was exported is proven against the engine's own models, whatever a run held its weights in."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from miniverl.engine import proof
from miniverl.engine.critic import load_critic
from miniverl.engine.export import export, export_critic, export_merged
from miniverl.engine.models import Model, load_policy
from miniverl.engine.quantised import Kept
from miniverl.engine.recipe import Critic, Policy, Recipe

SEQUENCES = [[1, 14, 5, 2, 7], [3, 9]]


def checkpoint_of(model: Model, file: Path) -> None:
    """What was trained, moved far from its start, as a checkpoint holds it."""
    generator = torch.Generator().manual_seed(0)
    for parameter in model.trained().values():
        parameter.data.add_(torch.randn(parameter.shape, generator=generator), alpha=0.2)
    file.parent.mkdir(exist_ok=True)
    save_file({name: each.detach() for name, each in model.trained().items()}, file)


@pytest.fixture
def quantised(tiny_model: Path, tiny_recipe: Recipe, tmp_path: Path) -> tuple[Policy, Model, Path]:
    recipe = replace(tiny_recipe.policy, quantization="nf4")
    kept = Kept(folder=None, tell=lambda _: None)
    policy = load_policy(recipe, tiny_model, adapter_seed=0, device="cpu", kept=kept)
    checkpoint_of(policy, tmp_path / "step-000001" / "adapter.safetensors")
    return recipe, policy, tmp_path / "step-000001"


def test_an_adapter_is_proven_over_whole_weights_and_how_far_those_move_it_is_told(
    quantised: tuple[Policy, Model, Path], tiny_model: Path, tmp_path: Path
) -> None:
    recipe, policy, checkpoint = quantised
    adapter = export(policy, recipe, tmp_path, tiny_model)
    told = proof.compare(recipe, tiny_model, checkpoint, adapter, SEQUENCES)
    assert told["is_same"]
    assert told["positions"] == 7
    assert 1e-3 < told["held_difference"] < told["change"]


def test_merged_weights_compute_what_the_run_computed_over_its_quantised_ones(
    quantised: tuple[Policy, Model, Path], tiny_model: Path, tmp_path: Path
) -> None:
    recipe, policy, checkpoint = quantised
    export_merged(policy, tmp_path / "model", tiny_model)
    told = proof.compare(recipe, tiny_model, checkpoint, tmp_path / "model", SEQUENCES)
    assert told["is_same"]
    assert told["held_difference"] == 0
    names = load_file(tiny_model / "model.safetensors").keys()
    assert load_file(tmp_path / "model" / "model.safetensors").keys() == names
    assert (tmp_path / "model" / "tokenizer.json").exists()


def test_a_critic_is_proven_by_its_values(
    tiny_model: Path, tiny_critic: Critic, tmp_path: Path
) -> None:
    recipe = replace(tiny_critic, lora=None)
    critic = load_critic(recipe, tiny_model, seed=1, device="cpu")
    checkpoint_of(critic, tmp_path / "step-000001" / "critic.safetensors")
    folder = export_critic(critic, recipe, tmp_path, tiny_model)
    given = (recipe, tiny_model, tmp_path / "step-000001", folder, SEQUENCES)
    assert proof.compare_critic(*given)["is_same"]
    weights = folder / "model.safetensors"
    save_file(load_file(weights) | {"score.bias": torch.tensor([1.5])}, weights)
    told = proof.compare_critic(*given)
    assert not told["is_same"]
    assert told["max_difference"] > 0.5
