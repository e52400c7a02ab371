"""A user's reward function: only trusted bytes run, it is called as upstream calls it, and no fault becomes a 0."""

import hashlib
from pathlib import Path

import numpy as np
import pytest

from miniverl.engine.algorithm import RewardFunction
from miniverl.engine.problem import Refused, WrongCall
from miniverl.engine.reward import Answer, judge
from miniverl.engine.reward_function import UserFunction
from miniverl.engine.trajectory import Prompt

ANSWER = Answer(text="four", raw_text="four<|end|>", num_tokens=5)
PROMPT = Prompt(
    prompt_id=31,
    messages=({"role": "user", "content": "2+2"},),
    tokens=(1,),
    ground_truth="4",
    data_source="here",
    extra={"index": 7},
)


@pytest.fixture
def written(tmp_path: Path):
    """A function of that body, trusted and loaded."""

    def write(body: str, name: str = "compute_score", **arguments: object) -> UserFunction:
        path = tmp_path / "mine.py"
        path.write_text(body)
        sha256 = hashlib.sha256(body.encode()).hexdigest()
        return UserFunction(RewardFunction(sha256=sha256, name=name), path, arguments)

    return write


def returning(value: str) -> str:
    return f"def compute_score(data_source, solution_str, ground_truth, extra_info):\n return {value}\n"


def test_it_is_called_as_upstream_calls_it(written):
    function = written(
        "def mine(data_source, solution_str, ground_truth, extra_info, scale):\n"
        " said = (data_source, solution_str, ground_truth, sorted(extra_info.items()))\n"
        " return {'score': scale, 'pred': str(said)}\n",
        name="mine",
        scale=2.5,
    )
    judged = judge(function, PROMPT, ANSWER, None)
    extra = [("index", 7), ("num_turns", 2), ("rollout_reward_scores", {})]
    assert judged.reward == 2.5
    assert judged.prediction == str(("here", "four", "4", extra))


def test_what_it_does_to_the_extra_info_stays_with_it(written):
    function = written(
        "def compute_score(data_source, solution_str, ground_truth, extra_info):\n"
        " extra_info['index'] += 1\n"
        " return extra_info['index']\n"
    )
    assert [judge(function, PROMPT, ANSWER, None).reward for _ in range(2)] == [8, 8]


def test_an_argument_of_the_launch_wins_over_what_the_row_says(written):
    function = written(returning("float(ground_truth)"), ground_truth="9")
    assert judge(function, PROMPT, ANSWER, None).reward == 9.0


def test_it_may_be_a_coroutine(written):
    assert judge(written("async " + returning("0.25")), PROMPT, ANSWER, None).reward == 0.25


@pytest.mark.parametrize(("value", "reward"), [("True", 1.0), ("3", 3.0), ("{'score': -1}", -1.0)])
def test_any_finite_number_is_a_reward(written, value, reward):
    assert judge(written(returning(value)), PROMPT, ANSWER, None).reward == reward


def test_a_number_of_numpy_is_a_reward(written):
    function = written("import numpy\n" + returning("numpy.float32(0.5)"))
    assert judge(function, PROMPT, ANSWER, None).reward == np.float32(0.5)


@pytest.mark.parametrize("value", ["None", "'1'", "float('nan')", "float('-inf')", "[1]", "{}"])
def test_anything_else_ends_the_run_with_the_prompt(written, value):
    with pytest.raises(Refused, match="reward of prompt 31"):
        judge(written(returning(value)), PROMPT, ANSWER, None)


def test_an_exception_ends_the_run_with_the_prompt_and_its_text(written):
    with pytest.raises(Refused, match=r"reward of prompt 31 .* raised KeyError: 'no such key'"):
        judge(written(returning("{}['no such key']")), PROMPT, ANSWER, None)


def test_a_file_that_does_not_load_ends_the_run_with_the_exceptions_text(written):
    with pytest.raises(Refused, match=r"mine\.py.* raised ModuleNotFoundError: .*'nowhere'"):
        written("import nowhere\n")


def test_a_file_that_is_no_python_ends_the_run(written):
    with pytest.raises(Refused, match="raised SyntaxError"):
        written("def compute_score(:\n")


def test_a_function_that_is_not_in_the_file_is_named(written):
    with pytest.raises(WrongCall, match="it has no function mine"):
        written(returning("1"), name="mine")


def test_bytes_that_are_not_trusted_never_run(tmp_path):
    path = tmp_path / "mine.py"
    ran = tmp_path / "ran"
    path.write_text(f"open({str(ran)!r}, 'w')\n")
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    with pytest.raises(WrongCall, match=found):
        UserFunction(RewardFunction(sha256="0" * 64, name="compute_score"), path, {})
    assert not ran.exists()


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(WrongCall, match="cannot be read"):
        UserFunction(RewardFunction(sha256="0" * 64, name="f"), tmp_path / "no.py", {})
