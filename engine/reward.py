"""Rewards: one number for a response to a prompt, and what a scorer tells beside it.

A scorer is built from the recipe's arguments and the prompts it will judge, so that data it cannot judge
stops the run before the first rollout. What is not a finite number is an error, never a silent 0.
"""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from numbers import Real
from typing import Any, Protocol

from miniverl.engine import reward_math, reward_text
from miniverl.engine.algorithm import OverlongPenalty
from miniverl.engine.problem import Problem, Refused, WrongCall
from miniverl.engine.trajectory import Prompt

# What a scorer gives: the score, or a mapping with it under "score".
Result = float | Mapping[str, object]
# Of a response and a ground truth.
Rule = Callable[[str, str], Result]


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """A response as rewards read it: without the special tokens, with them, and how long it is."""

    text: str
    raw_text: str
    num_tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """`extras`: every number that the scorer gave, by its name; `prediction`: what it took for the answer."""

    reward: float
    extras: Mapping[str, float]
    prediction: str | float | None


class Reward(Protocol):
    def score(self, prompt: Prompt, answer: Answer) -> Result: ...


class LastNumber:
    """1.0 if the last number of the response equals the ground truth in value, else 0.0 (engine/reward_text.py)."""

    def __init__(self, prompts: Sequence[Prompt]) -> None:
        """Raises WrongCall naming every prompt whose ground truth is not one such number."""
        problems = [
            _problem(prompt, prompt.ground_truth, "ground truth", "is no number")
            for prompt in prompts
            if isinstance(prompt.ground_truth, bool)
            or not reward_text.is_number(str(prompt.ground_truth))
        ]
        if problems:
            raise WrongCall(problems)

    def score(self, prompt: Prompt, answer: Answer) -> float:
        return reward_text.last_number_equals(answer.text, str(prompt.ground_truth))


class ByRule:
    """Every response by one rule, which compares it with a ground truth that is text."""

    def __init__(self, rule: Rule, prompts: Sequence[Prompt]) -> None:
        _require_texts(prompts)
        self._rule = rule

    def score(self, prompt: Prompt, answer: Answer) -> Result:
        return self._rule(answer.text, prompt.ground_truth)


class ByDataSource:
    """Every response by the rule of its prompt's data source: verl/utils/reward_score/__init__.py:46 (v0.9.0).

    Only the sources of those rules that are here.
    """

    def __init__(self, prompts: Sequence[Prompt]) -> None:
        """Raises WrongCall naming every prompt whose source has no rule."""
        found = {prompt.prompt_id: _rule_of(prompt.data_source) for prompt in prompts}
        problems = [
            _problem(prompt, prompt.data_source, "data source", "has no scorer here")
            for prompt in prompts
            if found[prompt.prompt_id] is None
        ]
        if problems:
            raise WrongCall(problems)
        _require_texts(prompts)
        self._rules = {number: rule for number, rule in found.items() if rule is not None}

    def score(self, prompt: Prompt, answer: Answer) -> Result:
        return self._rules[prompt.prompt_id](answer.text, prompt.ground_truth)


class TargetLength:
    """1 for a response of exactly `tokens` tokens, falling in proportion to 0 for none, or for twice as many."""

    def __init__(self, prompts: Sequence[Prompt], tokens: int) -> None:
        if type(tokens) is not int or tokens < 1:
            fix = "Give a whole number of at least 1"
            raise WrongCall([_recipe_problem("arguments.tokens", tokens, "no length", fix)])
        self._tokens = tokens

    def score(self, prompt: Prompt, answer: Answer) -> float:
        return max(0.0, 1 - abs(answer.num_tokens - self._tokens) / self._tokens)


def _math_verify(prompts: Sequence[Prompt]) -> Reward:
    from miniverl.engine.reward_math_verify import math_verify  # loads sympy

    return ByRule(math_verify, prompts)


SCORERS: Mapping[str, Callable[..., Reward]] = {
    "last_number": LastNumber,
    "exact_answer": partial(ByRule, reward_text.exact_answer),
    "gsm8k": partial(ByRule, reward_math.gsm8k),
    "gsm8k_flexible": partial(ByRule, reward_math.gsm8k_flexible),
    "math": partial(ByRule, reward_math.math),
    "math_dapo": partial(ByRule, reward_math.math_dapo),
    "math_verify": _math_verify,
    "by_data_source": ByDataSource,
    "target_length": TargetLength,
}
RULES_BY_SOURCE: Mapping[str, Rule] = {
    "openai/gsm8k": reward_math.gsm8k,
    "lighteval/MATH": reward_math.math,
    "DigitalLearningGmbH/MATH-lighteval": reward_math.math,
    "HuggingFaceH4/MATH-500": reward_math.math,
    "math_dapo": reward_math.math_dapo,
    "math": reward_math.math_dapo,
    "math_dapo_reasoning": reward_math.math_dapo,
}


def scorer(name: str, arguments: Mapping[str, Any], prompts: Sequence[Prompt]) -> Reward:
    """The scorer `name` for these prompts. Raises WrongCall for a name or an argument that is not known."""
    if name not in SCORERS:
        known = ", ".join(SCORERS)
        raise WrongCall(
            [_recipe_problem("scorer", name, "no such scorer", f"Name one of: {known}")]
        )
    _, *taken = inspect.signature(SCORERS[name]).parameters  # the first one is the prompts
    fix = f"Leave it out; {name} takes {', '.join(taken) or 'no arguments'}"
    problems = [
        _recipe_problem(f"arguments.{each}", arguments[each], "no such argument", fix)
        for each in sorted(arguments.keys() - set(taken))
    ]
    problems += [
        _recipe_problem(f"arguments.{each}", None, f"{name} needs it", "Give it")
        for each in taken
        if each not in arguments
    ]
    if problems:
        raise WrongCall(problems)
    return SCORERS[name](prompts, **arguments)


def judge(
    reward: Reward, prompt: Prompt, answer: Answer, penalty: OverlongPenalty | None
) -> Judgement:
    """The answer's reward, less the penalty for its length; of a plain number, "acc" is that number.

    verl/experimental/reward_loop/reward_manager/dapo.py:98 (v0.9.0). Raises Refused naming the prompt if the
    scorer gives something else than finite numbers.
    """
    result = reward.score(prompt, answer)
    told = result if isinstance(result, Mapping) else {"acc": result}
    score = told.get("score") if isinstance(result, Mapping) else result
    if not isinstance(score, Real):
        raise Refused([_problem(prompt, result, "reward", "is not a finite number")])
    extras = {name: float(value) for name, value in told.items() if isinstance(value, Real)}
    taken_off = 0.0
    if penalty is not None:
        taken_off = overlong_penalty(answer.num_tokens, penalty)
        extras |= {"overlong_reward": taken_off, "overlong": float(taken_off < 0)}
    problems = [
        _problem(prompt, value, name, "is not a finite number")
        for name, value in {"reward": float(score), **extras}.items()
        if not math.isfinite(value)
    ]
    if problems:
        raise Refused(problems)
    prediction = told.get("pred")
    return Judgement(
        reward=float(score) + taken_off,
        extras=extras,
        prediction=prediction if isinstance(prediction, str) else extras.get("pred"),
    )


def overlong_penalty(num_tokens: int, penalty: OverlongPenalty) -> float:
    """min(-(tokens - (max_response_tokens - buffer_tokens)) / buffer_tokens x factor, 0).

    verl/experimental/reward_loop/reward_manager/dapo.py:110 (v0.9.0). Below -factor for what is longer still.
    """
    over = num_tokens - (penalty.max_response_tokens - penalty.buffer_tokens)
    return min(-over / penalty.buffer_tokens * penalty.factor, 0.0)


def _rule_of(data_source: str) -> Rule | None:
    is_aime = data_source.startswith("aime")
    return reward_math.math_dapo if is_aime else RULES_BY_SOURCE.get(data_source)


def _require_texts(prompts: Sequence[Prompt]) -> None:
    """A number as ground truth equals no text, so that every response would silently score 0."""
    problems = [
        _problem(prompt, prompt.ground_truth, "ground truth", "is no text")
        for prompt in prompts
        if not isinstance(prompt.ground_truth, str)
    ]
    if problems:
        raise WrongCall(problems)


def _recipe_problem(field: str, value: object, reason: str, fix: str) -> Problem:
    return Problem(
        field=f"recipe.reward.{field}", value=value, origin="recipe", reason=reason, fix=fix
    )


def _problem(prompt: Prompt, value: object, name: str, reason: str) -> Problem:
    return Problem(
        field=f"{name} of prompt {prompt.prompt_id}",
        value=value,
        origin=prompt.data_source,
        reason=reason,
        fix="Correct the data row, or choose another scorer",
    )
