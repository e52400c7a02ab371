"""`reward.custom_reward_function`: a function of the user's that scores responses in place of upstream's own.

A launch names its file by a path of another machine; what runs here is the file that is bound, by its digest.
Sources: verl/trainer/ppo/reward.py:45-87, verl/experimental/reward_loop/reward_loop.py:141-152.
"""

from typing import Any

from miniverl.compiler.leaf import nested
from miniverl.compiler.rule import Class, Context, Limit, Rule, Verdict, only_if, reject
from miniverl.compiler.rules.limits import is_number
from miniverl.compiler.rules.switches import (
    has_reward_model,
    scored_by_function,
    takes_reward_function,
)

_FUNCTION = "reward.custom_reward_function"
_ARGUMENTS = f"{_FUNCTION}.reward_kwargs"
_LABEL = "reward.function"
_OFF = f"not read: {_FUNCTION}.path is null"
_REPLACED = "not read: a scorer is bound in place of the function"


def lowered_arguments(context: Context) -> dict[str, Any]:
    """What the launch hands to its function beside the response."""
    if not takes_reward_function(context):
        return {}
    start = f"{_ARGUMENTS}."
    found = {field: value for field, value in context.leaves.items() if field.startswith(start)}
    return nested({field.removeprefix(start): value for field, value in found.items()})


def _path(field: str, value: Any, context: Context) -> Verdict:
    if value is None:
        return Verdict(
            classification=Class.INFORMATIONAL,
            reason="off, as upstream's default: a reward function of the user's",
        )
    if not isinstance(value, str) or not value:
        return Verdict(
            classification=Class.UNSUPPORTED,
            reason="the pin reads a Python file of this name, or none where it is null",
            fix=f"Set {field} to the file's name, or to null",
        )
    if has_reward_model(context):
        return Verdict(
            classification=Class.NOT_IMPLEMENTED,
            reason="a function that asks a reward model's server, which is not run here",
            fix=f"Set {field}=null, or reward.reward_model.enable=False",
        )
    if not scored_by_function(context):
        return Verdict(
            classification=Class.CONFORMANT,
            reason="the bound scorer stands in for a function of the user's",
            label=_LABEL,
        )
    return Verdict(
        classification=Class.CONFORMANT,
        reason="a function of the user's scores; what runs is the bound file, whose digest is in the recipe",
        label=_LABEL,
    )


def _name(field: str, value: Any, context: Context) -> Verdict:
    if not isinstance(value, str) or not value:
        return Verdict(
            classification=Class.UNSUPPORTED,
            reason="the pin stops: it does not know which function of the file scores",
            fix=f"Set {field} to the function's name",
        )
    bound = context.bindings["reward_function"]
    return Verdict(
        classification=Class.CONFORMANT,
        reason="names the function; the bound one is called, by the name that it is bound with",
        label=_LABEL,
        warning=f"{field} is {value}, and {bound['name']} is bound in its place"
        if bound and bound["name"] != value
        else None,
    )


def _argument(field: str, value: Any, context: Context) -> Verdict:
    limit = Limit(
        accepts=_is_plain,
        because="an argument is text, a finite number up to 2^53 - 1, a truth value, null, or a list of these",
        fix=f"Give {field} such a value",
    )
    if not limit.accepts(value):
        return reject(limit)
    return Verdict(
        classification=Class.EXACT,
        reason="handed to the function with every response",
        label="reward.arguments",
    )


def _no_arguments(field: str, value: Any, context: Context) -> Verdict:
    if value == {}:
        return Verdict(classification=Class.EXACT, reason="nothing more is handed to the function")
    return Verdict(
        classification=Class.UNSUPPORTED,
        reason="the pin takes a mapping here, and stops with anything else",
        fix=f"Set {field}.NAME=VALUE for each argument, or leave it out",
    )


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(isinstance(name, str) and _is_plain(part) for name, part in value.items())
    return value is None or isinstance(value, str | bool) or is_number(value)


def _read(*rules: Rule) -> tuple[Rule, ...]:
    return only_if(takes_reward_function, _OFF, *only_if(_is_not_replaced, _REPLACED, *rules))


def _is_not_replaced(context: Context) -> bool:
    return scored_by_function(context) or has_reward_model(context)


RULES: tuple[Rule, ...] = (
    Rule(f"{_FUNCTION}.path", _path),
    *_read(Rule(f"{_FUNCTION}.name", _name)),
)
APPENDED: tuple[Rule, ...] = _read(
    Rule(_ARGUMENTS, _no_arguments), Rule(f"{_ARGUMENTS}.*", _argument)
)
