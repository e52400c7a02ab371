"""How a batch is trained on, by the policy and by a critic alike: mini-batches, their order, and their loss's mean.

Sources: verl/trainer/ppo/v1/trainer_base.py:1640-1710, verl/trainer/ppo/core_algos.py:1166-1200.
"""

from typing import Any, get_args

from miniverl.compiler.rule import (
    Class,
    Context,
    Rule,
    Verdict,
    lowers,
    notes,
    reject,
    set_in_vain,
)
from miniverl.compiler.rules.limits import is_whole, one_of, seed, truth, whole
from miniverl.engine.algorithm import AggregationMode

FLOAT32_NAMES = ("fp32", "float32", "32", 32)  # verl/utils/torch_dtypes.py:21
_HALF_NAMES = ("bf16", "bfloat16", "fp16", "float16", "16", 16)
_COUNTED_UP_TO = 1_000_000  # one by one; a mistyped number of prompts would count for ever
_NORMALISED = "seq-mean-token-sum-norm"


def mini_batches(role: str, part: str) -> tuple[Rule, ...]:
    """Size, passes and order of the section `role`; `part` is where its recipe stands: "" or "critic."."""
    return (
        _size(role, f"{part}update.prompts_per_mini_batch"),
        lowers(
            f"{role}.ppo_epochs",
            f"{part}update.epochs",
            "passes over the batch of a step",
            limit=whole(f"{role}.ppo_epochs", at_least=1),
        ),
        lowers(
            f"{role}.shuffle",
            f"{part}update.shuffles",
            "deals the responses of a step to mini-batches at random, in the same order each step",
            limit=truth(f"{role}.shuffle"),
        ),
    )


def _size(role: str, target: str) -> Rule:
    """Upstream's default trainer fills a last, shorter mini-batch with rows that train nothing."""

    def judge(field: str, value: Any, context: Context) -> Verdict:
        limit = whole(field, at_least=1)
        if not limit.accepts(value):
            return reject(limit)
        prompts = context.leaves["data.train_batch_size"]
        if is_whole(prompts, 1) and prompts % value:
            return Verdict(
                classification=Class.NOT_IMPLEMENTED,
                reason=f"{value} prompts do not divide the {prompts} of data.train_batch_size; upstream "
                "fills the last mini-batch with rows that train nothing, which is not done here",
                fix=f"Set {field} to {_nearest_divisors(prompts, value)}, or data.train_batch_size to a multiple of {value}",
            )
        return Verdict(
            classification=Class.CONFORMANT,
            reason="counts prompts; a mini-batch holds rollout.n responses of each, all on this device",
            label=target,
            target=target,
            lowered=value,
        )

    return Rule(f"{role}.ppo_mini_batch_size", judge)


def _nearest_divisors(number: int, wanted: int) -> str:
    """The divisors of `number` around `wanted`, as "2 or 4"."""
    if number > _COUNTED_UP_TO:
        return f"a divisor of {number}"
    middle = min(number, wanted)
    below = next(n for n in range(middle, 0, -1) if number % n == 0)
    above = next(n for n in range(middle, number + 1) if number % n == 0)
    return " or ".join(str(n) for n in sorted({below, above}))


def order_seed(role: str, target: str) -> Rule:
    """The recipe needs a seed all the same: where nothing draws from it, upstream's default."""

    def judge(field: str, value: Any, context: Context) -> Verdict:
        limit = seed(field)
        if not limit.accepts(value):
            return reject(limit)
        if context.leaves[f"{role}.shuffle"] is not True:
            return Verdict(
                classification=Class.INFORMATIONAL,
                reason=f"not read: {role.rpartition('.')[2]}.shuffle is off",
                target=target,
                lowered=context.defaults[field],
                warning=set_in_vain(field, context),
            )
        return Verdict(
            classification=Class.EXACT,
            reason="the seed of the mini-batches' order",
            label=target,
            target=target,
            lowered=value,
        )

    return Rule(f"{role}.data_loader_seed", judge)


def aggregation(role: str, part: str) -> tuple[Rule, ...]:
    """How the losses of tokens become one number."""
    return (
        lowers(
            f"{role}.loss_agg_mode",
            f"{part}aggregation.mode",
            "the same mean over the tokens and responses of a mini-batch",
            limit=one_of(
                f"{role}.loss_agg_mode",
                *get_args(AggregationMode),
                because="the pin knows no such aggregation",
            ),
        ),
        _horizon(role, f"{part}aggregation.horizon"),
    )


def _horizon(role: str, target: str) -> Rule:
    def judge(field: str, value: Any, context: Context) -> Verdict:
        if context.leaves[f"{role}.loss_agg_mode"] != _NORMALISED:
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

    return Rule(f"{role}.loss_scale_factor", judge)


def parameter_dtype(engine: str, part: str) -> Rule:
    """Null trains in float32 as well (fsdp/transformer_impl.py:241)."""
    target = f"{part}.parameter_dtype"

    def judge(field: str, value: Any, context: Context) -> Verdict:
        if value is None or value in FLOAT32_NAMES:
            return Verdict(
                classification=Class.CONFORMANT,
                reason="weights, gradients and both moments in float32, of an adapter too",
                label=target,
                target=target,
                lowered="float32",
            )
        known = value in _HALF_NAMES
        return Verdict(
            classification=Class.NOT_IMPLEMENTED if known else Class.UNSUPPORTED,
            reason="upstream then keeps weights and moments in half precision; here they are float32"
            if known
            else "the pin knows no such dtype",
            fix=f"Set {field}=fp32",
        )

    return Rule(f"{engine}.model_dtype", judge)


def compute_dtype(engine: str, part: str) -> Rule:
    """Upstream describes it as the dtype of mixed precision, and then reads another leaf that its
    tree lacks (fsdp/transformer_impl.py:372): it always computes in bfloat16."""
    target = f"{part}.compute_dtype"

    def judge(field: str, value: Any, context: Context) -> Verdict:
        return Verdict(
            classification=Class.INFORMATIONAL,
            reason="nothing reads it upstream, which computes in bfloat16; here the bound dtype decides",
            label=target,
            target=target,
            lowered=context.bindings["compute_dtype"],
            warning=set_in_vain(field, context),
        )

    return Rule(f"{engine}.dtype", judge)


def mixed_precision(engine: str, part: str) -> tuple[Rule, ...]:
    """The leaves that upstream does read, where a launch appends them."""

    def judge(field: str, value: Any, context: Context) -> Verdict:
        bound = context.bindings["compute_dtype"]
        return Verdict(
            classification=Class.CONFORMANT,
            reason="upstream's dtype of scoring and update; here the bound compute_dtype decides",
            label=f"{part}.compute_dtype",
            warning=None
            if value == bound or (bound == "float32" and value in FLOAT32_NAMES)
            else f"computes in {bound} here, in {value} upstream: --bind compute_dtype=NAME changes it",
        )

    return (
        Rule(f"{engine}.mixed_precision.param_dtype", judge),
        *(
            notes(
                f"{engine}.mixed_precision.{name}",
                Class.DISTRIBUTED,
                "the dtype in which devices exchange gradients and buffers; there is one here",
            )
            for name in ("reduce_dtype", "buffer_dtype")
        ),
    )


def dead_norm(role: str) -> Rule:
    """Gradients are cut at optim.clip_grad; the older leaf beside it has no reader."""

    def judge(field: str, value: Any, context: Context) -> Verdict:
        limit = context.leaves[f"{role}.optim.clip_grad"]
        return Verdict(
            classification=Class.INFORMATIONAL,
            reason="nothing reads it: gradients are cut at optim.clip_grad",
            warning=None
            if value == limit or context.is_default(field)
            else f"{field} is set, and nothing reads it: optim.clip_grad is {limit}",
        )

    return Rule(f"{role}.grad_clip", judge)
