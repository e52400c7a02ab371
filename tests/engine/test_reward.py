"""Rewards: what counts as the last number, and that nothing unscorable becomes a silent 0."""

import json
import math
from decimal import Decimal
from pathlib import Path

import pytest

from miniverl.engine.problem import WrongCall
from miniverl.engine.reward import SCORERS, Answer, last_number, score, scorer
from miniverl.engine.trajectory import Prompt

ROWS = Path(__file__).parents[2] / "bench" / "data" / "chain-sum.jsonl"


def prompt(ground_truth: object, prompt_id: int = 0) -> Prompt:
    return Prompt(
        prompt_id=prompt_id,
        messages=({"role": "user", "content": "?"},),
        tokens=(1,),
        ground_truth=ground_truth,
        data_source="here",
        extra={},
    )


def answer(text: str) -> Answer:
    return Answer(text=text, raw_text=f"{text}<|end|>", num_tokens=len(text) + 1)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("12", "12"),
        ("The answer is 12.", "12"),
        ("7 + 5 = 12", "12"),
        ("3.50 metres", "3.5"),
        (".5", "0.5"),
        ("1,234", "1234"),
        ("1,234,567.25", "1234567.25"),
        ("1,2", "2"),
        ("1,2345", "2345"),
        ("12345,678", "678"),
        ("100, 200", "200"),
        ("= -3", "-3"),
        ("-3", "-3"),
        ("\u22123", "-3"),
        ("$-3$", "-3"),
        ("\\boxed{-42}", "-42"),
        ("**42**", "42"),
        ("10-3", "3"),
        ("x-3", "3"),
        ("(4)-3", "3"),
        ("10 - 3", "3"),
        ("007", "7"),
        ("-0", "0"),
        ("1/2", "2"),
        ("first 5, then none", "5"),
    ],
)
def test_the_last_number_of_a_text(text, number):
    assert last_number(text) == Decimal(number)


@pytest.mark.parametrize("text", ["", "none", "-", ".", "twelve", "\u0663"])
def test_a_text_without_a_number_has_none(text):
    assert last_number(text) is None


@pytest.mark.parametrize(
    ("ground_truth", "response", "reward"),
    [
        ("12", "It is 12.", 1.0),
        ("12", "12 or 13", 0.0),
        ("12", "no idea", 0.0),
        ("12", "", 0.0),
        ("12", "12.0", 1.0),
        ("12.50", "12.5", 1.0),
        (12, "= 12", 1.0),
        (0.1, "0.10", 1.0),
        ("-3", "4 - 7 = -3", 1.0),
        ("3", "4 - 7 = -3", 0.0),
        ("1,000", "1000", 1.0),
    ],
)
def test_the_reward_is_1_for_the_same_value_and_0_otherwise(ground_truth, response, reward):
    asked = prompt(ground_truth)
    assert score(scorer("last_number", {}, [asked]), asked, answer(response)) == reward


def test_every_ground_truth_that_is_no_number_is_named_before_the_first_response():
    prompts = [
        prompt("12"),
        prompt("twelve", 5),
        prompt(None, 7),
        prompt(True, 8),
        prompt("1/2", 9),
    ]
    with pytest.raises(WrongCall) as raised:
        scorer("last_number", {}, prompts)
    named = [problem.field for problem in raised.value.problems]
    assert named == [f"ground truth of prompt {number}" for number in (5, 7, 8, 9)]


@pytest.mark.parametrize("value", [math.nan, math.inf, None, "1", True])
def test_a_reward_that_is_no_finite_number_is_an_error_naming_the_prompt(value):
    class Broken:
        def score(self, prompt: Prompt, answer: Answer) -> float:
            return value

    with pytest.raises(WrongCall, match="reward of prompt 31"):
        score(Broken(), prompt("1", 31), answer("1"))


def test_the_recipe_finds_scorers_by_name():
    assert set(SCORERS) == {"last_number"}


def test_a_scorer_that_is_not_there_is_named():
    with pytest.raises(WrongCall, match=r"reward\.scorer = 'gsm8k' .* Name one of: last_number"):
        scorer("gsm8k", {}, [])


def test_every_argument_that_the_scorer_does_not_take_is_named():
    with pytest.raises(WrongCall) as raised:
        scorer("last_number", {"b": 1, "a": 2}, [])
    fields = [problem.field for problem in raised.value.problems]
    assert fields == ["recipe.reward.arguments.a", "recipe.reward.arguments.b"]


def test_reasoning_gym_judges_the_extracted_number_alike():
    reasoning_gym = pytest.importorskip(
        "reasoning_gym",
        reason="reasoning-gym is in the `data` group, three of its parts need compiling",
    )
    dataset = reasoning_gym.create_dataset("chain_sum", size=1, seed=0)
    rows = [json.loads(line) for line in ROWS.read_text().splitlines()]
    for row in rows:
        truth = row["reward_model"]["ground_truth"]
        asked = prompt(truth)
        ours = scorer("last_number", {}, [asked])
        for said in (int(truth), int(truth) + 1, -int(truth), 0):
            response = f"The answer is {said}."
            theirs = dataset.score_answer(
                str(last_number(response)), {"answer": truth, "metadata": {}}
            )
            assert (score(ours, asked, answer(response)) == 1.0) == (theirs == 1.0), (said, truth)
