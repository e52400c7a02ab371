"""`actor_rollout_ref.actor.optim`: AdamW over one parameter group, and its learning rate per step.

Sources: verl/workers/config/optimizer.py:20-360, verl/workers/engine/fsdp/transformer_impl.py:485-505.
"""

from typing import Any

from miniverl.compiler.rule import (
    Class,
    Context,
    Limit,
    Rule,
    Verdict,
    dead,
    lowers,
    reject,
    requires,
    set_in_vain,
)
from miniverl.compiler.rules.limits import is_number, is_whole, number, one_of, truth
from miniverl.compiler.rules.repeated import keeps_class
from miniverl.compiler.rules.switches import schedule_kind
from miniverl.compiler.rules.trainer import total_steps

_OPTIM = "actor_rollout_ref.actor.optim"
_SCHEDULE = "learning_rate_schedule"
_TORCH_EPSILON = 1e-8  # of torch.optim.AdamW, which upstream leaves alone


def _epsilon(field: str, value: Any, context: Context) -> Verdict:
    """Constructor arguments of the optimizer: the whole mapping is one leaf while it is empty."""
    argument = field.removeprefix(f"{_OPTIM}.override_optimizer_config").lstrip(".")
    if not argument and not value:
        return Verdict(
            classification=Class.EXACT,
            reason="no constructor argument is overridden, which leaves torch's epsilon",
            label="optimizer.epsilon",
            target="optimizer.epsilon",
            lowered=_TORCH_EPSILON,
        )
    if argument != "eps":
        return Verdict(
            classification=Class.NOT_IMPLEMENTED,
            reason="of the optimizer's constructor arguments only eps is known here",
            fix=f"Remove {field}",
        )
    limit = number(field, "above 0", lambda epsilon: epsilon > 0)
    if not limit.accepts(value):
        return reject(limit)
    return Verdict(
        classification=Class.EXACT,
        reason="the term that keeps AdamW's division finite",
        label="optimizer.epsilon",
        target="optimizer.epsilon",
        lowered=float(value),
    )


def _warmup_steps(field: str, value: Any, context: Context) -> Verdict:
    """A positive count wins over the ratio, and the ratio needs the number of steps."""
    target = f"{_SCHEDULE}.warmup_steps"
    if type(value) is not int:
        return Verdict(
            classification=Class.UNSUPPORTED,
            reason="upstream compares this count with 0 to decide whether the ratio holds",
            fix=f"Set {field} to a whole number; 0 or less leaves it to lr_warmup_steps_ratio",
        )
    if value > 0:
        return Verdict(
            classification=Class.CONFORMANT,
            reason="counts steps, not optimizer steps; the rate of the first step is 0, as upstream's",
            label=target,
            target=target,
            lowered=value,
        )
    ratio = context.leaves[f"{_OPTIM}.lr_warmup_steps_ratio"]
    return Verdict(
        classification=Class.CONFORMANT,
        reason="left to lr_warmup_steps_ratio, rounded down to whole steps",
        label=target,
        target=target,
        lowered=_share_of_steps(ratio, context) if is_number(ratio) else 0,
    )


def _share_of_steps(ratio: float, context: Context) -> int | None:
    """None while the number of steps waits for the training data to be bound."""
    if ratio == 0:
        return 0
    total = total_steps(context.leaves, context.bindings["train_rows"])
    return None if total is None else int(ratio * total)


def _warmup_ratio(field: str, value: Any, context: Context) -> Verdict:
    limit = number(field, "from 0 to 1", lambda ratio: 0 <= ratio <= 1)
    if not limit.accepts(value):
        return reject(limit)
    steps = context.leaves[f"{_OPTIM}.lr_warmup_steps"]
    if is_whole(steps, 1):
        return Verdict(
            classification=Class.INFORMATIONAL,
            reason="not read: lr_warmup_steps states the count",
            warning=set_in_vain(field, context),
        )
    return Verdict(
        classification=Class.CONFORMANT,
        reason="this share of all steps, rounded down, warms the rate up",
        label=f"{_SCHEDULE}.warmup_steps",
    )


def _kind(field: str) -> Limit:
    return one_of(
        field, "constant", "cosine", because="the pin has no other learning-rate schedule"
    )


def _older_kind(field: str, value: Any, context: Context) -> Verdict:
    if value is None:
        return Verdict(
            classification=Class.INFORMATIONAL,
            reason="the older name of lr_scheduler_type, not set, as upstream's default",
        )
    if not _kind(field).accepts(value):
        return reject(_kind(field))
    return Verdict(
        classification=Class.CONFORMANT,
        reason="the older name of lr_scheduler_type, which wins over it upstream, and here",
        label=f"{_SCHEDULE}.kind",
        target=f"{_SCHEDULE}.kind",
        lowered=value,
    )


def _cosine_only(name: str, path: str, limit: Limit, reason: str) -> Rule:
    """A constant rate reads none of these; the recipe then holds upstream's default."""

    def judge(field: str, value: Any, context: Context) -> Verdict:
        if schedule_kind(context) != "cosine":
            return Verdict(
                classification=Class.INFORMATIONAL,
                reason="not read: only a cosine schedule has it",
                target=f"{_SCHEDULE}.{path}",
                lowered=context.defaults[field],
                warning=set_in_vain(field, context),
            )
        if not limit.accepts(value):
            return reject(limit)
        return Verdict(
            classification=Class.EXACT,
            reason=reason,
            label=f"{_SCHEDULE}.{path}",
            target=f"{_SCHEDULE}.{path}",
            lowered=0.0 if value is None else value,
        )

    return Rule(f"{_OPTIM}.{name}", judge)


def _norm(field: str) -> Limit:
    return number(field, "above 0", lambda norm: norm > 0)


def _older_norm(field: str, value: Any, context: Context) -> Verdict:
    """verl/workers/config/optimizer.py:58: the older name wins where it is set."""
    if value is None:
        return Verdict(
            classification=Class.INFORMATIONAL,
            reason="the older name of clip_grad, not set",
        )
    if not _norm(field).accepts(value):
        return reject(_norm(field))
    return Verdict(
        classification=Class.CONFORMANT,
        reason="the older name of clip_grad, which wins over it upstream, and here",
        label="optimizer.max_gradient_norm",
        target="optimizer.max_gradient_norm",
        lowered=float(value),
    )


def _betas(value: Any) -> bool:
    return (
        isinstance(value, list | tuple)
        and len(value) == 2
        and all(is_number(beta) and 0 <= beta < 1 for beta in value)
    )


OPTIMIZER: tuple[Rule, ...] = (
    keeps_class(f"{_OPTIM}._target_"),
    lowers(
        f"{_OPTIM}.optimizer",
        "optimizer.name",
        "the same AdamW, with every trained parameter in one group",
        to=str.lower,
        limit=one_of(
            f"{_OPTIM}.optimizer",
            "AdamW",
            because="AdamW is the one optimizer built here",
            otherwise=Class.NOT_IMPLEMENTED,
        ),
    ),
    requires(
        f"{_OPTIM}.optimizer_impl",
        "torch.optim",
        reason="the module that upstream takes AdamW from",
        label="optimizer.name",
        otherwise=Class.NOT_IMPLEMENTED,
        because="optimizers of other modules, such as 8-bit ones, are not built here",
        fix=f"Set {_OPTIM}.optimizer_impl=torch.optim",
    ),
    lowers(
        f"{_OPTIM}.lr",
        "optimizer.learning_rate",
        "the rate after its warm-up",
        to=float,
        limit=number(f"{_OPTIM}.lr", "of at least 0", lambda rate: rate >= 0),
    ),
    lowers(
        f"{_OPTIM}.weight_decay",
        "optimizer.weight_decay",
        "decays every trained parameter, norms and biases too",
        to=float,
        limit=number(f"{_OPTIM}.weight_decay", "of at least 0", lambda decay: decay >= 0),
    ),
    lowers(
        f"{_OPTIM}.betas",
        "optimizer.betas",
        "the decay rates of AdamW's two moments",
        to=lambda betas: [float(beta) for beta in betas],
        limit=Limit(
            accepts=_betas,
            because="AdamW has two decay rates, each at least 0 and below 1",
            fix=f"Set {_OPTIM}.betas to two numbers, such as [0.9,0.999]",
        ),
    ),
    lowers(
        f"{_OPTIM}.clip_grad",
        "optimizer.max_gradient_norm",
        "the global L2 norm that gradients are cut to; a step with a norm that is not finite is skipped",
        to=float,
        limit=_norm(f"{_OPTIM}.clip_grad"),
        read_if=lambda context: context.leaves.get(f"{_OPTIM}.grad_clip") is None,
        unread="not read: grad_clip is set, and wins",
    ),
    Rule(f"{_OPTIM}.override_optimizer_config*", _epsilon),
    dead(
        f"{_OPTIM}.total_training_steps", "overwritten upstream by the trainer's own count of steps"
    ),
    Rule(f"{_OPTIM}.lr_warmup_steps", _warmup_steps),
    Rule(f"{_OPTIM}.lr_warmup_steps_ratio", _warmup_ratio),
    lowers(
        f"{_OPTIM}.lr_scheduler_type",
        f"{_SCHEDULE}.kind",
        "how the rate moves from step to step after its warm-up",
        limit=_kind(f"{_OPTIM}.lr_scheduler_type"),
        read_if=lambda context: context.leaves[f"{_OPTIM}.warmup_style"] is None,
        unread="not read: warmup_style is set, and wins",
    ),
    Rule(f"{_OPTIM}.warmup_style", _older_kind),
    _cosine_only(
        "min_lr_ratio",
        "min_ratio",
        Limit(
            accepts=lambda ratio: ratio is None or (is_number(ratio) and 0 <= ratio <= 1),
            because="the pin stops unless the lowest rate is a share of the highest",
            fix=f"Set {_OPTIM}.min_lr_ratio to a number from 0 to 1",
        ),
        "the share of the rate that the schedule never falls below",
    ),
    _cosine_only(
        "num_cycles",
        "num_cycles",
        number(f"{_OPTIM}.num_cycles", "of at least 0", lambda cycles: cycles >= 0),
        "how many waves the cosine makes over the run",
    ),
    _cosine_only(
        "zero_indexed_step",
        "zero_indexed",
        truth(f"{_OPTIM}.zero_indexed_step"),
        "whether the schedule counts steps from 0",
    ),
)

OPTIMIZER_APPENDED: tuple[Rule, ...] = (Rule(f"{_OPTIM}.grad_clip", _older_norm),)
