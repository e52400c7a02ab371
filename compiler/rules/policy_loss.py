"""The policy's loss: clipped surrogate, aggregation, entropy and KL terms of `actor_rollout_ref.actor`.

Sources: verl/trainer/ppo/core_algos.py:1166-1200 (aggregation), :1287-1330 (clips), :2195-2250 (KL),
verl/workers/utils/losses.py:95-150.
"""

from collections.abc import Mapping
from typing import Any, get_args

from miniverl.compiler.rule import (
    Class,
    Condition,
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
from miniverl.compiler.rules.limits import is_number, is_whole, number, one_of, truth
from miniverl.compiler.rules.repeated import keeps_class, off
from miniverl.compiler.rules.switches import loss_mode, uses_kl_loss
from miniverl.engine.recipe import AggregationMode

_ACTOR = "actor_rollout_ref.actor"
_LOSS = f"{_ACTOR}.policy_loss"

_OTHER_LOSSES = (
    "gspo",
    "sapo",
    "gpg",
    "cispo",
    "dro",
    "dppo_tv",
    "dppo_kl",
    "geo_mean",
    "kl_cov",
    "clip_cov",
    "bypass_mode",
)

_ESTIMATORS: Mapping[str, str] = {
    "kl": "k1",
    "k1": "k1",
    "abs": "abs",
    "mse": "k2",
    "k2": "k2",
    "low_var_kl": "k3",
    "k3": "k3",
}

_NORMALISED = "seq-mean-token-sum-norm"


def _loss_mode(field: str, value: Any, context: Context) -> Verdict:
    if value == "vanilla":
        return Verdict(
            classification=Class.EXACT,
            reason="the same clipped surrogate with dual clip",
            label="policy_loss.name",
            target="policy_loss.name",
            lowered="vanilla",
        )
    known = value in _OTHER_LOSSES
    return Verdict(
        classification=Class.NOT_IMPLEMENTED if known else Class.UNSUPPORTED,
        reason="the clipped surrogate is the one policy loss computed here"
        if known
        else "no policy loss of this name is registered at the pin, which stops at its first update",
        fix=f"Set {field}=vanilla",
    )


def _clip(side: str) -> Rule:
    """Null leaves the bound to clip_ratio (core_algos.py:1321)."""
    limit = Limit(
        accepts=lambda bound: bound is None or (is_number(bound) and bound >= 0),
        because="a clip is the distance of the probability ratio from 1",
        fix=f"Set {_ACTOR}.clip_ratio_{side} to a number of at least 0, or to null",
    )

    def judge(field: str, value: Any, context: Context) -> Verdict:
        if not limit.accepts(value):
            return reject(limit)
        shared = context.leaves[f"{_ACTOR}.clip_ratio"]
        bound = shared if value is None else value
        return Verdict(
            classification=Class.EXACT,
            reason="null leaves this clip to clip_ratio" if value is None else "the same clip",
            label=f"policy_loss.arguments.clip_{side}",
            target=f"policy_loss.arguments.clip_{side}",
            lowered=float(bound) if is_number(bound) else None,
        )

    return Rule(f"{_ACTOR}.clip_ratio_{side}", judge)


def _clip_ratio(field: str, value: Any, context: Context) -> Verdict:
    left = [
        f"policy_loss.arguments.clip_{side}"
        for side in ("low", "high")
        if context.leaves[f"{_ACTOR}.clip_ratio_{side}"] is None
    ]
    if not left:
        return Verdict(
            classification=Class.INFORMATIONAL,
            reason="not read: clip_ratio_low and clip_ratio_high are set",
            warning=set_in_vain(field, context),
        )
    limit = number(field, "of at least 0", lambda clip: clip >= 0)
    if not limit.accepts(value):
        return reject(limit)
    return Verdict(
        classification=Class.EXACT,
        reason="the clip of each side that has none of its own",
        label=", ".join(left),
    )


def _horizon(field: str, value: Any, context: Context) -> Verdict:
    target = "policy_loss.aggregation.horizon"
    if context.leaves[f"{_ACTOR}.loss_agg_mode"] != _NORMALISED:
        return Verdict(
            classification=Class.INFORMATIONAL,
            reason=f"not read: loss_agg_mode is not {_NORMALISED}",
            target=target,
            lowered=None,
            warning=set_in_vain(field, context),
        )
    if value is None:
        return Verdict(
            classification=Class.CONFORMANT,
            reason="null divides upstream by the longest response of each micro-batch, so that its sum "
            "depends on micro-batching; here the divisor is data.max_response_length",
            label=target,
            target=target,
            lowered=context.leaves["data.max_response_length"],
            warning="the loss is scaled otherwise than upstream, by a fixed divisor: "
            f"state {field} to make both agree",
        )
    if not is_whole(value, 1):
        return Verdict(
            classification=Class.UNSUPPORTED,
            reason="the divisor of a response's summed loss is a count of tokens",
            fix=f"Set {field} to a whole number of at least 1",
        )
    return Verdict(
        classification=Class.EXACT,
        reason="divides each response's summed loss",
        label=target,
        target=target,
        lowered=value,
    )


def _use_kl_loss(field: str, value: Any, context: Context) -> Verdict:
    limit = truth(field)
    if not limit.accepts(value):
        return reject(limit)
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


def _kl_estimator(value: str) -> str:
    """`+` keeps the value and takes the gradient of k2 (core_algos.py:2198)."""
    return _ESTIMATORS[value.removesuffix("+")] + ("+" if value.endswith("+") else "")


def _chosen(modes: tuple[str, ...]) -> Condition:
    return lambda context: loss_mode(context) in modes


_NO_KL_LOSS = "not read: actor.use_kl_loss is off"

POLICY_LOSS: tuple[Rule, ...] = (
    keeps_class(f"{_LOSS}._target_"),
    Rule(f"{_LOSS}.loss_mode", _loss_mode),
    *(
        behind(
            field,
            _chosen(modes),
            off=f"not read: only the policy loss {' or '.join(modes)} has it",
            on="waits for policy_loss.loss_mode, which is not run here",
        )
        for field, modes in (
            (f"{_ACTOR}.tau_pos", ("sapo",)),
            (f"{_ACTOR}.tau_neg", ("sapo",)),
            (f"{_LOSS}.clip_cov_ratio", ("clip_cov",)),
            (f"{_LOSS}.clip_cov_lb", ("clip_cov",)),
            (f"{_LOSS}.clip_cov_ub", ("clip_cov",)),
            (f"{_LOSS}.kl_cov_ratio", ("kl_cov",)),
            (f"{_LOSS}.ppo_kl_coef", ("kl_cov",)),
            (f"{_LOSS}.dro_beta", ("dro",)),
        )
    ),
    Rule(f"{_ACTOR}.clip_ratio", _clip_ratio),
    _clip("low"),
    _clip("high"),
    lowers(
        f"{_ACTOR}.clip_ratio_c",
        "policy_loss.arguments.dual_clip",
        "the same bound on the loss where the advantage is negative",
        to=float,
        limit=number(f"{_ACTOR}.clip_ratio_c", "above 1", lambda clip: clip > 1),
    ),
    lowers(
        f"{_ACTOR}.loss_agg_mode",
        "policy_loss.aggregation.mode",
        "the same mean over the tokens and responses of a mini-batch",
        limit=one_of(
            f"{_ACTOR}.loss_agg_mode",
            *get_args(AggregationMode),
            because="the pin knows no such aggregation",
        ),
    ),
    Rule(f"{_ACTOR}.loss_scale_factor", _horizon),
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
        to=_kl_estimator,
        limit=one_of(
            f"{_ACTOR}.kl_loss_type",
            *_ESTIMATORS,
            *(f"{name}+" for name in _ESTIMATORS),
            because="the pin has no such estimate of the KL, and stops at its first update",
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
        _chosen(("bypass_mode",)),
        off="not read: only the policy loss bypass_mode has it",
        on="waits for policy_loss.loss_mode, which is not run here",
    ),
)
