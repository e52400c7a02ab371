"""`critic`: the value model of generalised advantages. Without one, nothing reads this section."""

from typing import Any

from miniverl.compiler.rule import Class, Context, Rule, Verdict, behind, section
from miniverl.compiler.rules.repeated import keeps_class
from miniverl.compiler.rules.switches import has_critic


def _enable(field: str, value: Any, context: Context) -> Verdict:
    """verl/trainer/ppo/utils.py:98."""
    needed = context.leaves["algorithm.adv_estimator"] == "gae"
    if has_critic(context):
        return Verdict(
            classification=Class.NOT_IMPLEMENTED,
            reason="this launch trains a critic, and there is none here yet",
            fix="Set algorithm.adv_estimator=grpo" if needed else f"Set {field}=False",
        )
    if needed:
        return Verdict(
            classification=Class.UNSUPPORTED,
            reason="the pin stops: generalised advantages need the values of a critic",
            fix="Set algorithm.adv_estimator=grpo",
        )
    return Verdict(
        classification=Class.EXACT,
        reason="no critic: this estimator takes its advantages from rewards alone",
        label="advantage.estimator",
    )


_REST = behind(
    "*",
    has_critic,
    off="not read: this launch has no critic",
    on="waits for the critic, which is not run here (critic.enable)",
)

RULES: tuple[Rule, ...] = (
    section(
        "critic.*",
        Rule("critic.enable", _enable),
        keeps_class("*._target_"),
        _REST,
        # The one budget of tokens that a critic of the default trainer reads is not in the tree.
        appended=(Rule("critic.ppo_infer_max_token_len_per_gpu", _REST.judge),),
    ),
)
