"""A recipe that somebody changed by hand: every problem of it at once, and none of them later."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from miniverl.engine import recipe as recipes
from miniverl.engine.bounds import RANGES
from miniverl.engine.problem import WrongCall

EXAMPLE = Path(__file__).parents[1] / "data" / "example_recipe.json"

OUT_OF_RANGE = {
    "seeds.sampling": -1,
    "data.prompts_per_step": 0,
    "data.max_rows": 0,
    "policy.lora.rank": 0,
    "policy.lora.target_modules": [],
    "rollout.samples_per_prompt": 0,
    "rollout.max_response_tokens": 0,
    "rollout.temperature": -1.0,
    "rollout.top_p": 0.0,
    "rollout.top_k": -1,
    "policy_loss.arguments.dual_clip": 1.0,
    "optimizer.betas.0": 1.0,
    "optimizer.epsilon": 0.0,
    "update.prompts_per_mini_batch": 0,
    "update.micro_batch_tokens": 0,
    "steps.num_steps": 0,
    "steps.checkpoint_every": -1,
    "steps.keep_checkpoints": 0,
    "schema_version": 3,
}


def changed(path: str, value: Any) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(EXAMPLE.read_text("utf-8"))
    *above, last = path.split(".")
    part: Any = plain
    for name in above:
        part = part[name]
    part[int(last) if last.isdigit() else last] = value
    return plain


def fields(raised: pytest.ExceptionInfo[WrongCall]) -> list[str]:
    return [problem.field for problem in raised.value.problems]


def test_the_example_is_a_recipe_and_has_every_field_with_a_range() -> None:
    recipe = recipes.loads(EXAMPLE.read_text("utf-8"), EXAMPLE.name)
    plain = recipes.to_dict(recipe)
    for path in RANGES:
        part: Any = plain
        for name in path.split("."):
            if part is None:
                break
            part = part[int(name)] if name.isdigit() else part[name]


@pytest.mark.parametrize(("path", "value"), OUT_OF_RANGE.items())
def test_a_number_out_of_its_range_is_named(path: str, value: Any) -> None:
    with pytest.raises(WrongCall) as raised:
        recipes.from_dict(changed(path, value), "here")
    assert fields(raised) == [f"recipe.{path}"]


def test_all_numbers_out_of_range_are_named_at_once() -> None:
    plain = changed("rollout.top_p", 2.0)
    plain["steps"]["num_epochs"] = 0
    plain["seeds"]["data"] = -3
    with pytest.raises(WrongCall) as raised:
        recipes.from_dict(plain, "here")
    assert fields(raised) == [
        "recipe.seeds.data",
        "recipe.rollout.top_p",
        "recipe.steps.num_epochs",
    ]


def test_a_mini_batch_divides_the_step() -> None:
    with pytest.raises(WrongCall, match=r"does not divide the 4 of data\.prompts_per_step"):
        recipes.from_dict(changed("update.prompts_per_mini_batch", 3), "here")


def test_a_norm_needs_its_horizon() -> None:
    aggregation = {"mode": "seq-mean-token-sum-norm", "horizon": None}
    with pytest.raises(WrongCall, match="divides by it"):
        recipes.from_dict(changed("policy_loss.aggregation", aggregation), "here")


WEIGHTS = {"level": "token", "lower": None, "upper": 2.0, "is_batch_normalized": False}
K1 = {"statistic": "token_k1", "lower": 0.5, "upper": 2.0}
K3 = {"statistic": "seq_mean_k3", "lower": None, "upper": 0.1}
CORRECTION = {"bypasses_scoring": False, "importance_weights": WEIGHTS, "rejections": [K1, K3]}


@pytest.mark.parametrize(
    ("part", "field", "reason"),
    [
        ({"rejections": [{**K1, "lower": None}]}, "rejections.0.lower", "token_k1 has two bounds"),
        ({"rejections": [K1, {**K3, "lower": 0.1}]}, "rejections.1.lower", "has one bound"),
        ({"rejections": [{**K3, "upper": 0.0}]}, "rejections.0.upper", "a number above 0"),
        ({"rejections": [{**K1, "lower": 3.0}]}, "rejections.0.lower", "above the upper bound, 2"),
        (
            {"importance_weights": {**WEIGHTS, "lower": 3.0}},
            "importance_weights.lower",
            "above the upper bound, 2.0",
        ),
        ({"bypasses_scoring": True}, "bypasses_scoring", "weighs or rejects nothing"),
    ],
)
def test_bounds_of_rollout_correction_that_say_nothing_are_named(part, field, reason) -> None:
    recipes.from_dict(changed("rollout_correction", CORRECTION), "here")
    with pytest.raises(WrongCall, match=reason) as raised:
        recipes.from_dict(changed("rollout_correction", CORRECTION | part), "here")
    assert fields(raised) == [f"recipe.rollout_correction.{field}"]


@pytest.mark.parametrize("loss", ["kl_cov", "clip_cov"])
def test_a_share_of_chosen_tokens_is_above_0(loss: str) -> None:
    arguments = {
        "kl_cov": {"share": 0, "kl_coefficient": 1.0},
        "clip_cov": {
            "share": 0,
            "clip_low": 0.2,
            "clip_high": 0.2,
            "covariance_low": 1.0,
            "covariance_high": 5.0,
        },
    }[loss]
    plain = changed("policy_loss.name", loss)
    plain["policy_loss"]["arguments"] = arguments
    with pytest.raises(WrongCall) as raised:
        recipes.from_dict(plain, "here")
    assert fields(raised) == ["recipe.policy_loss.arguments.share"]


@pytest.mark.parametrize("value", [math.inf, math.nan, True, "0.9"])
def test_what_is_no_finite_number_is_none(value: Any) -> None:
    with pytest.raises(WrongCall, match=r"recipe\.rollout\.temperature .* expected float"):
        recipes.from_dict(changed("rollout.temperature", value), "here")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is not JSON"),
        ('{"seeds": NaN}', "NaN is no number"),
        ('{"seeds": 1, "seeds": 2}', "twice the same key: seeds"),
        ('{"seeds": 1e999}', "is not strict JSON"),
        (f'{{"seeds": {2**60}}}', "is not strict JSON"),
        (f'{{"seeds": {"9" * 5000}}}', "is not strict JSON"),
        ("[" * 100_000, "is not strict JSON"),
        ("null", "expected a mapping"),
    ],
)
def test_what_is_not_strict_json_is_no_recipe(text: str, reason: str) -> None:
    with pytest.raises(WrongCall, match=reason):
        recipes.loads(text, "here")
