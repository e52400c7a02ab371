"""`reward.reward_kwargs`: what the manager dapo takes off the score of a response that nears its limit.

Upstream's tree does not have these leaves: a launch appends them. Source:
verl/experimental/reward_loop/reward_manager/dapo.py:35-60, 98-116.
"""

from collections.abc import Iterator
from typing import Any

from miniverl.compiler.rule import (
    Class,
    Context,
    Limit,
    Rule,
    Verdict,
    dead,
    only_if,
    reject,
)
from miniverl.compiler.rules.limits import is_whole, number, truth, whole
from miniverl.compiler.rules.switches import has_reward_model

_MANAGER = "reward.reward_manager.name"
_KWARGS = "reward.reward_kwargs"
_BUFFER = f"{_KWARGS}.overlong_buffer_cfg"
_LIMIT = f"{_KWARGS}.max_resp_len"
_READ = (f"{_BUFFER}.enable", f"{_BUFFER}.len", f"{_BUFFER}.penalty_factor", f"{_BUFFER}.log")
_LABEL = "reward.overlong_penalty"


def uses_dapo(context: Context) -> bool:
    """A reward model's score does not go through the manager (reward_loop.py:141)."""
    return context.leaves[_MANAGER] == "dapo" and not has_reward_model(context)


def penalises(context: Context) -> bool:
    return uses_dapo(context) and context.leaves.get(f"{_BUFFER}.enable") is True


def missing(context: Context) -> tuple[str, ...]:
    """Leaves that the manager reads, and that the launch does not have: the pin stops."""
    if not uses_dapo(context) or not _has_buffer(context):
        return ()
    wanted = (*_READ, _LIMIT) if penalises(context) else _READ[:1]
    return tuple(field for field in wanted if context.leaves.get(field) is None)


def lowered_penalty(context: Context) -> dict[str, Any] | None:
    """The recipe's penalty; None without one, and where its leaves are at fault, as their own rules say."""
    if not penalises(context) or missing(context):
        return None
    return {
        "max_response_tokens": context.leaves[_LIMIT],
        "buffer_tokens": context.leaves[f"{_BUFFER}.len"],
        "factor": context.leaves[f"{_BUFFER}.penalty_factor"],
    }


def told(context: Context) -> tuple[str, ...]:
    """What the manager tells of each response beside what the scorer does."""
    logs = penalises(context) and context.leaves.get(f"{_BUFFER}.log") is True
    return ("overlong_reward", "overlong") if logs else ()


def _has_buffer(context: Context) -> bool:
    return any(field.startswith(f"{_BUFFER}.") for field in context.leaves)


def _length(field: str, value: Any, context: Context) -> Verdict:
    at_least = whole(field, at_least=1)
    if not at_least.accepts(value):
        return reject(at_least)
    limit = context.leaves.get(_LIMIT)
    if is_whole(limit, 1) and limit < value:
        return Verdict(
            classification=Class.UNSUPPORTED,
            reason=f"the pin stops: a penalty over {value} tokens does not fit into {limit}",
            fix=f"Set {field} to at most {limit}",
        )
    return Verdict(
        classification=Class.EXACT,
        reason="over how many tokens before the limit the penalty rises",
        label=f"{_LABEL}.buffer_tokens",
    )


def _exact(field: str, limit: Limit, label: str, reason: str) -> Rule:
    def judge(field: str, value: Any, context: Context) -> Verdict:
        if not limit.accepts(value):
            return reject(limit)
        return Verdict(classification=Class.EXACT, reason=reason, label=label)

    return Rule(field, judge)


def _rules() -> Iterator[Rule]:
    enable, length, factor, log = _READ
    yield from only_if(
        uses_dapo,
        "not read: only a score that the manager dapo gives is lessened",
        _exact(enable, truth(enable), _LABEL, "whether long responses lose some of their score"),
        *only_if(
            penalises,
            f"not read: {enable} is off",
            Rule(length, _length),
            _exact(
                factor,
                number(factor, "of at least 0", lambda value: value >= 0),
                f"{_LABEL}.factor",
                "what a response at the limit loses",
            ),
            _exact(
                _LIMIT,
                whole(_LIMIT, at_least=1),
                f"{_LABEL}.max_response_tokens",
                "the limit that the penalty is counted from, whatever the rollout's is",
            ),
            _exact(log, truth(log), _LABEL, "the penalty is told of every response here"),
        ),
    )
    yield dead(f"{_KWARGS}.*", "not read: the manager dapo has no such argument, and no other any")


APPENDED: tuple[Rule, ...] = tuple(_rules())
