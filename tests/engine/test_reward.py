"""Rewards: what counts as the last number, and that nothing unscorable becomes a silent 0."""

import json
import math
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from miniverl.engine.algorithm import OverlongPenalty
from miniverl.engine.problem import Refused, WrongCall
from miniverl.engine.reward import (
    RULES_BY_SOURCE,
    SCORERS,
    Answer,
    Result,
    Reward,
    judge,
    overlong_penalty,
    scorer,
)
from miniverl.engine.reward_text import last_number
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


def score(reward: Reward, asked: Prompt, said: Answer) -> float:
    return judge(reward, asked, said, None).reward


class Gives:
    """A scorer that gives the same, whatever it is asked."""

    def __init__(self, result: Result) -> None:
        self._result = result

    def score(self, prompt: Prompt, answer: Answer) -> Result:
        return self._result


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


@pytest.mark.parametrize("value", [math.nan, math.inf, None, "1", {"acc": 1.0}, {"score": None}])
def test_a_reward_that_is_no_finite_number_is_an_error_naming_the_prompt(value):
    with pytest.raises(Refused, match="reward of prompt 31"):
        score(Gives(value), prompt("1", 31), answer("1"))


def test_a_number_beside_the_reward_that_is_not_finite_is_an_error_naming_it():
    with pytest.raises(Refused, match=r"^style of prompt 31"):
        score(Gives({"score": 1.0, "style": math.nan}), prompt("1", 31), answer("1"))


def test_of_a_plain_number_acc_is_that_number():
    judged = judge(Gives(0.5), prompt("1"), answer("1"), None)
    assert (judged.reward, judged.extras, judged.prediction) == (0.5, {"acc": 0.5}, None)


def test_of_a_mapping_every_number_stays_and_its_answer_and_no_other_text():
    given = {"score": -1.0, "acc": False, "pred": "7", "note": "short", "parts": [1]}
    judged = judge(Gives(given), prompt("1"), answer("1"), None)
    assert (judged.reward, judged.prediction) == (-1.0, "7")
    assert judged.extras == {"score": -1.0, "acc": 0.0}


PENALTY = OverlongPenalty(max_response_tokens=20, buffer_tokens=8, factor=2.0)


@pytest.mark.parametrize(
    ("num_tokens", "taken_off"), [(0, 0), (12, 0), (13, -0.25), (16, -1), (20, -2), (24, -3)]
)
def test_the_overlong_penalty_grows_over_the_last_tokens(num_tokens, taken_off):
    assert overlong_penalty(num_tokens, PENALTY) == taken_off


def test_the_overlong_penalty_comes_off_the_reward_and_not_off_acc():
    judged = judge(Gives(1.0), prompt("1"), answer("fifteen letters"), PENALTY)
    assert judged.reward == 0.0
    assert judged.extras == {"acc": 1.0, "overlong_reward": -1.0, "overlong": 1.0}


@pytest.mark.parametrize(
    ("response", "reward"), [("Paris", 1.0), (" Paris\n", 1.0), ("paris", 0.0), ("Paris.", 0.0)]
)
def test_an_exact_answer_is_the_ground_truth_and_nothing_more(response, reward):
    asked = prompt("Paris ")
    assert score(scorer("exact_answer", {}, [asked]), asked, answer(response)) == reward


@pytest.mark.parametrize(
    ("num_tokens", "reward"), [(1, 0.1), (5, 0.5), (10, 1.0), (15, 0.5), (20, 0.0), (99, 0.0)]
)
def test_the_target_length_is_worth_1_and_none_and_twice_as_many_0(num_tokens, reward):
    asked = prompt(None)
    said = Answer(text="", raw_text="", num_tokens=num_tokens)
    given = score(scorer("target_length", {"tokens": 10}, [asked]), asked, said)
    assert given == pytest.approx(reward)


@pytest.mark.parametrize("tokens", [0, -1, 2.5, True, "9"])
def test_a_target_length_is_a_count_of_tokens(tokens):
    with pytest.raises(WrongCall, match=r"reward\.arguments\.tokens"):
        scorer("target_length", {"tokens": tokens}, [])


def test_an_argument_that_the_scorer_needs_is_named():
    with pytest.raises(WrongCall, match=r"reward\.arguments\.tokens = None .* needs it"):
        scorer("target_length", {}, [])


@pytest.mark.parametrize(
    ("response", "truth", "reward"),
    [
        ("so \\boxed{0.5}", "\\frac{1}{2}", 1.0),
        ("it is $x^2+2x+1$", "(x+1)^2", 1.0),
        ("\\boxed{3}", "2", 0.0),
        ("no idea", "2", 0.0),
    ],
)
def test_math_verify_compares_as_mathematics(response, truth, reward):
    asked = prompt(truth)
    assert score(scorer("math_verify", {}, [asked]), asked, answer(response)) == reward


def from_source(data_source: str, prompt_id: int, ground_truth: object = "4") -> Prompt:
    return replace(prompt(ground_truth, prompt_id), data_source=data_source)


def test_each_prompt_is_scored_by_the_rule_of_its_data_source():
    said = answer("#### 4, or \\boxed{5}. Answer: 6")
    prompts = [
        from_source("openai/gsm8k", 0),
        from_source("HuggingFaceH4/MATH-500", 1, "5"),
        from_source("aime2026", 2, "6"),
        from_source("math", 3, "5"),
    ]
    reward = scorer("by_data_source", {}, prompts)
    assert [score(reward, each, said) for each in prompts] == [1.0, 1.0, 1.0, -1.0]


def test_prompts_of_a_source_without_a_rule_are_named_before_the_first_response():
    prompts = [from_source("math", 0), from_source("codecontests", 4), from_source("mine", 6)]
    with pytest.raises(WrongCall) as raised:
        scorer("by_data_source", {}, prompts)
    named = [problem.field for problem in raised.value.problems]
    assert named == ["data source of prompt 4", "data source of prompt 6"]


@pytest.mark.parametrize(
    "name", ["exact_answer", "gsm8k", "gsm8k_flexible", "math", "math_dapo", "math_verify"]
)
def test_a_ground_truth_that_is_no_text_is_named_since_no_response_could_equal_it(name):
    with pytest.raises(WrongCall, match="ground truth of prompt 8 = 12"):
        scorer(name, {}, [prompt("12"), prompt(12, 8)])


def test_the_recipe_finds_scorers_by_name():
    named = {"last_number", "exact_answer", "by_data_source", "target_length"}
    mathematics = {"gsm8k", "gsm8k_flexible", "math", "math_dapo", "math_verify"}
    assert set(SCORERS) == named | mathematics
    assert {each.__name__ for each in RULES_BY_SOURCE.values()} <= mathematics


def test_a_scorer_that_is_not_there_is_named():
    with pytest.raises(WrongCall, match=r"reward\.scorer = 'gsm' .* Name one of: last_number"):
        scorer("gsm", {}, [])


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
