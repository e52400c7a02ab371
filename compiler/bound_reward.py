"""What scores responses in place of what the launch names: a scorer of the engine's, or a function of the user's.

Nothing runs a user's function here. Its file is known by its digest, and bound only where the user states that very
digest: another file under the same name is another reward, and code that nobody has read.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from miniverl.compiler.suggest import did_you_mean
from miniverl.engine.problem import Problem, WrongCall
from miniverl.engine.strict import strict_json

_PLAIN = {"acc": "reward"}  # upstream's name of a score that is a number, and a recipe's


@dataclass(frozen=True, kw_only=True, slots=True)
class Scorer:
    """What a scorer of engine/reward.py takes, and what it tells beside the reward: None where rows decide that.

    `metrics`: by the name that upstream has for it, the name of what a recipe tells groups apart by.
    """

    arguments: tuple[str, ...] = ()
    metrics: Mapping[str, str] | None


SCORERS: Mapping[str, Scorer] = {
    "last_number": Scorer(metrics=_PLAIN),
    "exact_answer": Scorer(metrics=_PLAIN),
    "gsm8k": Scorer(metrics=_PLAIN),
    "gsm8k_flexible": Scorer(metrics=_PLAIN),
    "math": Scorer(metrics=_PLAIN),
    "math_dapo": Scorer(metrics={"acc": "acc", "score": "score"}),
    "math_verify": Scorer(metrics=_PLAIN),
    "by_data_source": Scorer(metrics=None),
    "target_length": Scorer(arguments=("tokens",), metrics=_PLAIN),
}
REWARDS = tuple(SCORERS)
PROVIDERS = tuple(name for name, one in SCORERS.items() if not one.arguments)


@dataclass(frozen=True, kw_only=True, slots=True)
class RewardFunction:
    """A function in a Python file; `sha256` is over the file's bytes."""

    path: Path
    name: str
    sha256: str


def scorer(text: str, origin: str) -> str:
    """The name of a scorer; raises WrongCall where there is none."""
    if text in SCORERS:
        return text
    fix = did_you_mean(text, REWARDS, f"Known: {', '.join(REWARDS)}")
    raise WrongCall([_problem("reward", text, origin, "there is no reward of that name", fix)])


def argument(name: str, text: str, origin: str) -> object:
    """The value of `reward.NAME`, as JSON."""
    try:
        return strict_json(text)
    except ValueError as error:
        fix = 'Write it as JSON: 64, 0.5, true, "text"'
        problem = _problem(name, text, origin, f"not JSON: {error}", fix)
        raise WrongCall([problem]) from error


def function(text: str, origin: str) -> RewardFunction:
    """The function in FILE:NAME, whose file is read and not run."""
    file, _, name = text.rpartition(":")
    if not file or not name.isidentifier():
        reason, fix = "a function is written FILE:NAME", "Give reward.py:compute_score, for example"
        raise WrongCall([_problem("reward_function", text, origin, reason, fix)])
    path = Path(file).expanduser()
    try:
        content = path.read_bytes()
    except OSError as error:
        reason = f"the file cannot be read: {error.strerror}"
        problem = _problem("reward_function", text, origin, reason, "Give a Python file")
        raise WrongCall([problem]) from error
    return RewardFunction(path=path, name=name, sha256=hashlib.sha256(content).hexdigest())


def argument_problems(
    name: str | None, arguments: Mapping[str, object], origins: Mapping[str, str]
) -> list[Problem]:
    """Arguments that the scorer does not take, and those that it misses."""
    taken = () if name is None else SCORERS[name].arguments
    unknown = [
        _problem(
            f"reward.{each}",
            value,
            origins[f"reward.{each}"],
            f"{name or 'no scorer'} takes no such argument",
            f"Bind one of: {', '.join(taken)}" if taken else f"Leave out reward.{each}",
        )
        for each, value in arguments.items()
        if each not in taken
    ]
    missing = [
        _problem(
            f"reward.{each}",
            None,
            origins["reward"],
            f"{name} needs it",
            f"Add --bind reward.{each}=...",
        )
        for each in taken
        if each not in arguments
    ]
    return unknown + missing


def trust_problems(
    bound: RewardFunction | None, trusted: str | None, origins: Mapping[str, str]
) -> list[Problem]:
    """Why the function may not be bound: its digest is not stated, or it is another one."""
    option = "--trust-reward-code"
    if bound is None:
        if trusted is None:
            return []
        origin = origins["trust_reward_code"]
        reason, fix = "no reward function is bound", "Add --reward-function FILE:NAME"
        return [_problem(option, trusted, origin, reason, fix)]
    if bound.sha256 == trusted:
        return []
    stated = "nothing says that it may run" if trusted is None else "another digest is trusted"
    reason = f"{bound.path.name} has the digest {bound.sha256}, and {stated}"
    fix = f"Read the file; if it may run, give {option} {bound.sha256}"
    return [_problem(option, trusted, origins["reward_function"], reason, fix)]


def both_problems(name: str | None, bound: RewardFunction | None) -> list[Problem]:
    """A scorer and a function: one of them would be in vain."""
    if name is None or bound is None:
        return []
    reason, fix = "a reward function is bound too, and one thing scores", "Keep one of them"
    return [_problem("reward", name, "--bind", reason, fix)]


def _problem(field: str, value: object, origin: str, reason: str, fix: str) -> Problem:
    return Problem(field=field, value=value, origin=origin, reason=reason, fix=fix)
