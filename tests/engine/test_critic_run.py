"""Whole runs with a critic: when each model is trained, what is logged, and what others can load afterwards."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForTokenClassification

from miniverl.engine import loop, models
from miniverl.engine.algorithm import Advantage
from miniverl.engine.critic import check_critic, load_critic
from miniverl.engine.digest import weights_sha256
from miniverl.engine.events import Event, ModelLoaded, PhaseFinished
from miniverl.engine.export import export_critic
from miniverl.engine.inputs import Inputs
from miniverl.engine.problem import WrongCall
from miniverl.engine.recipe import Critic, Recipe

TOKENS = torch.tensor([[1, 14, 5, 2, 7]])


@pytest.fixture
def recipe(tiny_recipe: Recipe, tiny_critic: Critic) -> Recipe:
    """4 steps without validation; the policy is first trained in step 2."""
    return replace(
        tiny_recipe,
        critic=tiny_critic,
        advantage=Advantage(estimator="gae", divides_by_std=None, gamma=1.0, gae_lambda=0.9),
        learning_rate_schedule=replace(tiny_recipe.learning_rate_schedule, warmup_steps=2),
        data=replace(tiny_recipe.data, validation_sha256=None),
        validation=None,
        steps=replace(tiny_recipe.steps, num_steps=4, checkpoint_every=1, keep_checkpoints=None),
    )


@pytest.fixture
def inputs(tiny_model: Path, tiny_train: Path) -> Inputs:
    return Inputs(model=tiny_model, train=tiny_train, critic=tiny_model)


def _run(folder: Path, recipe: Recipe, inputs: Inputs, listen: Callable[[Event], None]) -> None:
    loop.run(recipe, inputs, folder, device="cpu", threads=1, resume=False, listen=listen)


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_the_critic_learns_in_every_step_and_the_policy_once_it_is_warm(
    recipe: Recipe, inputs: Inputs, tmp_path: Path
) -> None:
    heard: list[Event] = []
    _run(tmp_path, recipe, inputs, heard.append)
    phases = [(each.step, each.phase) for each in heard if isinstance(each, PhaseFinished)]
    before = ["rollout", "reward", "score_old", "score_reference", "score_values", "advantage"]
    assert [phase for step, phase in phases if step == 1] == [
        *before,
        "critic_update",
        "checkpoint",
    ]
    assert [phase for step, phase in phases if step == 2] == [
        *before,
        "critic_update",
        "update",
        "checkpoint",
    ]
    assert [each.role for each in heard if isinstance(each, ModelLoaded)] == [
        "policy",
        "critic",
        "reference",
    ]
    rows = _lines(tmp_path / "metrics.jsonl")
    # Each schedule warms up over two ticks of its own.
    assert [row["critic_learning_rate"] for row in rows] == [0.0, 0.025, 0.05, 0.05]
    assert [row.get("learning_rate") for row in rows] == [None, 0.0, 0.01, 0.02]
    assert all(row["critic_optimizer_steps"] == 2 for row in rows)
    checkpoints = sorted((tmp_path / "checkpoints").iterdir())
    states = [json.loads((path / "state.json").read_text()) for path in checkpoints]
    assert [state["critic_steps"] for state in states] == [1, 2, 3, 4]
    assert [state["policy_steps"] for state in states] == [0, 1, 2, 3]
    # A learning rate of 0 in its first step leaves each as it was.
    adapters = [load_file(path / "adapter.safetensors") for path in checkpoints]
    critics = [load_file(path / "critic.safetensors") for path in checkpoints]
    assert [_is_equal(adapters[0], each) for each in adapters] == [True, True, False, False]
    assert [_is_equal(critics[0], each) for each in critics] == [True, False, False, False]


def _is_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_returns_are_what_the_rewards_say_beyond_the_values(
    recipe: Recipe, inputs: Inputs, tmp_path: Path
) -> None:
    """With discount and lambda 1, the return of every token is the reward, whatever the critic says."""
    advantage = replace(recipe.advantage, gae_lambda=1.0)
    _run(tmp_path, replace(recipe, advantage=advantage), inputs, lambda event: None)
    rows = _lines(tmp_path / "trajectories.jsonl")
    assert len({value for row in rows for value in row["values"]}) > len(rows)
    for row in rows:
        assert row["returns"] == pytest.approx([row["reward"]] * len(row["values"]), abs=1e-5)


def test_a_recipe_whose_critic_is_not_bound_is_refused(
    recipe: Recipe, inputs: Inputs, tmp_path: Path
) -> None:
    with pytest.raises(WrongCall, match="no model is bound for it"):
        _run(tmp_path, recipe, replace(inputs, critic=None), lambda event: None)


def test_transformers_reads_a_whole_critic_and_a_run_begins_from_it(
    tiny_critic: Critic, tiny_model: Path, tmp_path: Path
) -> None:
    recipe = replace(tiny_critic, lora=None)
    critic = load_critic(recipe, tiny_model, seed=3, device="cpu")
    for parameter in critic.trained().values():
        parameter.data.mul_(1.25).add_(0.01)
    folder = export_critic(critic, recipe, tmp_path, tiny_model)
    theirs = AutoModelForTokenClassification.from_pretrained(folder, dtype=torch.float32)
    assert theirs.num_labels == 1
    torch.testing.assert_close(theirs.train()(TOKENS).logits, critic.network(TOKENS).logits)
    again = replace(recipe, weights_sha256=weights_sha256(folder))
    check_critic(again, folder, models.load_tokenizer(tiny_model))
    loaded = load_critic(again, folder, seed=4, device="cpu")
    assert _is_equal(dict(loaded.trained()), dict(critic.trained()))


def test_peft_reads_a_critics_adapter_and_its_head(
    tiny_critic: Critic, tiny_model: Path, tmp_path: Path
) -> None:
    critic = load_critic(tiny_critic, tiny_model, seed=3, device="cpu")
    generator = torch.Generator().manual_seed(4)
    for parameter in critic.trained().values():
        torch.nn.init.normal_(parameter, std=0.3, generator=generator)
    folder = export_critic(critic, tiny_critic, tmp_path, tiny_model)
    base = AutoModelForTokenClassification.from_pretrained(
        tiny_model, num_labels=1, dtype=torch.float32
    )
    theirs = PeftModel.from_pretrained(base, folder).eval()
    torch.testing.assert_close(theirs(TOKENS).logits, critic.network(TOKENS).logits)


def test_a_critic_that_is_there_already_is_left_alone(
    tiny_critic: Critic, tiny_model: Path, tmp_path: Path
) -> None:
    critic = load_critic(tiny_critic, tiny_model, seed=3, device="cpu")
    folder = export_critic(critic, tiny_critic, tmp_path, tiny_model)
    written = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    export_critic(critic, tiny_critic, tmp_path, tiny_model)
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == written
