"""A user's own reward: a Python function in a file whose very bytes are trusted.

It is called as upstream calls a custom reward function, and gives a number, or a mapping with one under "score":

    def compute_score(data_source, solution_str, ground_truth, extra_info, **arguments): ...

verl/trainer/ppo/reward.py:30 and verl/experimental/reward_loop/reward_manager/naive.py:75 (v0.9.0). What it
raises ends the run.
"""

import asyncio
import hashlib
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from miniverl.engine.algorithm import RewardFunction
from miniverl.engine.problem import Problem, Refused, WrongCall
from miniverl.engine.reward import Answer, Result
from miniverl.engine.trajectory import Prompt

_NUM_TURNS = 2  # what upstream says of one question and one answer


class UserFunction:
    """Runs the file once, and its function for each response."""

    def __init__(self, wanted: RewardFunction, path: Path, arguments: Mapping[str, Any]) -> None:
        """Raises WrongCall for a file without these bytes or such a function, Refused where running it fails."""
        self._arguments = dict(arguments)
        self._function = _function(wanted, path)

    def score(self, prompt: Prompt, answer: Answer) -> Result:
        """Raises Refused with the prompt and what the function raised."""
        extra_info = {**prompt.extra, "num_turns": _NUM_TURNS, "rollout_reward_scores": {}}
        asked = {
            "data_source": prompt.data_source,
            "solution_str": answer.text,
            "ground_truth": prompt.ground_truth,
            "extra_info": extra_info,
        }
        try:
            given = self._function(**asked | self._arguments)  # the arguments win, as upstream's do
            result: Result = asyncio.run(given) if inspect.iscoroutine(given) else given
        except Exception as error:  # whatever a user's code raises
            field = f"reward of prompt {prompt.prompt_id}"
            raise Refused([_raised(field, prompt.data_source, error)]) from error
        return result


def _function(wanted: RewardFunction, path: Path) -> Callable[..., Any]:
    try:
        source = path.read_bytes()
    except OSError as error:
        fix = "Bind the file that the recipe was compiled for"
        raise WrongCall([_problem(path, f"cannot be read: {error.strerror}", fix)]) from error
    found = hashlib.sha256(source).hexdigest()
    if found != wanted.sha256:
        reason = f"its bytes have the digest {found}, and {wanted.sha256} is trusted"
        fix = "Bind the file that is trusted, or compile again and trust this one"
        raise WrongCall([_problem(path, reason, fix)])
    module = ModuleType("reward_function")
    module.__file__ = str(path)
    try:
        # Of the bytes that were compared: an import would read the file once more.
        exec(compile(source, str(path), "exec"), module.__dict__)  # noqa: S102
    except Exception as error:  # whatever a user's code raises
        raise Refused([_raised("reward_function", str(path), error)]) from error
    function = getattr(module, wanted.name, None)
    if not callable(function):
        fix = f"Name a function of it in place of {wanted.name}"
        raise WrongCall([_problem(path, f"it has no function {wanted.name}", fix)])
    return function  # type: ignore[no-any-return]


def _raised(field: str, origin: str, error: Exception) -> Problem:
    return Problem(
        field=field,
        value=None,
        origin=origin,
        reason=f"the reward function raised {type(error).__name__}: {error}",
        fix="Correct the function, trust it again, and start a new run",
    )


def _problem(path: Path, reason: str, fix: str) -> Problem:
    return Problem(
        field="reward_function", value=str(path), origin="bindings", reason=reason, fix=fix
    )
