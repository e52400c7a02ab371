"""What a recipe wants and is not bound is told before anything is read, all of it at once."""

from dataclasses import replace
from pathlib import Path

import pytest

from miniverl.engine.algorithm import RewardFunction
from miniverl.engine.inputs import Inputs, load_inputs
from miniverl.engine.problem import WrongCall
from miniverl.engine.recipe import Critic, Distillation, Recipe, RewardModel, Teacher


@pytest.fixture
def recipe(tiny_recipe: Recipe, tiny_critic: Critic) -> Recipe:
    """With a critic, held-out data, and two teachers."""
    sha256 = tiny_recipe.policy.weights_sha256
    teachers = [
        Teacher(key=key, weights_sha256=sha256, dtype="float32") for key in ("gsm8k", "math")
    ]
    return replace(
        tiny_recipe,
        critic=tiny_critic,
        distillation=Distillation(
            teachers=tuple(teachers),
            routing_field="data_source",
            loss="k1",
            top_k=None,
            min_log_prob=None,
            max_loss=None,
            policy_gradient_clips=(0.2, 0.2),
            uses_task_rewards=False,
            coefficient=1.0,
        ),
    )


def _refused(recipe: Recipe, inputs: Inputs) -> dict[str, str]:
    with pytest.raises(WrongCall) as raised:
        load_inputs(recipe, inputs)
    assert all(each.fix.startswith("Bind the ") for each in raised.value.problems)
    return {each.field: each.reason for each in raised.value.problems}


def test_everything_that_is_not_bound_is_told_at_once(recipe: Recipe, tmp_path: Path) -> None:
    """Before the model is looked at, which is not there either."""
    nowhere = tmp_path / "nowhere"
    inputs = Inputs(model=nowhere, train=nowhere, teachers=(nowhere,))
    assert _refused(recipe, inputs) == {
        "validation": "the recipe validates, and no validation data is bound",
        "critic": "the recipe trains a critic, and no model is bound for it",
        "teacher.math": "the policy of the recipe learns from it, and no model is bound for it",
    }


def test_so_is_what_gives_the_rewards(tiny_recipe: Recipe, tmp_path: Path) -> None:
    scored = RewardModel(weights_sha256=tiny_recipe.policy.weights_sha256, dtype="float32")
    called = RewardFunction(sha256="0" * 64, name="compute_score")
    by_model = replace(tiny_recipe.reward, scorer="reward_model", model=scored)
    by_function = replace(tiny_recipe.reward, scorer="function", function=called)
    inputs = Inputs(model=tmp_path, train=tmp_path)
    for reward, name in ((by_model, "reward_model"), (by_function, "reward_function")):
        told = _refused(replace(tiny_recipe, reward=reward), inputs)
        assert told.keys() == {"validation", name}
        assert told[name].endswith("scores the responses of the recipe, and none is bound")
