"""`reward`: what scores a response. A launch names files and models; a scorer or a function is bound.

Sources: verl/trainer/ppo/reward.py:60-175, verl/experimental/reward_loop/reward_loop.py:235-330.
"""

from collections.abc import Mapping
from typing import Any

from miniverl.compiler.rule import Class, Context, Rule, Verdict, behind, dead, notes, section
from miniverl.compiler.rules import overlong, reward_function
from miniverl.compiler.rules.repeated import keeps_class, off
from miniverl.compiler.rules.reward_model import REWARD_MODEL, lowered_model
from miniverl.compiler.rules.switches import (
    has_reward_model,
    scored_by_function,
)

_MANAGER = "reward.reward_manager"
_SANDBOX = "reward.sandbox_fusion"

_OTHER_MANAGERS = {
    "gdpo": "scores by several keys at once",
    "rate_limited": "asks a scoring service",
}


def metrics(context: Context) -> Mapping[str, str] | None:
    """What tells the members of a group apart: upstream's names, and a recipe's; None where only the scorer knows."""
    known: Mapping[str, str] | None = context.bindings["reward_metrics"]
    if known is None:
        return None
    if not overlong.penalises(context):
        return known
    return {
        name: name for name in (*known, *overlong.told(context))
    }  # the score without the penalty


def _manager(field: str, value: Any, context: Context) -> Verdict:
    """`remote` is `naive` in other processes; all three choose a scorer by a row's data_source."""
    if value in ("naive", "remote", "dapo"):
        if missing := overlong.missing(context):
            return Verdict(
                classification=Class.UNSUPPORTED,
                reason="the pin stops: of the penalty for long responses a part is missing",
                fix=f"Set {', '.join(missing)}",
            )
        return _scored_by_model(context) if has_reward_model(context) else _scored_by_rule(context)
    if isinstance(value, str) and value in _OTHER_MANAGERS:
        return Verdict(
            classification=Class.NOT_IMPLEMENTED,
            reason=f"this manager {_OTHER_MANAGERS[value]}, which is not done here",
            fix=f"Set {field}=naive",
        )
    return Verdict(
        classification=Class.UNSUPPORTED,
        reason="no reward manager of this name is registered at the pin, which stops",
        fix=f"Set {field}=naive",
    )


def _scored_by_rule(context: Context) -> Verdict:
    by = (
        "the user's function"
        if scored_by_function(context)
        else "the bound scorer stands in for the one that upstream picks by data_source"
    )
    return Verdict(
        classification=Class.CONFORMANT,
        reason=f"scores each response once, at its last token; {by}",
        label="reward.scorer",
        target="reward",
        lowered=_by_function(context) if scored_by_function(context) else _by_name(context),
    )


def _by_name(context: Context) -> dict[str, Any] | None:
    scorer = context.bindings["reward"]
    if scorer is None:
        return None
    return {
        "scorer": scorer,
        "arguments": context.bindings["reward_arguments"],
        "function": None,
        "model": None,
        "overlong_penalty": overlong.lowered_penalty(context),
    }


def _by_function(context: Context) -> dict[str, Any] | None:
    function = context.bindings["reward_function"]
    if function is None:
        return None
    return {
        "scorer": "function",
        "arguments": reward_function.lowered_arguments(context),
        "function": function,
        "model": None,
        "overlong_penalty": overlong.lowered_penalty(context),
    }


def _scored_by_model(context: Context) -> Verdict:
    return Verdict(
        classification=Class.CONFORMANT,
        reason="puts the reward model's score at each response's last token, and scores nothing itself",
        label="reward.scorer",
        target="reward",
        lowered={
            "scorer": "reward_model",
            "arguments": {},
            "function": None,
            "model": lowered_model(context),
            "overlong_penalty": None,
        },
    )


def _has_sandbox(context: Context) -> bool:
    return bool(context.leaves[f"{_SANDBOX}.url"])


RULES: tuple[Rule, ...] = (
    keeps_class("reward._target_"),
    notes(
        "reward.num_workers",
        Class.DISTRIBUTED,
        "how many processes score upstream; responses are scored in turn here",
    ),
    *reward_function.RULES,
    Rule(f"{_MANAGER}.name", _manager),
    off(
        f"{_MANAGER}.source",
        "register",
        what="a reward manager of the user's",
        because="code named in a launch is never run here",
        fix=f"Set {_MANAGER}.source=register",
    ),
    keeps_class(f"{_MANAGER}._target_"),
    section(
        f"{_MANAGER}.module.*",
        keeps_class("*._target_"),
        dead("*", f"not read: {_MANAGER}.source takes a registered manager"),
    ),
    REWARD_MODEL,
    section(
        f"{_SANDBOX}.*",
        keeps_class("*._target_"),
        off(
            f"{_SANDBOX}.url",
            None,
            what="running responses as code, on a service",
            because="no service runs a response as code here",
            fix=f"Set {_SANDBOX}.url=null",
        ),
        behind(
            "*",
            _has_sandbox,
            off=f"not read: {_SANDBOX}.url is null",
            on=f"waits for {_SANDBOX}.url, which is not asked here",
        ),
    ),
)

APPENDED: tuple[Rule, ...] = (
    *reward_function.APPENDED,
    *overlong.APPENDED,
    *(
        behind(
            f"reward.{name}",
            lambda context: context.leaves[f"{_MANAGER}.name"] == "rate_limited",
            off="not read: only the manager rate_limited has it",
            on=f"waits for {_MANAGER}.name, which is not run here",
        )
        for name in (
            "timeout",
            "max_concurrent",
            "max_rpm",
            "max_tpm",
            "estimated_tokens_per_request",
        )
    ),
)
