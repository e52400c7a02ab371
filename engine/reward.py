"""Rewards: one number for a response to a prompt.

A scorer is built from the recipe's arguments and the prompts it will judge, so that data it cannot judge
stops the run before the first rollout. What is not a finite number is an error, never a silent 0.
"""

import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Protocol

from miniverl.engine.problem import Problem, WrongCall
from miniverl.engine.trajectory import Prompt

# A minus belongs to the number unless something it could be subtracted from stands right before it.
_NUMBER = re.compile(
    r"(?:(?<![\w)\]}.])[-\u2212])?"
    r"(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|(?<!\d)\.\d+)",
    re.ASCII,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """A response as rewards read it: without the special tokens, with them, and how long it is."""

    text: str
    raw_text: str
    num_tokens: int


class Reward(Protocol):
    def score(self, prompt: Prompt, answer: Answer) -> float: ...


class LastNumber:
    """1.0 if the last number of the response equals the ground truth in value, else 0.0.

    A number is ASCII digits, optionally with commas between groups of three, a decimal part, and a minus
    ("-" or U+2212) right before it that does not follow a word, a closing bracket or a full stop: "7-5" holds 7
    and 5, "= -5" holds -5, "1,234.50" is 1234.5, "12." is 12 at the end of a sentence, "1,2" is 1 and 2.
    Fractions and exponents are not read as one number: "1/2" ends in 2.
    """

    def __init__(self, prompts: Sequence[Prompt]) -> None:
        """Raises WrongCall naming every prompt whose ground truth is not one such number."""
        self._truths: dict[int, Decimal] = {}
        problems = []
        for prompt in prompts:
            text = str(prompt.ground_truth).strip()
            if isinstance(prompt.ground_truth, bool) or not _NUMBER.fullmatch(text):
                problems.append(
                    _problem(prompt, prompt.ground_truth, "ground truth", "is no number")
                )
            else:
                self._truths[prompt.prompt_id] = _value(text)
        if problems:
            raise WrongCall(problems)

    def score(self, prompt: Prompt, answer: Answer) -> float:
        number = last_number(answer.text)
        return float(number is not None and number == self._truths[prompt.prompt_id])


SCORERS: dict[str, Callable[..., Reward]] = {"last_number": LastNumber}


def scorer(name: str, arguments: Mapping[str, Any], prompts: Sequence[Prompt]) -> Reward:
    """The scorer `name` for these prompts. Raises WrongCall for a name or an argument that is not known."""
    if name not in SCORERS:
        known = ", ".join(SCORERS)
        raise WrongCall(
            [_recipe_problem("scorer", name, "no such scorer", f"Name one of: {known}")]
        )
    _, *taken = inspect.signature(SCORERS[name]).parameters  # the first one is the prompts
    fix = f"Leave it out; {name} takes {', '.join(taken) or 'no arguments'}"
    unknown = [
        _recipe_problem(f"arguments.{each}", arguments[each], "no such argument", fix)
        for each in sorted(arguments.keys() - set(taken))
    ]
    if unknown:
        raise WrongCall(unknown)
    return SCORERS[name](prompts, **arguments)


def score(reward: Reward, prompt: Prompt, answer: Answer) -> float:
    """The answer's reward; raises WrongCall naming the prompt if it is not a finite number."""
    value = reward.score(prompt, answer)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value):
        raise WrongCall([_problem(prompt, value, "reward", "is not a finite number")])
    return float(value)


def last_number(text: str) -> Decimal | None:
    """The last number in `text` as `LastNumber` defines it; None if there is none."""
    numbers = _NUMBER.findall(text)
    return _value(numbers[-1]) if numbers else None


def _value(number: str) -> Decimal:
    return Decimal(number.replace(",", "").replace("\u2212", "-"))


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
