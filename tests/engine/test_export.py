"""A run over all weights leaves a folder that transformers reads, and nothing of the cache's."""

from dataclasses import replace
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from miniverl.engine.export import export
from miniverl.engine.models import load_policy
from miniverl.engine.recipe import Recipe

TOKENS = torch.tensor([[1, 14, 5, 2, 7]])


def test_transformers_computes_the_same_from_an_exported_model(
    tiny_model: Path, tiny_recipe: Recipe, tmp_path: Path
) -> None:
    recipe = replace(tiny_recipe.policy, lora=None)
    policy = load_policy(recipe, tiny_model, adapter_seed=0, device="cpu")
    for parameter in policy.trained().values():
        parameter.data.mul_(1.25)
    folder = export(policy, recipe, tmp_path, tiny_model)
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    torch.testing.assert_close(theirs(TOKENS).logits, policy.network(TOKENS).logits)


def test_what_the_cache_notes_about_its_copy_is_not_exported(
    tiny_model: Path, tiny_recipe: Recipe, tmp_path: Path
) -> None:
    source = tmp_path / "cached"
    source.mkdir()
    for file in tiny_model.iterdir():
        (source / file.name).write_bytes(file.read_bytes())
    (source / "manifest.json").write_text('{"mtime": 1}\n', "utf-8")
    recipe = replace(tiny_recipe.policy, lora=None)
    policy = load_policy(recipe, source, adapter_seed=0, device="cpu")
    folder = export(policy, recipe, tmp_path / "run", source)
    assert (folder / "config.json").exists()
    assert not (folder / "manifest.json").exists()
