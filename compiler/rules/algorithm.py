"""`algorithm`: advantages, KL in the reward, group filtering.

Sources: verl/trainer/ppo/core_algos.py:150-215, :240-900, verl/trainer/ppo/v1/utils.py:150-190,
verl/trainer/ppo/v1/trainer_base.py:160-215, :1590-1620, verl/trainer/ppo/v1/replay_buffer.py:270-300.
"""

from collections.abc import Mapping
from typing import Any, get_args

from miniverl.compiler.rule import (
    Class,
    Context,
    Limit,
    Rule,
    Verdict,
    dead,
    lowers,
    only_if,
    reject,
)
from miniverl.compiler.rules.correction import CORRECTION
from miniverl.compiler.rules.limits import is_number, number, one_of, truth, whole
from miniverl.compiler.rules.repeated import behind_switch, keeps_class, off
from miniverl.compiler.rules.reward import metrics
from miniverl.compiler.rules.switches import (
    estimator,
    filters_groups,
    has_reward_model,
    uses_kl_in_reward,
    uses_kl_loss,
)
from miniverl.engine.algorithm import Estimator

_FILTER = "algorithm.filter_groups"
_CONTROL = "algorithm.kl_ctrl"
_ESTIMATORS: Mapping[str, str] = {
    "gae": "generalised advantages from rewards and a critic's values, whitened over the batch",
    "grpo": "rewards less the mean of their group, the same to every token of a response",
    "grpo_vectorized": "as grpo, always divided by the standard deviation of the group",
    "grpo_passk": "the best response of a group gets its lead over the second, all others nothing",
    "rloo": "rewards less the mean of the others of their group",
    "rloo_vectorized": "rewards less the mean of the others of their group; alone in it, nothing",
    "reinforce_plus_plus": "discounted returns of every token, whitened over the batch",
    "reinforce_plus_plus_baseline": "rewards less the mean of their group, whitened over the batch",
    "opo": "rewards less the mean of their group by length",
    "gpg": "rewards less the mean of their group, scaled up by the share of rewards that are 0",
}
"""Registered at the pin, and run by its default trainer."""

assert set(_ESTIMATORS) == set(get_args(Estimator))

# Registered at the pin, and stopped by its default trainer at the first step.
_BROKEN_ESTIMATORS: Mapping[str, str] = {
    "remax": "it hands over no reward of a greedy rollout to subtract",
    "gdpo": "it hands over no separate rewards to normalise",
    "optimal_token_baseline": "it hands over no sum of squared probabilities",
    "tir_optimal_token_baseline": "it hands over no sum of squared probabilities",
}

KL_ESTIMATORS: Mapping[str, str] = {
    "kl": "k1",
    "k1": "k1",
    "abs": "abs",
    "mse": "k2",
    "k2": "k2",
    "low_var_kl": "k3",
    "k3": "k3",
}
KL_NAMES = (*KL_ESTIMATORS, *(f"{name}+" for name in KL_ESTIMATORS))
NO_SUCH_KL = "the pin has no such estimate of the KL, and stops at its first update"


def kl_estimator(name: str) -> str:
    """`+` keeps the value and takes the gradient of k2 (core_algos.py:2198)."""
    return KL_ESTIMATORS[name.removesuffix("+")] + ("+" if name.endswith("+") else "")


def _adv_estimator(field: str, value: Any, context: Context) -> Verdict:
    if isinstance(value, str) and value in _ESTIMATORS:
        if value == "grpo_passk" and context.leaves["actor_rollout_ref.rollout.n"] == 1:
            return Verdict(
                classification=Class.UNSUPPORTED,
                reason="the pin stops: the best response of a group is compared with its second",
                fix="Set actor_rollout_ref.rollout.n to at least 2",
            )
        return Verdict(
            classification=Class.EXACT,
            reason=_ESTIMATORS[value],
            label="advantage.estimator",
            target="advantage.estimator",
            lowered=value,
        )
    if isinstance(value, str) and value in _BROKEN_ESTIMATORS:
        reason = f"the pin's default trainer stops at its first step: {_BROKEN_ESTIMATORS[value]}"
    else:
        reason = "no estimator of this name is registered at the pin, which stops after its first rollout"
    return Verdict(
        classification=Class.UNSUPPORTED,
        reason=reason,
        label="advantage.estimator",
        fix=f"Set {field} to one of: {', '.join(_ESTIMATORS)}",
    )


def _argument(leaf: str, argument: str, readers: tuple[str, ...], reason: str) -> Rule:
    """A number of the estimators that read it."""
    field = f"algorithm.{leaf}"
    return lowers(
        field,
        f"advantage.{argument}",
        reason,
        to=float,
        limit=number(field, "of at least 0", lambda value: value >= 0),
        read_if=lambda context: estimator(context) in readers,
        unread=f"not read: of the estimators only {' and '.join(readers)} discount",
    )


def _use_kl_in_reward(field: str, value: Any, context: Context) -> Verdict:
    if not truth(field).accepts(value):
        return reject(truth(field))
    if value:
        return Verdict(
            classification=Class.EXACT,
            reason="takes the KL to the initial policy off every token's reward",
            label="kl_reward",
            warning=f"{field} and actor.use_kl_loss are both on: the KL counts in the reward and in the loss"
            if uses_kl_loss(context)
            else None,
        )
    return Verdict(
        classification=Class.EXACT,
        reason="rewards are used as they are scored",
        label="kl_reward",
        target="kl_reward",
        lowered=None,
    )


def _control(field: str, value: Any, context: Context) -> Verdict:
    if value == "fixed":
        return Verdict(
            classification=Class.EXACT,
            reason="the coefficient of the KL stays as it is",
            label="kl_reward.adaptive",
            target="kl_reward.adaptive",
            lowered=None,
        )
    if value == "adaptive":
        return Verdict(
            classification=Class.CONFORMANT,
            reason="moves the coefficient after each step as upstream; a resumed run goes on with the last one, "
            "where upstream starts again from kl_coef",
            label="kl_reward.adaptive",
        )
    return Verdict(
        classification=Class.UNSUPPORTED,
        reason="the pin knows no such control of the KL, and stops",
        fix=f"Set {field}=fixed or {field}=adaptive",
    )


def _adapts(context: Context) -> bool:
    return bool(context.leaves[f"{_CONTROL}.type"] == "adaptive")


def _filter_switch(field: str, value: Any, context: Context) -> Verdict:
    if not truth(field).accepts(value):
        return reject(truth(field))
    if not value:
        return Verdict(
            classification=Class.EXACT,
            reason="groups whose rewards are all equal are kept; they train nothing",
            label="group_filter",
            target="group_filter",
            lowered=None,
        )
    if has_reward_model(context):
        return Verdict(
            classification=Class.UNSUPPORTED,
            reason="the pin stops: a reward model gives nothing beside the reward that a group is told apart by",
            fix=f"Set {field}=False",
        )
    return Verdict(
        classification=Class.CONFORMANT,
        reason="drops groups whose members score alike and samples others; of those that differ the first in the "
        "order of the data are taken, upstream those that finish first; where upstream would go on for ever on "
        "such data, a run here ends with that as its reason",
        label="group_filter",
    )


def _metric(field: str, value: Any, context: Context) -> Verdict:
    known = metrics(context)
    if not isinstance(value, str) or not value:
        return Verdict(
            classification=Class.UNSUPPORTED,
            reason="the pin stops: group filtering needs the name of what tells the members of a group apart",
            fix=f"Set {field} to one of: {', '.join(known or ('acc',))}",
        )
    if known is not None and value not in known:
        return Verdict(
            classification=Class.UNSUPPORTED,
            reason="the bound scorer gives nothing of this name, and upstream stops after its first rollout",
            fix=f"Set {field} to one of: {', '.join(known)}",
        )
    return Verdict(
        classification=Class.EXACT,
        reason="what has to differ within a group; a plain score is called acc",
        label="group_filter.metric",
        target="group_filter.metric",
        lowered=value if known is None else known[value],
    )


RULES: tuple[Rule, ...] = (
    keeps_class("algorithm._target_"),
    Rule("algorithm.adv_estimator", _adv_estimator),
    lowers(
        "algorithm.norm_adv_by_std_in_grpo",
        "advantage.divides_by_std",
        "whether a group's advantages are divided by its standard deviation; off is Dr.GRPO",
        limit=truth("algorithm.norm_adv_by_std_in_grpo"),
        read_if=lambda context: estimator(context) in ("grpo", "grpo_passk"),
        unread="not read: the estimator is neither grpo nor grpo_passk",
    ),
    _argument(
        "gamma", "gamma", ("gae", "reinforce_plus_plus"), "discounts the rewards of later tokens"
    ),
    _argument(
        "lam",
        "gae_lambda",
        ("gae",),
        "weighs later steps of the advantage against the critic's values",
    ),
    Rule("algorithm.use_kl_in_reward", _use_kl_in_reward),
    keeps_class(f"{_CONTROL}._target_"),
    *only_if(
        uses_kl_in_reward,
        "not read: algorithm.use_kl_in_reward is off",
        lowers(
            "algorithm.kl_penalty",
            "kl_reward.estimator",
            "the same estimate of the KL from the sampled tokens",
            to=kl_estimator,
            limit=one_of("algorithm.kl_penalty", *KL_NAMES, because=NO_SUCH_KL),
        ),
        lowers(
            f"{_CONTROL}.kl_coef",
            "kl_reward.coefficient",
            "the weight of the KL, or its first one where it adapts",
            to=float,
            limit=Limit(
                accepts=is_number,
                because="the weight of the KL is a number",
                fix=f"Set {_CONTROL}.kl_coef to a number",
            ),
        ),
        Rule(f"{_CONTROL}.type", _control),
        *only_if(
            _adapts,
            f"not read: {_CONTROL}.type is not adaptive",
            lowers(
                f"{_CONTROL}.target_kl",
                "kl_reward.adaptive.target",
                "the KL that the coefficient moves towards",
                to=float,
                limit=number(f"{_CONTROL}.target_kl", "above 0", lambda target: target > 0),
            ),
            lowers(
                f"{_CONTROL}.horizon",
                "kl_reward.adaptive.horizon",
                "how many trajectories the coefficient takes to move",
                limit=whole(f"{_CONTROL}.horizon", at_least=1),
            ),
        ),
    ),
    keeps_class(f"{_FILTER}._target_"),
    Rule(f"{_FILTER}.enable", _filter_switch),
    *only_if(
        filters_groups,
        f"not read: {_FILTER}.enable is off",
        Rule(f"{_FILTER}.metric", _metric),
        lowers(
            f"{_FILTER}.max_inflight_gen_batches",
            "group_filter.batches_in_flight",
            "bounds the prompts that are sampled at once, and so which ones are dropped",
            classification=Class.LOWERED,
            limit=whole(f"{_FILTER}.max_inflight_gen_batches", at_least=1),
        ),
    ),
    dead(f"{_FILTER}.max_num_gen_batches", "the default trainer ignores it, with a warning"),
    *CORRECTION,
    off(
        "algorithm.use_pf_ppo",
        False,
        what="resampling trajectories by their rewards",
        otherwise=Class.UNSUPPORTED,
        because="the pin's default trainer then pairs trajectories with the advantages of others",
        fix="Set algorithm.use_pf_ppo=False",
    ),
    behind_switch("algorithm.pf_ppo.reweight_method", "algorithm.use_pf_ppo"),
    behind_switch("algorithm.pf_ppo.weight_pow", "algorithm.use_pf_ppo"),
)
