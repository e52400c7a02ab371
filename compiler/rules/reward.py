"""`reward`: what scores a response. A launch names files and models; a scorer is bound by name.

Sources: verl/trainer/ppo/reward.py:60-175, verl/experimental/reward_loop/reward_loop.py:235-330.
"""

from typing import Any

from miniverl.compiler.rule import Class, Context, Rule, Verdict, behind, dead, notes, section
from miniverl.compiler.rules.repeated import keeps_class, off
from miniverl.compiler.rules.reward_model import REWARD_MODEL, lowered_model
from miniverl.compiler.rules.switches import has_reward_model

_MANAGER = "reward.reward_manager"
_FUNCTION = "reward.custom_reward_function"
_SANDBOX = "reward.sandbox_fusion"

_OTHER_MANAGERS = {
    "dapo": "takes a penalty for long responses off the score",
    "gdpo": "scores by several keys at once",
    "rate_limited": "asks a scoring service",
}

_PLAIN = {"function": None, "model": None, "overlong_penalty": None}


def _manager(field: str, value: Any, context: Context) -> Verdict:
    """`remote` is `naive` in other processes; both choose a scorer by a row's data_source."""
    if value in ("naive", "remote"):
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
    scorer = context.bindings["reward"]
    arguments = context.bindings["reward_arguments"]
    return Verdict(
        classification=Class.CONFORMANT,
        reason="scores each response once, at its last token; the bound scorer stands in for the one "
        "that upstream picks by data_source",
        label="reward.scorer",
        target="reward",
        lowered=None if scorer is None else {**_PLAIN, "scorer": scorer, "arguments": arguments},
    )


def _scored_by_model(context: Context) -> Verdict:
    return Verdict(
        classification=Class.CONFORMANT,
        reason="puts the reward model's score at each response's last token, and scores nothing itself",
        label="reward.scorer",
        target="reward",
        lowered={
            **_PLAIN,
            "scorer": "reward_model",
            "arguments": {},
            "model": lowered_model(context),
        },
    )


def _takes_function(context: Context) -> bool:
    return bool(context.leaves[f"{_FUNCTION}.path"])


def _has_sandbox(context: Context) -> bool:
    return bool(context.leaves[f"{_SANDBOX}.url"])


RULES: tuple[Rule, ...] = (
    keeps_class("reward._target_"),
    notes(
        "reward.num_workers",
        Class.DISTRIBUTED,
        "how many processes score upstream; responses are scored in turn here",
    ),
    off(
        f"{_FUNCTION}.path",
        None,
        what="a reward function of the user's",
        because="code named in a launch is never run here",
        fix=f"Set {_FUNCTION}.path=null, and bind a scorer by name with --bind reward=NAME",
    ),
    behind(
        f"{_FUNCTION}.name",
        _takes_function,
        off=f"not read: {_FUNCTION}.path is null",
        on=f"waits for {_FUNCTION}.path, which is not run here",
    ),
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
    behind(
        f"{_FUNCTION}.reward_kwargs.*",
        _takes_function,
        off=f"not read: {_FUNCTION}.path is null",
        on=f"waits for {_FUNCTION}.path, which is not run here",
    ),
    behind(
        "reward.reward_kwargs.*",
        lambda context: context.leaves[f"{_MANAGER}.name"] == "dapo",
        off="not read: only the manager dapo has it",
        on=f"waits for {_MANAGER}.name, which is not run here",
    ),
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
