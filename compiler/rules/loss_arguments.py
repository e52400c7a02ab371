"""Arguments of the policy losses: each is read by some losses of `actor_rollout_ref.actor`, and by no other.

Sources: verl/trainer/ppo/core_algos.py:1318-1336, :1411-1430, :1573-1680, :1783-1800, :1879-1890, :2015-2035.
"""

from typing import Any

from miniverl.compiler.rule import (
    Class,
    Condition,
    Context,
    Limit,
    Rule,
    Verdict,
    only_if,
    reject,
    set_in_vain,
)
from miniverl.compiler.rules.limits import clip, is_number, number
from miniverl.compiler.rules.switches import loss_mode

_ACTOR = "actor_rollout_ref.actor"
_LOSS = f"{_ACTOR}.policy_loss"
_CLIPPING = ("vanilla", "gspo", "cispo", "dppo_tv", "dppo_kl", "geo_mean", "clip_cov")
_CAPPED = ("vanilla", "dppo_tv", "dppo_kl")


def _chosen(*modes: str) -> Condition:
    return lambda context: loss_mode(context) in modes


def _unless(modes: tuple[str, ...]) -> str:
    return f"not read: only the policy loss {' or '.join(modes)} has it"


def _clip(side: str) -> Rule:
    """Null leaves the bound to clip_ratio (core_algos.py:1321)."""
    target = f"policy_loss.arguments.clip_{side}"
    limit = clip(f"{_ACTOR}.clip_ratio_{side}")

    def judge(field: str, value: Any, context: Context) -> Verdict:
        if not limit.accepts(value):
            return reject(limit)
        shared = context.leaves[f"{_ACTOR}.clip_ratio"]
        bound = shared if value is None else value
        return Verdict(
            classification=Class.EXACT,
            reason="null leaves this clip to clip_ratio" if value is None else "the same clip",
            label=target,
            target=target,
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


def _bound(field: str, value: Any, context: Context) -> Verdict:
    """The dual clip of one loss, and the largest ratio of others (core_algos.py:1324, :1427, :1508)."""
    name = "dual_clip" if loss_mode(context) == "vanilla" else "ratio_cap"
    target = f"policy_loss.arguments.{name}"
    limit = (
        number(field, "above 1", lambda clip: clip > 1)
        if name == "dual_clip"
        else number(field, "above 0", lambda clip: clip > 0)
    )
    if not limit.accepts(value):
        return reject(limit)
    return Verdict(
        classification=Class.EXACT,
        reason="the same bound on the loss where the advantage is negative"
        if name == "dual_clip"
        else "the largest ratio that weighs a token",
        label=target,
        target=target,
        lowered=float(value),
    )


def _argument(
    field: str, mode: str, argument: str, reason: str, limit: Limit, *, unset: float | None = None
) -> tuple[Rule, ...]:
    """An argument of one loss. Where null is accepted, `unset` is what upstream's code then takes."""
    target = f"policy_loss.arguments.{argument}"

    def judge(field: str, value: Any, context: Context) -> Verdict:
        taken: Any = unset if value is None else value
        if not limit.accepts(taken):
            return reject(limit)
        return Verdict(
            classification=Class.EXACT,
            reason=reason,
            label=target,
            target=target,
            lowered=float(taken),
        )

    return only_if(_chosen(mode), _unless((mode,)), Rule(field, judge))


def _any_number(field: str) -> Limit:
    return Limit(
        accepts=is_number,
        because="only a finite number has a meaning here",
        fix=f"Set {field} to a number",
    )


def _share(field: str) -> Limit:
    return number(field, "above 0 and at most 1", lambda share: 0 < share <= 1)


def _positive(field: str) -> Limit:
    return number(field, "above 0", lambda value: value > 0)


LOSS_ARGUMENTS: tuple[Rule, ...] = (
    *only_if(
        _chosen(*_CLIPPING),
        _unless(_CLIPPING),
        Rule(f"{_ACTOR}.clip_ratio", _clip_ratio),
        _clip("low"),
        _clip("high"),
    ),
    *only_if(_chosen(*_CAPPED), _unless(_CAPPED), Rule(f"{_ACTOR}.clip_ratio_c", _bound)),
    *_argument(
        f"{_ACTOR}.tau_pos",
        "sapo",
        "tau_positive",
        "how steep the gate is where the advantage is positive",
        _positive(f"{_ACTOR}.tau_pos"),
    ),
    *_argument(
        f"{_ACTOR}.tau_neg",
        "sapo",
        "tau_negative",
        "how steep the gate is where the advantage is not positive",
        _positive(f"{_ACTOR}.tau_neg"),
    ),
    *_argument(
        f"{_LOSS}.clip_cov_ratio",
        "clip_cov",
        "share",
        "the share of tokens that are left out",
        _share(f"{_LOSS}.clip_cov_ratio"),
        unset=0.0002,
    ),
    *_argument(
        f"{_LOSS}.clip_cov_lb",
        "clip_cov",
        "covariance_low",
        "tokens are left out above this covariance",
        _any_number(f"{_LOSS}.clip_cov_lb"),
        unset=1.0,
    ),
    *_argument(
        f"{_LOSS}.clip_cov_ub",
        "clip_cov",
        "covariance_high",
        "tokens are left out below this covariance",
        _any_number(f"{_LOSS}.clip_cov_ub"),
        unset=5.0,
    ),
    *_argument(
        f"{_LOSS}.kl_cov_ratio",
        "kl_cov",
        "share",
        "the share of tokens that are held back by a KL term",
        _share(f"{_LOSS}.kl_cov_ratio"),
        unset=0.0002,
    ),
    *_argument(
        f"{_LOSS}.ppo_kl_coef",
        "kl_cov",
        "kl_coefficient",
        "the weight of that KL term",
        _any_number(f"{_LOSS}.ppo_kl_coef"),
        unset=1.0,
    ),
    *_argument(
        f"{_LOSS}.dro_beta",
        "dro",
        "beta",
        "the weight of the quadratic penalty; without one the pin stops at its first update",
        _positive(f"{_LOSS}.dro_beta"),
    ),
)
