"""What scores: a scorer by name with its arguments, or a function in a file whose very bytes are trusted."""

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from miniverl.compiler.bindings import lowering_rows, parse
from miniverl.compiler.bound_reward import PROVIDERS, SCORERS
from miniverl.engine import reward
from miniverl.engine.algorithm import RewardFunction
from miniverl.engine.problem import Problem, WrongCall
from miniverl.engine.recipe import dumps

FILE = b"def compute_score(**given):\n    return 1\n"
SHA256 = hashlib.sha256(FILE).hexdigest()


@pytest.fixture
def function(tmp_path: Path) -> str:
    (tmp_path / "reward.py").write_bytes(FILE)
    return f"reward_function={tmp_path}/reward.py:compute_score"


def _problem(*texts: str) -> Problem:
    with pytest.raises(WrongCall) as wrong:
        parse(texts)
    (problem,) = wrong.value.problems
    return problem


def test_scorers_take_what_the_engines_take():
    for name, scorer in SCORERS.items():
        arguments = dict.fromkeys(scorer.arguments, 1)
        reward.scorer(name, arguments, [])  # raises for one that is missing or unknown
    assert set(SCORERS) - set(PROVIDERS) == {"target_length"}


def test_a_scorer_gets_its_arguments_as_json():
    bound = parse(["reward=target_length", "reward.tokens=64"])
    assert (bound.reward, bound.reward_arguments) == ("target_length", {"tokens": 64})
    assert bound.for_rules()["reward_arguments"] == {"tokens": 64}
    (row,) = lowering_rows(bound, {})
    assert row["local_value"] == {"scorer": "target_length", "arguments": {"tokens": 64}}


@pytest.mark.parametrize(
    ("texts", "field", "reason"),
    [
        (["reward=target_length"], "reward.tokens", "target_length needs it"),
        (["reward=gsm8k", "reward.tokens=64"], "reward.tokens", "gsm8k takes no such argument"),
        (["reward.tokens=64"], "reward.tokens", "no scorer takes no such argument"),
        (["reward=target_length", "reward.tokens=a"], "reward.tokens", "not JSON"),
    ],
)
def test_an_argument_that_is_not_taken_is_refused(texts, field, reason):
    problem = _problem(*texts)
    assert problem.field == field
    assert problem.reason.startswith(reason)


def test_a_trusted_function_is_known_by_its_digest_and_name(function):
    bound = parse([function, f"trust_reward_code={SHA256}"])
    assert bound.for_rules()["reward_function"] == {"sha256": SHA256, "name": "compute_score"}
    (row,) = lowering_rows(bound, {"reward.custom_reward_function.path": "there.py"})
    assert row["source_value"] == "there.py"
    assert row["local_value"] == {"sha256": SHA256, "name": "compute_score"}


def test_a_function_is_refused_without_its_digest_and_the_refusal_says_it(function):
    for trust in ([], [f"trust_reward_code={'0' * 64}"]):
        problem = _problem(function, *trust)
        assert problem.field == "--trust-reward-code"
        assert problem.reason.startswith(f"reward.py has the digest {SHA256}")
        assert problem.fix.endswith(f"--trust-reward-code {SHA256}")


def test_trust_without_a_function_is_refused():
    assert _problem(f"trust_reward_code={SHA256}").reason == "no reward function is bound"


def test_a_scorer_and_a_function_are_one_too_many(function):
    problem = _problem(function, f"trust_reward_code={SHA256}", "reward=gsm8k")
    assert problem.reason == "a reward function is bound too, and one thing scores"


@pytest.mark.parametrize("text", ["reward.py", ":f", "reward.py:", "reward.py:not a name"])
def test_a_function_is_written_file_and_name(text):
    assert _problem(f"reward_function={text}").reason == "a function is written FILE:NAME"


def test_a_launch_with_a_function_of_its_own_waits_for_the_file(compiled, bound):
    named = {"reward.custom_reward_function.path": "there.py"}
    launched = compiled(named, bindings=replace(bound, reward=None))
    assert launched.status == "accepted"
    assert launched.execution == {"status": "requires_bindings", "missing": ["reward_function"]}
    assert compiled(named).recipe.reward.scorer == "last_number"


def test_the_recipe_holds_the_functions_digest_and_no_path(compiled, bound, function, tmp_path):
    own = parse([function, f"trust_reward_code={SHA256}"])
    launched = compiled(
        {
            "reward.custom_reward_function.path": "there.py",
            "reward.custom_reward_function.reward_kwargs.scale": 2,
        },
        bindings=replace(bound, reward=None, reward_function=own.reward_function),
    )
    assert launched.recipe is not None
    assert launched.recipe.reward.scorer == "function"
    assert launched.recipe.reward.arguments == {"scale": 2}
    assert launched.recipe.reward.function == RewardFunction(sha256=SHA256, name="compute_score")
    assert "there.py" not in dumps(launched.recipe)
    assert launched.paths["reward_function"] == tmp_path / "reward.py"
