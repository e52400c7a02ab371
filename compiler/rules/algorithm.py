"""`algorithm`: advantages, KL in the reward, group filtering, rollout correction.

Sources: verl/trainer/ppo/core_algos.py:240-900, verl/trainer/ppo/v1/utils.py:150-190,
verl/trainer/ppo/v1/trainer_base.py:1480-1620.
"""

from collections.abc import Mapping
from typing import Any

from miniverl.compiler.rule import (
    Class,
    Context,
    Rule,
    Verdict,
    behind,
    dead,
    lowers,
    requires,
)
from miniverl.compiler.rules.limits import truth
from miniverl.compiler.rules.repeated import behind_switch, keeps_class, off

_CORRECTION = "algorithm.rollout_correction"
_FILTER = "algorithm.filter_groups"
_CONTROL = "algorithm.kl_ctrl"

# Registered at the pin, and run by its default trainer.
_OTHER_ESTIMATORS = (
    "gae",
    "grpo_vectorized",
    "grpo_passk",
    "rloo",
    "rloo_vectorized",
    "reinforce_plus_plus",
    "reinforce_plus_plus_baseline",
    "opo",
    "gpg",
)

# Registered at the pin, and stopped by its default trainer at the first step.
_BROKEN_ESTIMATORS: Mapping[str, str] = {
    "remax": "it hands over no reward of a greedy rollout to subtract",
    "gdpo": "it hands over no separate rewards to normalise",
    "optimal_token_baseline": "it hands over no sum of squared probabilities",
    "tir_optimal_token_baseline": "it hands over no sum of squared probabilities",
}


def _adv_estimator(field: str, value: Any, context: Context) -> Verdict:
    if value == "grpo":
        return Verdict(
            classification=Class.EXACT,
            reason="rewards less the mean of their group, the same to every token of a response",
            label="advantage.estimator",
            target="advantage.estimator",
            lowered="grpo",
        )
    if value in _OTHER_ESTIMATORS:
        reason = "group-relative advantages are the one kind computed here"
    elif isinstance(value, str) and value in _BROKEN_ESTIMATORS:
        reason = f"the pin's default trainer stops at its first step: {_BROKEN_ESTIMATORS[value]}"
    else:
        reason = "no estimator of this name is registered at the pin, which stops after its first rollout"
    return Verdict(
        classification=Class.NOT_IMPLEMENTED if value in _OTHER_ESTIMATORS else Class.UNSUPPORTED,
        reason=reason,
        label="advantage.estimator",
        fix=f"Set {field}=grpo",
    )


def _read_by(field: str, *estimators: str) -> Rule:
    return behind(
        field,
        lambda context: context.leaves["algorithm.adv_estimator"] in estimators,
        off=f"not read: only the estimators {' and '.join(estimators)} discount",
        on="waits for algorithm.adv_estimator, which is not run here",
    )


RULES: tuple[Rule, ...] = (
    keeps_class("algorithm._target_"),
    Rule("algorithm.adv_estimator", _adv_estimator),
    lowers(
        "algorithm.norm_adv_by_std_in_grpo",
        "advantage.divides_by_std",
        "whether a group's advantages are divided by its standard deviation; off is Dr.GRPO",
        limit=truth("algorithm.norm_adv_by_std_in_grpo"),
        read_if=lambda context: context.leaves["algorithm.adv_estimator"] == "grpo",
        unread="not read: the estimator is not grpo",
    ),
    _read_by("algorithm.gamma", "gae", "reinforce_plus_plus"),
    _read_by("algorithm.lam", "gae"),
    requires(
        "algorithm.use_kl_in_reward",
        False,
        reason="rewards are used as they are scored",
        otherwise=Class.NOT_IMPLEMENTED,
        because="the KL to the reference is a term of the loss here, never of the reward",
        fix="Set algorithm.use_kl_in_reward=False, and actor_rollout_ref.actor.use_kl_loss=True if you want the KL",
    ),
    keeps_class(f"{_CONTROL}._target_"),
    *(
        behind_switch(field, "algorithm.use_kl_in_reward")
        for field in (
            "algorithm.kl_penalty",
            f"{_CONTROL}.type",
            f"{_CONTROL}.kl_coef",
            f"{_CONTROL}.horizon",
            f"{_CONTROL}.target_kl",
        )
    ),
    keeps_class(f"{_FILTER}._target_"),
    off(
        f"{_FILTER}.enable",
        False,
        what="dropping groups whose rewards are all equal, and drawing others",
        because="groups whose rewards are all equal are kept here; they train nothing",
        fix=f"Set {_FILTER}.enable=False",
    ),
    behind_switch(f"{_FILTER}.metric", f"{_FILTER}.enable"),
    dead(f"{_FILTER}.max_num_gen_batches", "the default trainer ignores it, with a warning"),
    behind_switch(f"{_FILTER}.max_inflight_gen_batches", f"{_FILTER}.enable"),
    off(
        f"{_CORRECTION}.rollout_is",
        None,
        what="importance weights between rollout and training",
        because="importance weights between rollout and training are not computed here",
        fix=f"Set {_CORRECTION}.rollout_is=null",
    ),
    off(
        f"{_CORRECTION}.rollout_rs",
        None,
        what="rejecting tokens by rollout and training probabilities",
        because="no token is rejected by its probabilities here",
        fix=f"Set {_CORRECTION}.rollout_rs=null",
    ),
    off(
        f"{_CORRECTION}.bypass_mode",
        False,
        what="taking the rollout's log-probabilities for the old ones",
        because="old log-probabilities are those of the policy before its update, not the rollout's",
        fix=f"Set {_CORRECTION}.bypass_mode=False",
    ),
    behind_switch(f"{_CORRECTION}.rollout_is_threshold", f"{_CORRECTION}.rollout_is"),
    behind_switch(f"{_CORRECTION}.rollout_is_batch_normalize", f"{_CORRECTION}.rollout_is"),
    behind_switch(f"{_CORRECTION}.rollout_rs_threshold", f"{_CORRECTION}.rollout_rs"),
    dead(f"{_CORRECTION}.loss_type", "the default trainer keeps the loss of policy_loss.loss_mode"),
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
