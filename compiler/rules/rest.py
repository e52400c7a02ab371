"""What stands at the top of the tree: engine choice, Ray, transfer queue, profiler, skips, legacy rewards.

Sources: verl/trainer/main_ppo.py:55-70, verl/trainer/ppo/v1/replay_buffer.py:404,
verl/experimental/reward_loop/reward_loop.py:39-90 (where the legacy keys would go).
"""

from typing import Any

from miniverl.compiler import legacy
from miniverl.compiler.rule import (
    Class,
    Context,
    Rule,
    Verdict,
    notes,
    requires,
    section,
)
from miniverl.compiler.rules.repeated import behind_switch, keeps_class, off


def _legacy(pattern: str) -> Rule:
    """Null until somebody sets it; then upstream ignores it, silently."""

    def judge(field: str, value: Any, context: Context) -> Verdict:
        if value is None and field in context.defaults:
            return Verdict(
                classification=Class.INFORMATIONAL,
                reason="a key of before v0.9, not set, as upstream's default",
            )
        heir = legacy.heir(field) or f"reward.{field}"
        has_heir = heir in context.defaults
        return Verdict(
            classification=Class.UNSUPPORTED,
            reason="a key of before v0.9: the pin composes it, and its trainer never reads it",
            fix=f"Set {heir} in its place"
            if has_heir
            else f"Remove {field}: nothing took its place",
        )

    return Rule(pattern, judge)


def _skip(name: str) -> Rule:
    """Replaying dumped rollouts. Only `rollout_tq` is read by the default trainer."""
    switch = f"skip.{name}.enable"
    is_read = name == "rollout_tq"
    return section(
        f"skip.{name}.*",
        off(
            switch,
            False,
            what="replaying dumped rollouts",
            otherwise=Class.NOT_IMPLEMENTED if is_read else Class.UNSUPPORTED,
            because="rollouts are sampled here, never replayed"
            if is_read
            else "the default trainer does not read it: nothing would be replayed",
            fix=f"Set {switch}=False",
        ),
        behind_switch("*", switch),
    )


RULES: tuple[Rule, ...] = (
    requires(
        "model_engine",
        "dp",
        classification=Class.CONFORMANT,
        reason="the tree of FSDP workers, whose arithmetic is that of one device",
        otherwise=Class.NOT_IMPLEMENTED,
        because="another engine brings other leaves, which are not judged here",
        fix="Set model_engine=dp",
    ),
    notes("ray_kwargs.*", Class.DISTRIBUTED, "how upstream starts Ray; there is none here"),
    notes("transfer_queue.*", Class.DISTRIBUTED, "how upstream's processes hand over data"),
    section(
        "global_profiler.*",
        keeps_class("*._target_"),
        notes(
            "*",
            Class.INFORMATIONAL,
            "profiling upstream; it changes no number, and is not run here",
        ),
    ),
    keeps_class("skip._target_"),
    *map(_skip, ("rollout", "rollout_tq", "async_rollout")),
    *map(_legacy, ("custom_reward_function.*", "reward_model.*", "sandbox_fusion.*")),
)
