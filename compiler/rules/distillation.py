"""`distillation`: learning from teachers' log-probabilities. Disabled, nothing reads this section.

Sources: verl/trainer/distillation/losses.py:43-300, verl/workers/config/distillation.py:60-330,
verl/trainer/ppo/v1/trainer_base.py:776-785.
"""

from collections.abc import Mapping
from typing import Any

from miniverl.compiler import bound_quantization
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
    set_in_vain,
)
from miniverl.compiler.rules.algorithm import KL_ESTIMATORS
from miniverl.compiler.rules.limits import clip, is_number, number, truth, whole
from miniverl.compiler.rules.repeated import keeps_class
from miniverl.compiler.rules.switches import distils
from miniverl.compiler.rules.teachers import TEACHERS, teacher_entries, unstated_of_teachers

_LOSS = "distillation.distillation_loss"
_TOP_K = "forward_kl_topk"
_LOSSES: Mapping[str, str] = {**KL_ESTIMATORS, _TOP_K: _TOP_K}
_NO_TEACHER = "not read: this launch has no teacher"


def _enabled(field: str, value: Any, context: Context) -> Verdict:
    if not truth(field).accepts(value):
        return reject(truth(field))
    if not value:
        return Verdict(
            classification=Class.EXACT,
            reason="no teacher: responses are learned from by their rewards alone",
            label="distillation",
            target="distillation",
            lowered=None,
        )
    if missing := unstated_of_teachers(context):
        reason = f"the pin stops: {', '.join(missing)} is left out"
        return _unsupported(reason, f"State +{missing[0]}=...")
    bound = context.bindings["teachers"]
    return Verdict(
        classification=Class.EXACT,
        reason="teachers score the student's own responses, at temperature 1 as upstream's",
        label="distillation.teachers",
        target="distillation.teachers",
        lowered=[
            {
                "key": entry.key,
                "weights_sha256": bound.get(entry.key),
                "dtype": context.bindings["compute_dtype"],
                **bound_quantization.part(context, bound_quantization.TEACHER),
            }
            for entry in teacher_entries(context)
        ],
        warning=_temperature_differs(context),
    )


def _temperature_differs(context: Context) -> str | None:
    temperature = context.leaves["actor_rollout_ref.rollout.temperature"]
    if temperature == 1:
        return None
    return (
        f"the student's log-probabilities are those at rollout.temperature {temperature}, the teachers' "
        "at 1, as upstream's: equal models differ then"
    )


def _mode(context: Context) -> object:
    return context.leaves[f"{_LOSS}.loss_mode"]


def _by_policy_gradient(context: Context) -> bool:
    return context.leaves[f"{_LOSS}.use_policy_gradient"] is True


def _loss_mode(field: str, value: Any, context: Context) -> Verdict:
    refused = _refusal(field, value, context)
    if refused is not None:
        return refused
    return Verdict(
        classification=Class.EXACT,
        reason="how far the student is from its teacher, token by token",
        label="distillation.loss",
        target="distillation.loss",
        lowered=_LOSSES[value],
        warning=_pointless(field, value, context),
    )


def _refusal(field: str, value: Any, context: Context) -> Verdict | None:
    actor = "actor_rollout_ref.actor"
    if not isinstance(value, str) or value not in _LOSSES:
        reason = "the pin has no such distillation loss, and stops"
        return _unsupported(reason, f"Set {field} to one of: {', '.join(_LOSSES)}")
    if value == "k1" and not _by_policy_gradient(context):
        reason = "the pin stops: minimised itself, k1 has a gradient that knows no teacher"
        return _unsupported(reason, f"Set {_LOSS}.use_policy_gradient=True, or {field}=k3")
    if value == _TOP_K and context.leaves[f"{actor}.strategy"] == "fsdp2":
        reason = "the pin's FSDP2 workers do not compute it, and stop"
        return _unsupported(reason, f"Set {actor}.strategy=fsdp")
    if value == _TOP_K and context.leaves[f"{actor}.fsdp_config.pad_to_length"] is True:
        reason = "the pin stops at padded sequences with it"
        return _unsupported(reason, f"Set {actor}.pad_to_length=False")
    return None


def _pointless(field: str, value: str, context: Context) -> str | None:
    if value == "kl" and not _by_policy_gradient(context):
        return f"{field}=kl minimised itself has a gradient that knows no teacher; upstream stops only at k1"
    if value == _TOP_K and _by_policy_gradient(context):
        return (
            f"{field}={_TOP_K} by policy gradient trains the sampled token alone; "
            "what the teacher says of others is not used"
        )
    return None


def _only_top_k(name: str, path: str, reason: str, limit: Limit) -> Rule:
    target = f"distillation.{path}"

    def judge(field: str, value: Any, context: Context) -> Verdict:
        if _mode(context) != _TOP_K:
            return Verdict(
                classification=Class.INFORMATIONAL,
                reason=f"not read: only {_TOP_K} has it",
                target=target,
                lowered=None,
                warning=set_in_vain(field, context),
            )
        if not limit.accepts(value):
            return reject(limit)
        lowered = float(value) if type(value) is float else value
        return Verdict(
            classification=Class.EXACT, reason=reason, label=target, target=target, lowered=lowered
        )

    return Rule(f"{_LOSS}.{name}", judge)


def _use_policy_gradient(field: str, value: Any, context: Context) -> Verdict:
    if not truth(field).accepts(value):
        return reject(truth(field))
    clips = [_clip(side, context) for side in ("low", "high")]
    return Verdict(
        classification=Class.EXACT,
        reason="the loss of a token is its disadvantage in a clipped surrogate with dual clip 3"
        if value
        else "the loss itself is minimised",
        label="distillation.policy_gradient_clips",
        target="distillation.policy_gradient_clips",
        lowered=clips if value else None,
    )


def _clip(side: str, context: Context) -> float | None:
    own = context.leaves[f"{_LOSS}.clip_ratio_{side}"]
    bound = context.leaves[f"{_LOSS}.clip_ratio"] if own is None else own
    return float(bound) if is_number(bound) else None


def _side(name: str) -> Rule:
    field = f"{_LOSS}.{name}"
    limit = clip(field)

    def judge(field: str, value: Any, context: Context) -> Verdict:
        if not limit.accepts(value):
            return reject(limit)
        return Verdict(
            classification=Class.EXACT,
            reason="the same clip",
            label="distillation.policy_gradient_clips",
        )

    return Rule(field, judge)


def _shared_clip(field: str, value: Any, context: Context) -> Verdict:
    """As actor.clip_ratio: the clip of a side that has none (losses.py:286)."""
    if all(context.leaves[f"{_LOSS}.clip_ratio_{side}"] is not None for side in ("low", "high")):
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
        label="distillation.policy_gradient_clips",
    )


def _coefficient(field: str, value: Any, context: Context) -> Verdict:
    target = "distillation.coefficient"
    if not is_number(value):
        return _unsupported("the weight of the loss is a number", f"Set {field} to a number")
    if context.leaves[f"{_LOSS}.use_task_rewards"] is not True:
        return Verdict(
            classification=Class.INFORMATIONAL,
            reason="not read: without task rewards the teacher's loss has weight 1",
            target=target,
            lowered=1.0,
            warning=set_in_vain(field, context),
        )
    return Verdict(
        classification=Class.EXACT,
        reason="the weight of the teacher's loss beside the policy loss",
        label=target,
        target=target,
        lowered=float(value),
    )


def _teacher_key(field: str, value: Any, context: Context) -> Verdict:
    routes = len(teacher_entries(context)) > 1
    columns = context.bindings["train_columns"]
    if not isinstance(value, str) or (routes and columns and value not in columns):
        return _unsupported(
            "prompts are given to teachers by a column of their rows, and this is none",
            f"Set {field} to one of: {', '.join(sorted(columns)) or 'data_source'}",
        )
    return Verdict(
        classification=Class.EXACT if routes else Class.INFORMATIONAL,
        reason="the column that says which teacher a prompt has"
        if routes
        else "not read: a single teacher takes every prompt",
        label="distillation.routing_field" if routes else None,
        target="distillation.routing_field",
        lowered=value if routes else context.defaults[field],
        warning=None if routes else set_in_vain(field, context),
    )


def _unsupported(reason: str, fix: str) -> Verdict:
    return Verdict(classification=Class.UNSUPPORTED, reason=reason, fix=fix)


def _policy_loss_mode(field: str, value: Any, context: Context) -> Verdict:
    if value != "vanilla":
        reason = "the pin stops: a teacher's loss is trained by the clipped surrogate alone"
        return _unsupported(reason, f"Set {field}=vanilla")
    return Verdict(
        classification=Class.CONFORMANT, reason="the clipped surrogate", label="distillation"
    )


def _bound(field: str, spelled: str) -> Limit:
    """A number, or null for none."""
    return Limit(
        accepts=lambda value: value is None or (is_number(value) and value >= 0),
        because=f"null, or {spelled}",
        fix=f"Set {field}=null, or to a number of at least 0",
    )


_SMALLEST = Limit(
    accepts=lambda value: value is None or is_number(value),
    because="log-probabilities are clamped at a number, or not at all",
    fix=f"Set {_LOSS}.log_prob_min_clamp to a number, or to null",
)

RULES: tuple[Rule, ...] = (
    Rule("distillation.enabled", _enabled),
    *only_if(
        distils,
        _NO_TEACHER,
        keeps_class("distillation._target_"),
        keeps_class(f"{_LOSS}._target_"),
        Rule(f"{_LOSS}.loss_mode", _loss_mode),
        _only_top_k(
            "topk",
            "top_k",
            "as many of the teacher's likeliest tokens are compared",
            whole(f"{_LOSS}.topk", at_least=1),
        ),
        _only_top_k(
            "log_prob_min_clamp",
            "min_log_prob",
            "log-probabilities of both sides are clamped from below",
            _SMALLEST,
        ),
        lowers(
            f"{_LOSS}.loss_max_clamp",
            "distillation.max_loss",
            "clamps the loss of a token, both ways",
            to=lambda value: None if value is None else float(value),
            limit=_bound(f"{_LOSS}.loss_max_clamp", "the largest loss of a token"),
        ),
        Rule(f"{_LOSS}.use_policy_gradient", _use_policy_gradient),
        *only_if(
            _by_policy_gradient,
            f"not read: {_LOSS}.use_policy_gradient is off",
            Rule(f"{_LOSS}.clip_ratio", _shared_clip),
            _side("clip_ratio_low"),
            _side("clip_ratio_high"),
        ),
        Rule(f"{_LOSS}.policy_loss_mode", _policy_loss_mode),
        lowers(
            f"{_LOSS}.use_task_rewards",
            "distillation.uses_task_rewards",
            "whether the policy loss, its entropy and its KL term count beside the teacher's loss",
            limit=truth(f"{_LOSS}.use_task_rewards"),
        ),
        Rule(f"{_LOSS}.distillation_loss_coef", _coefficient),
        Rule("distillation.teacher_key", _teacher_key),
        *TEACHERS,
    ),
)

APPENDED: tuple[Rule, ...] = only_if(
    distils,
    _NO_TEACHER,
    dead(f"{_LOSS}.use_chunked_topk", "another way to the same numbers"),
    dead(f"{_LOSS}.chunked_topk_chunk_size", "another way to the same numbers"),
)
