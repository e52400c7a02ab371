"""Whole runs whose reward is a user's function: what it tells is kept, and what it raises ends the run."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from miniverl.engine import loop
from miniverl.engine.algorithm import GroupFilter, OverlongPenalty, RewardFunction
from miniverl.engine.inputs import Inputs
from miniverl.engine.problem import Refused, WrongCall
from miniverl.engine.recipe import Recipe

LETTERS = """
def compute_score(data_source, solution_str, ground_truth, extra_info, letter):
    share = solution_str.count(letter) / max(1, len(solution_str))
    return {"score": share, "style": len(set(solution_str)), "pred": solution_str[:1]}
"""
RAISES = """
def compute_score(data_source, solution_str, ground_truth, extra_info, letter):
    raise ValueError(f"no {letter} in it")
"""
ALIKE = """
def compute_score(data_source, solution_str, ground_truth, extra_info, letter):
    return {"score": 1.0, "style": 2.0}
"""


@pytest.fixture
def run(
    tiny_recipe: Recipe, tiny_model: Path, tiny_train: Path, tiny_validation: Path, tmp_path: Path
):
    """Two steps rewarded by that code, and the run folder."""

    def go(code: str, trusted: str | None = None) -> Path:
        file = tmp_path / "reward.py"
        file.write_text(code)
        recipe = tiny_recipe
        assert recipe.validation is not None
        recipe = replace(
            recipe,
            validation=replace(recipe.validation, samples_per_prompt=2, temperature=1.0),
            group_filter=GroupFilter(metric="style", batches_in_flight=2),
            reward=replace(
                recipe.reward,
                scorer="function",
                arguments={"letter": "a"},
                function=RewardFunction(
                    sha256=trusted or hashlib.sha256(code.encode()).hexdigest(),
                    name="compute_score",
                ),
                overlong_penalty=OverlongPenalty(
                    max_response_tokens=8, buffer_tokens=8, factor=0.5
                ),
            ),
            steps=replace(recipe.steps, num_steps=2),
        )
        out = tmp_path / "run"
        loop.run(
            recipe,
            Inputs(
                model=tiny_model,
                train=tiny_train,
                validation=tiny_validation,
                reward_function=file,
            ),
            out,
            device="cpu",
            threads=1,
            resume=False,
            listen=lambda event: None,
        )
        return out

    return go


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_what_the_function_tells_is_kept_and_the_penalty_comes_off_the_reward(run):
    out = run(LETTERS)
    rows = _lines(out / "validation.jsonl")
    assert rows
    for row in rows:
        extras = row["extras"]
        assert extras["overlong_reward"] == -len(row["response_tokens"]) / 8 * 0.5
        assert row["reward"] == pytest.approx(extras["score"] + extras["overlong_reward"])
        assert extras["style"] == len(set(row["response"]))
        assert row["prediction"] == row["response"][:1]
    told = [
        each for each in _lines(out / "journal.jsonl") if each["event"] == "validation_finished"
    ]
    source = next(name for name in told[0]["metrics"] if name.startswith("core/")).split("/")[1]
    assert {"reward_mean", f"core/{source}/reward/maj@2/mean"} <= told[0]["metrics"].keys()
    assert f"aux/{source}/style/worst@2/std" in told[0]["metrics"]


def test_what_the_function_raises_ends_the_run_with_the_prompt(run):
    with pytest.raises(Refused, match=r"reward of prompt \d+ .* raised ValueError: no a in it"):
        run(RAISES)


def test_rewards_of_which_nothing_can_be_learnt_end_the_run(run):
    """Behind one pass over the ten prompts, and not before something else ends it."""
    with pytest.raises(Refused, match=r"none of 10 prompts, a whole pass .* 0 of the 2 groups"):
        run(ALIKE)


def test_a_file_that_is_not_the_trusted_one_stops_the_run_before_it_starts(run):
    with pytest.raises(WrongCall, match=r"reward_function .* is trusted"):
        run(LETTERS, trusted="0" * 64)
