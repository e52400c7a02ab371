"""`algorithm.rollout_correction`: what is done about the sampler being another distribution than the policy.

Sources: verl/trainer/ppo/rollout_corr_helper.py:77-390, :560-660, verl/trainer/ppo/v1/trainer_base.py:1480-1500.
"""

from collections.abc import Iterator
from typing import Any, get_args

from miniverl.compiler.rule import Class, Context, Rule, Verdict, reject, set_in_vain
from miniverl.compiler.rules.limits import is_number, truth
from miniverl.compiler.rules.switches import bypasses_scoring
from miniverl.engine.algorithm import RejectionStatistic

_CORRECTION = "algorithm.rollout_correction"
_WEIGHTS = "rollout_correction.importance_weights"
_REJECTIONS = "rollout_correction.rejections"
_STATISTICS: tuple[str, ...] = get_args(RejectionStatistic)
_LEVELS = ("token", "sequence")


def is_corrected(context: Context) -> bool:
    names = ("rollout_is", "rollout_rs")
    stated = any(context.leaves[f"{_CORRECTION}.{name}"] is not None for name in names)
    return stated or bypasses_scoring(context)


def _bypass(field: str, value: Any, context: Context) -> Verdict:
    if not truth(field).accepts(value):
        return reject(truth(field))
    if not is_corrected(context):
        return Verdict(
            classification=Class.EXACT,
            reason="old log-probabilities are those of the policy before its update, and nothing is corrected",
            label="rollout_correction",
            target="rollout_correction",
            lowered=None,
        )
    return Verdict(
        classification=Class.CONFORMANT if value else Class.EXACT,
        reason="the sampler's log-probabilities are the old ones, and the policy loss stays the one stated"
        if value
        else "old log-probabilities are those of the policy before its update",
        label="rollout_correction.bypasses_scoring",
        target="rollout_correction.bypasses_scoring",
        lowered=value,
    )


def _importance(field: str, value: Any, context: Context) -> Verdict:
    if value is not None and value not in _LEVELS:
        return Verdict(
            classification=Class.UNSUPPORTED,
            reason="the pin weighs tokens or sequences, and stops at anything else",
            fix=f"Set {field} to token or sequence, or to null",
        )
    if value is None:
        return _nothing(_WEIGHTS, "no importance weights between rollout and training", context)
    if bypasses_scoring(context):
        return _refused(field)
    bounds = _bounds(context.leaves[f"{_CORRECTION}.rollout_is_threshold"])
    return Verdict(
        classification=Class.EXACT,
        reason="weighs the loss by how much likelier the policy's own tokens are than the sampler's",
        label=_WEIGHTS,
        target=_WEIGHTS,
        lowered=None
        if bounds is None
        else {
            "level": value,
            "lower": bounds[0],
            "upper": bounds[1],
            "is_batch_normalized": context.leaves[f"{_CORRECTION}.rollout_is_batch_normalize"],
        },
    )


def _threshold(field: str, value: Any, context: Context) -> Verdict:
    if context.leaves[f"{_CORRECTION}.rollout_is"] is None:
        return _unread(field, "rollout_is", context)
    if _bounds(value) is None:
        return Verdict(
            classification=Class.UNSUPPORTED,
            reason="a bound of the weights is a number above 0, or two of them as lower_upper",
            fix=f"Set {field} to a number, or to two in quotes, such as '0.5_2.0'",
        )
    return Verdict(
        classification=Class.EXACT,
        reason="weights above it become it; of two bounds, weights outside of both become 0",
        label=_WEIGHTS,
        warning=_one_number(value),
    )


def _normalises(field: str, value: Any, context: Context) -> Verdict:
    if context.leaves[f"{_CORRECTION}.rollout_is"] is None:
        return _unread(field, "rollout_is", context)
    if not truth(field).accepts(value):
        return reject(truth(field))
    return Verdict(
        classification=Class.EXACT,
        reason="whether the weights of a batch are divided by their mean",
        label=_WEIGHTS,
    )


def _rejection(field: str, value: Any, context: Context) -> Verdict:
    if value is None:
        return _nothing(_REJECTIONS, "no token is rejected by its probabilities", context)
    names = _names(value)
    if not names or any(name not in _STATISTICS for name in names):
        return Verdict(
            classification=Class.UNSUPPORTED,
            reason="the pin has no such statistic to reject by, and stops after its first rollout",
            fix=f"Set {field} to null, or to some of: {', '.join(_STATISTICS)}",
        )
    if bypasses_scoring(context):
        return _refused(field)
    bounds = _rejection_bounds(names, context.leaves[f"{_CORRECTION}.rollout_rs_threshold"])
    return Verdict(
        classification=Class.EXACT,
        reason="masks what leaves its bounds; as upstream, rewards of masked tokens still count in their group",
        label=_REJECTIONS,
        target=_REJECTIONS,
        lowered=bounds,
    )


def _rejection_threshold(field: str, value: Any, context: Context) -> Verdict:
    stated = context.leaves[f"{_CORRECTION}.rollout_rs"]
    names = _names(stated)
    if stated is None:
        return _unread(field, "rollout_rs", context)
    if not names or not set(names) <= set(_STATISTICS):
        reason = f"waits for {_CORRECTION}.rollout_rs, which is rejected"
        return Verdict(classification=Class.INFORMATIONAL, reason=reason)
    if _rejection_bounds(names, value) is None:
        return Verdict(
            classification=Class.UNSUPPORTED,
            reason="the pin stops unless there is one bound for all statistics or one for each: a number above "
            "0, or for k1 two of them as lower_upper",
            fix=f"Set {field} to such bounds in quotes, as {_example(names)}",
        )
    return Verdict(
        classification=Class.EXACT,
        reason="the bounds of each statistic; one bound u of k1 stands for 1/u and u",
        label=_REJECTIONS,
        warning=_one_number(value),
    )


def _loss_type(field: str, value: Any, context: Context) -> Verdict:
    if bypasses_scoring(context) and not context.is_default(field):
        return Verdict(
            classification=Class.UNSUPPORTED,
            reason="the default trainer keeps the loss of policy_loss.loss_mode, whatever is asked for here",
            fix=f"Remove {field}, and set actor_rollout_ref.actor.policy_loss.loss_mode",
        )
    return Verdict(
        classification=Class.INFORMATIONAL,
        reason="the default trainer keeps the loss of policy_loss.loss_mode",
        warning=set_in_vain(field, context),
    )


def _nothing(target: str, reason: str, context: Context) -> Verdict:
    """A part that is off; its path is written only beside another part that is on."""
    if not is_corrected(context):
        return Verdict(classification=Class.EXACT, reason=reason, label="rollout_correction")
    lowered: Any = [] if target == _REJECTIONS else None
    return Verdict(
        classification=Class.EXACT, reason=reason, label=target, target=target, lowered=lowered
    )


def _refused(field: str) -> Verdict:
    return Verdict(
        classification=Class.UNSUPPORTED,
        reason="with bypass_mode the default trainer weighs and rejects nothing, whatever is asked for",
        fix=f"Set {field}=null, or {_CORRECTION}.bypass_mode=False",
    )


def _unread(field: str, switch: str, context: Context) -> Verdict:
    return Verdict(
        classification=Class.INFORMATIONAL,
        reason=f"not read: {_CORRECTION}.{switch} is null",
        warning=set_in_vain(field, context),
    )


def _one_number(value: Any) -> str | None:
    """Hydra reads an unquoted 1_2 as the whole number 12 (pitfall of its grammar)."""
    looks_joined = type(value) is int and value >= 10
    return (
        "an unquoted 1_2 is the number 12 to Hydra; two bounds need quotes"
        if looks_joined
        else None
    )


def _parts(value: Any) -> list[str]:
    parts = value.split(",") if isinstance(value, str) else []
    return [part.strip() for part in parts if part.strip()]


def _names(value: Any) -> list[str]:
    """Upstream drops a statistic that is named again."""
    return list(dict.fromkeys(_parts(value)))


def _bounds(value: Any) -> tuple[float | None, float] | None:
    """(lower, upper) of a threshold; None for one that the pin does not take."""
    if is_number(value):
        return (None, float(value)) if value > 0 else None
    if not isinstance(value, str):
        return None
    try:
        numbers = [float(part) for part in value.strip().split("_", 1)]
    except ValueError:
        return None
    if not all(is_number(one) and one > 0 for one in numbers) or numbers[0] > numbers[-1]:
        return None
    return (numbers[0] if len(numbers) == 2 else None, numbers[-1])


def _rejection_bounds(names: list[str], value: Any) -> list[dict[str, Any]] | None:
    specs = [str(value)] if is_number(value) else _parts(value)
    if len(specs) not in (1, len(names)):
        return None
    each = list(_each_bound(names, specs * len(names) if len(specs) == 1 else specs))
    return each if len(each) == len(names) else None


def _each_bound(names: list[str], specs: list[str]) -> Iterator[dict[str, Any]]:
    for name, spec in zip(names, specs, strict=True):
        bounds = _bounds(spec)
        is_k1 = name.endswith("k1")
        if bounds is None or (bounds[0] is not None and not is_k1):
            return
        lower = (bounds[0] or 1.0 / bounds[1]) if is_k1 else None
        if lower is None or lower <= bounds[1]:
            yield {"statistic": name, "lower": lower, "upper": bounds[1]}


def _example(names: list[str]) -> str:
    return "'" + ",".join("0.5_2.0" if name.endswith("k1") else "0.01" for name in names) + "'"


CORRECTION: tuple[Rule, ...] = (
    Rule(f"{_CORRECTION}.bypass_mode", _bypass),
    Rule(f"{_CORRECTION}.rollout_is", _importance),
    Rule(f"{_CORRECTION}.rollout_is_threshold", _threshold),
    Rule(f"{_CORRECTION}.rollout_is_batch_normalize", _normalises),
    Rule(f"{_CORRECTION}.rollout_rs", _rejection),
    Rule(f"{_CORRECTION}.rollout_rs_threshold", _rejection_threshold),
    Rule(f"{_CORRECTION}.loss_type", _loss_type),
)
