"""`optim` of the policy and of a critic: AdamW over one parameter group, and its learning rate per step.

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

_TORCH_EPSILON = 1e-8  # of torch.optim.AdamW, which upstream leaves alone


def optimizer(optim: str, part: str) -> tuple[Rule, ...]:
    """The rules of the section `optim`; `part` is where its recipe stands: "" or "critic."."""
    return (
        keeps_class(f"{optim}._target_"),
        *_adamw(optim, f"{part}optimizer"),
        dead(
            f"{optim}.total_training_steps",
            "overwritten upstream by the trainer's own count of steps",
        ),
        *_schedule(optim, f"{part}learning_rate_schedule"),
    )


def optimizer_appended(optim: str, part: str) -> Rule:
    """verl/workers/config/optimizer.py:58: an older name of clip_grad wins where it is set."""
    norm = f"{part}optimizer.max_gradient_norm"

    def judge(field: str, value: Any, context: Context) -> Verdict:
        if value is None:
            return Verdict(
                classification=Class.INFORMATIONAL, reason="the older name of clip_grad, not set"
            )
        if not _norm(field).accepts(value):
            return reject(_norm(field))
        return Verdict(
            classification=Class.CONFORMANT,
            reason="the older name of clip_grad, which wins over it upstream, and here",
            label=norm,
            target=norm,
            lowered=float(value),
        )

    return Rule(f"{optim}.grad_clip", judge)


def _adamw(optim: str, part: str) -> tuple[Rule, ...]:
    return (
        lowers(
            f"{optim}.optimizer",
            f"{part}.name",
            "the same AdamW, with every trained parameter in one group",
            to=str.lower,
            limit=one_of(
                f"{optim}.optimizer",
                "AdamW",
                because="AdamW is the one optimizer built here",
                otherwise=Class.NOT_IMPLEMENTED,
            ),
        ),
        requires(
            f"{optim}.optimizer_impl",
            "torch.optim",
            reason="the module that upstream takes AdamW from",
            label=f"{part}.name",
            otherwise=Class.NOT_IMPLEMENTED,
            because="optimizers of other modules, such as 8-bit ones, are not built here",
            fix=f"Set {optim}.optimizer_impl=torch.optim",
        ),
        lowers(
            f"{optim}.lr",
            f"{part}.learning_rate",
            "the rate after its warm-up",
            to=float,
            limit=number(f"{optim}.lr", "of at least 0", lambda rate: rate >= 0),
        ),
        lowers(
            f"{optim}.weight_decay",
            f"{part}.weight_decay",
            "decays every trained parameter, norms and biases too",
            to=float,
            limit=number(f"{optim}.weight_decay", "of at least 0", lambda decay: decay >= 0),
        ),
        lowers(
            f"{optim}.betas",
            f"{part}.betas",
            "the decay rates of AdamW's two moments",
            to=lambda betas: [float(beta) for beta in betas],
            limit=Limit(
                accepts=_betas,
                because="AdamW has two decay rates, each at least 0 and below 1",
                fix=f"Set {optim}.betas to two numbers, such as [0.9,0.999]",
            ),
        ),
        lowers(
            f"{optim}.clip_grad",
            f"{part}.max_gradient_norm",
            "the global L2 norm that gradients are cut to; a step with a norm that is not finite is skipped",
            to=float,
            limit=_norm(f"{optim}.clip_grad"),
            read_if=lambda context: context.leaves.get(f"{optim}.grad_clip") is None,
            unread="not read: grad_clip is set, and wins",
        ),
        _epsilon(optim, f"{part}.epsilon"),
    )


def _epsilon(optim: str, target: str) -> Rule:
    """Constructor arguments of the optimizer: the whole mapping is one leaf while it is empty."""
    section = f"{optim}.override_optimizer_config"

    def judge(field: str, value: Any, context: Context) -> Verdict:
        argument = field.removeprefix(section).lstrip(".")
        if not argument and not value:
            return Verdict(
                classification=Class.EXACT,
                reason="no constructor argument is overridden, which leaves torch's epsilon",
                label=target,
                target=target,
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
            label=target,
            target=target,
            lowered=float(value),
        )

    return Rule(f"{section}*", judge)


def _schedule(optim: str, part: str) -> tuple[Rule, ...]:
    return (
        _warmup_steps(optim, f"{part}.warmup_steps"),
        _warmup_ratio(optim, f"{part}.warmup_steps"),
        lowers(
            f"{optim}.lr_scheduler_type",
            f"{part}.kind",
            "how the rate moves from step to step after its warm-up",
            limit=_kind(f"{optim}.lr_scheduler_type"),
            read_if=lambda context: context.leaves[f"{optim}.warmup_style"] is None,
            unread="not read: warmup_style is set, and wins",
        ),
        _older_kind(optim, f"{part}.kind"),
        _cosine_only(
            optim,
            "min_lr_ratio",
            f"{part}.min_ratio",
            Limit(
                accepts=lambda ratio: ratio is None or (is_number(ratio) and 0 <= ratio <= 1),
                because="the pin stops unless the lowest rate is a share of the highest",
                fix=f"Set {optim}.min_lr_ratio to a number from 0 to 1",
            ),
            "the share of the rate that the schedule never falls below",
        ),
        _cosine_only(
            optim,
            "num_cycles",
            f"{part}.num_cycles",
            number(f"{optim}.num_cycles", "of at least 0", lambda cycles: cycles >= 0),
            "how many waves the cosine makes over the run",
        ),
        _cosine_only(
            optim,
            "zero_indexed_step",
            f"{part}.zero_indexed",
            truth(f"{optim}.zero_indexed_step"),
            "whether the schedule counts steps from 0",
        ),
    )


def _warmup_steps(optim: str, target: str) -> Rule:
    """A positive count wins over the ratio, and the ratio needs the number of steps."""

    def judge(field: str, value: Any, context: Context) -> Verdict:
        if type(value) is not int:
            return Verdict(
                classification=Class.UNSUPPORTED,
                reason="upstream compares this count with 0 to decide whether the ratio holds",
                fix=f"Set {field} to a whole number; 0 or less leaves it to lr_warmup_steps_ratio",
            )
        ratio = context.leaves[f"{optim}.lr_warmup_steps_ratio"]
        share = _share_of_steps(ratio, context) if is_number(ratio) else 0
        return Verdict(
            classification=Class.CONFORMANT,
            reason="counts steps, not optimizer steps; the rate of the first step is 0, as upstream's"
            if value > 0
            else "left to lr_warmup_steps_ratio, rounded down to whole steps",
            label=target,
            target=target,
            lowered=value if value > 0 else share,
        )

    return Rule(f"{optim}.lr_warmup_steps", judge)


def _share_of_steps(ratio: float, context: Context) -> int | None:
    """None while the number of steps waits for the training data to be bound."""
    if ratio == 0:
        return 0
    total = total_steps(context.leaves, context.bindings["train_rows"])
    return None if total is None else int(ratio * total)


def _warmup_ratio(optim: str, target: str) -> Rule:
    def judge(field: str, value: Any, context: Context) -> Verdict:
        limit = number(field, "from 0 to 1", lambda ratio: 0 <= ratio <= 1)
        if not limit.accepts(value):
            return reject(limit)
        if is_whole(context.leaves[f"{optim}.lr_warmup_steps"], 1):
            return Verdict(
                classification=Class.INFORMATIONAL,
                reason="not read: lr_warmup_steps states the count",
                warning=set_in_vain(field, context),
            )
        return Verdict(
            classification=Class.CONFORMANT,
            reason="this share of all steps, rounded down, warms the rate up",
            label=target,
        )

    return Rule(f"{optim}.lr_warmup_steps_ratio", judge)


def _kind(field: str) -> Limit:
    return one_of(
        field, "constant", "cosine", because="the pin has no other learning-rate schedule"
    )


def _older_kind(optim: str, target: str) -> Rule:
    def judge(field: str, value: Any, context: Context) -> Verdict:
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
            label=target,
            target=target,
            lowered=value,
        )

    return Rule(f"{optim}.warmup_style", judge)


def _cosine_only(optim: str, name: str, target: str, limit: Limit, reason: str) -> Rule:
    """A constant rate reads none of these; the recipe then holds upstream's default."""

    def judge(field: str, value: Any, context: Context) -> Verdict:
        if schedule_kind(context.leaves, optim) != "cosine":
            return Verdict(
                classification=Class.INFORMATIONAL,
                reason="not read: only a cosine schedule has it",
                target=target,
                lowered=context.defaults[field],
                warning=set_in_vain(field, context),
            )
        if not limit.accepts(value):
            return reject(limit)
        return Verdict(
            classification=Class.EXACT,
            reason=reason,
            label=target,
            target=target,
            lowered=0.0 if value is None else value,
        )

    return Rule(f"{optim}.{name}", judge)


def _norm(field: str) -> Limit:
    return number(field, "above 0", lambda norm: norm > 0)


def _betas(value: Any) -> bool:
    return (
        isinstance(value, list | tuple)
        and len(value) == 2
        and all(is_number(beta) and 0 <= beta < 1 for beta in value)
    )
