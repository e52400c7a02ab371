"""The policy's loss: clipped surrogate, aggregation, entropy and KL terms of `actor_rollout_ref.actor`.

Sources: verl/trainer/ppo/core_algos.py:1166-1200 (aggregation), :1287-1330 (clips), :2195-2250 (KL),
verl/workers/utils/losses.py:95-150.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from miniverl.compiler.rule import (
    REJECTING,
    Class,
    Context,
    Limit,
    Rule,
    Verdict,
    behind,
    lowers,
    notes,
    refuses,
    reject,
    set_in_vain,
)
from miniverl.compiler.rules.algorithm import KL_NAMES, NO_SUCH_KL, kl_estimator
from miniverl.compiler.rules.limits import is_number, one_of, truth
from miniverl.compiler.rules.loss_arguments import LOSS_ARGUMENTS
from miniverl.compiler.rules.repeated import keeps_class, off
from miniverl.compiler.rules.switches import loss_mode, trains_on_rewards, uses_kl_loss
from miniverl.compiler.rules.update import aggregation

_ACTOR = "actor_rollout_ref.actor"
_LOSS = f"{_ACTOR}.policy_loss"

_LOSSES: Mapping[str, str] = {
    "vanilla": "the same clipped surrogate with dual clip",
    "gspo": "the surrogate of a response's mean ratio; a mean of its own over tokens and responses",
    "sapo": "the surrogate under a soft gate; a mean of its own over tokens and responses",
    "gpg": "the log-probability times the advantage",
    "cispo": "the log-probability times the advantage, under a clipped ratio without gradient",
    "dppo_tv": "trains the tokens whose probability moved little, under a capped ratio",
    "dppo_kl": "trains the tokens whose binary KL is small, under a capped ratio",
    "dro": "the log-probability times the advantage, less a quadratic penalty of its change",
}
# Upstream sums or ranks within each micro-batch, so that its update changes with a setting of memory.
_REDEFINED: Mapping[str, str] = {
    "geo_mean": "is the mean over a mini-batch's responses here; upstream sums means of micro-batches",
    "kl_cov": "ranks the tokens of a whole mini-batch here; upstream those of each micro-batch",
    "clip_cov": "draws from the tokens of a whole mini-batch here; upstream from those of each micro-batch",
}
_NO_TASK = "not read: without task rewards only the teacher's loss is minimised"


def _loss_mode(field: str, value: Any, context: Context) -> Verdict:
    name = value if isinstance(value, str) else ""
    if name in _LOSSES:
        return Verdict(
            classification=Class.EXACT,
            reason=_LOSSES[name],
            label="policy_loss.name",
            target="policy_loss.name",
            lowered=value,
        )
    if name in _REDEFINED:
        return Verdict(
            classification=Class.CONFORMANT,
            reason=f"{_REDEFINED[name]}, so that micro-batches change nothing",
            label="policy_loss.name",
            target="policy_loss.name",
            lowered=value,
            warning=f"{field}={name} {_REDEFINED[name]}",
        )
    known = value == "bypass_mode"
    return Verdict(
        classification=Class.NOT_IMPLEMENTED if known else Class.UNSUPPORTED,
        reason="this loss weighs by settings of its own, which rollout_correction does not feed"
        if known
        else "no policy loss of this name is registered at the pin, which stops at its first update",
        fix=f"Set {field}=vanilla"
        if known
        else f"Set {field} to one of: {', '.join((*_LOSSES, *_REDEFINED))}",
    )


def _of_rewards(rule: Rule) -> Rule:
    """A leaf of the policy loss: where a teacher's loss stands in for it, nothing reads it."""

    def judge(field: str, value: Any, context: Context) -> Verdict:
        verdict = rule.judge(field, value, context)
        if trains_on_rewards(context) or verdict.classification in REJECTING:
            return verdict
        return replace(
            verdict,
            classification=Class.INFORMATIONAL,
            reason=_NO_TASK,
            warning=set_in_vain(field, context),
        )

    return Rule(rule.pattern, judge)


def _use_kl_loss(field: str, value: Any, context: Context) -> Verdict:
    limit = truth(field)
    if not limit.accepts(value):
        return reject(limit)
    if not trains_on_rewards(context):
        return Verdict(
            classification=Class.INFORMATIONAL,
            reason=_NO_TASK,
            target="kl_loss",
            lowered=None,
            warning=set_in_vain(field, context),
        )
    if value:
        return Verdict(
            classification=Class.EXACT,
            reason="adds the KL to the initial policy as a term of the loss",
            label="kl_loss",
        )
    return Verdict(
        classification=Class.EXACT,
        reason="no KL term in the loss, and no reference for one",
        label="kl_loss",
        target="kl_loss",
        lowered=None,
    )


_NO_KL_LOSS = "not read: no KL term is in the loss"

POLICY_LOSS: tuple[Rule, ...] = (
    keeps_class(f"{_LOSS}._target_"),
    *map(
        _of_rewards,
        (
            Rule(f"{_LOSS}.loss_mode", _loss_mode),
            *LOSS_ARGUMENTS,
        ),
    ),
    *aggregation(_ACTOR, "policy_loss."),
    _of_rewards(
        lowers(
            f"{_ACTOR}.entropy_coeff",
            "policy_loss.entropy_coefficient",
            "the same weight of the entropy, which is taken off the loss",
            to=float,
            limit=Limit(
                accepts=is_number,
                because="the weight of the entropy is a number",
                fix=f"Set {_ACTOR}.entropy_coeff to a number; 0 leaves the entropy out of the loss",
            ),
        ),
    ),
    notes(
        f"{_ACTOR}.calculate_entropy",
        Class.INFORMATIONAL,
        "asks for the entropy as a metric, which every step reports here",
        label="metrics",
    ),
    off(
        f"{_ACTOR}.calculate_sum_pi_squared",
        False,
        what="the sum of squared probabilities",
        otherwise=Class.UNSUPPORTED,
        because="only optimal-token baselines read it, which the pin's default trainer cannot run",
        fix=f"Set {_ACTOR}.calculate_sum_pi_squared=False",
    ),
    Rule(f"{_ACTOR}.use_kl_loss", _use_kl_loss),
    lowers(
        f"{_ACTOR}.kl_loss_coef",
        "kl_loss.coefficient",
        "the same constant weight of the KL term",
        to=float,
        limit=Limit(
            accepts=is_number,
            because="the weight of the KL term is a number",
            fix=f"Set {_ACTOR}.kl_loss_coef to a number",
        ),
        read_if=uses_kl_loss,
        unread=_NO_KL_LOSS,
    ),
    lowers(
        f"{_ACTOR}.kl_loss_type",
        "kl_loss.estimator",
        "the same estimate of the KL from the sampled tokens",
        to=kl_estimator,
        limit=one_of(
            f"{_ACTOR}.kl_loss_type",
            *KL_NAMES,
            because=NO_SUCH_KL,
        ),
        read_if=uses_kl_loss,
        unread=_NO_KL_LOSS,
    ),
)

POLICY_LOSS_APPENDED: tuple[Rule, ...] = (
    *(
        refuses(
            f"{_LOSS}.{name}",
            Class.UNSUPPORTED,
            because="the pin stops: this section has no such field",
            fix=f"Set {_ACTOR}.{name} instead",
        )
        for name in ("tau_pos", "tau_neg")
    ),
    behind(
        f"{_LOSS}.rollout_correction.*",
        lambda context: loss_mode(context) == "bypass_mode",
        off="not read: only the policy loss bypass_mode has it",
        on="waits for policy_loss.loss_mode, which is not run here",
    ),
)
