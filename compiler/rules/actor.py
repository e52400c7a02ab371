"""`actor_rollout_ref.actor`: the policy's update. Its loss and optimizer stand in files of their own.

Sources: verl/workers/config/actor.py:190-340, verl/trainer/ppo/v1/trainer_base.py:1672-1710.
"""

from typing import Any

from miniverl.compiler.rule import (
    Class,
    Context,
    Rule,
    Verdict,
    dead,
    lowers,
    notes,
    reject,
    requires,
    set_in_vain,
)
from miniverl.compiler.rules.limits import is_whole, seed, truth, whole
from miniverl.compiler.rules.optimizer import OPTIMIZER, OPTIMIZER_APPENDED
from miniverl.compiler.rules.policy_loss import POLICY_LOSS, POLICY_LOSS_APPENDED
from miniverl.compiler.rules.repeated import (
    checkpoint,
    fsdp,
    keeps_class,
    profiler,
    qat,
    router_replay,
    sequence_parallel,
    size_over_all_devices,
    tuned,
)
from miniverl.compiler.rules.switches import bins_dynamically, shuffles_mini_batches

_ACTOR = "actor_rollout_ref.actor"
_ROLLOUT = "actor_rollout_ref.rollout"
_FSDP = f"{_ACTOR}.fsdp_config"
_MICRO_BATCH = "update.micro_batch_tokens"
_COUNTED_UP_TO = 1_000_000  # one by one; a mistyped number of prompts would count for ever

FLOAT32_NAMES = ("fp32", "float32", "32", 32)  # verl/utils/torch_dtypes.py:21


def _mini_batch(field: str, value: Any, context: Context) -> Verdict:
    """Upstream's default trainer fills a last, shorter mini-batch with rows that train nothing."""
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
        label="update.prompts_per_mini_batch",
        target="update.prompts_per_mini_batch",
        lowered=value,
    )


def _nearest_divisors(number: int, wanted: int) -> str:
    """The divisors of `number` around `wanted`, as "2 or 4"."""
    if number > _COUNTED_UP_TO:
        return f"a divisor of {number}"
    middle = min(number, wanted)
    below = next(n for n in range(middle, 0, -1) if number % n == 0)
    above = next(n for n in range(middle, number + 1) if number % n == 0)
    return " or ".join(str(n) for n in sorted({below, above}))


def _longest(context: Context) -> int | None:
    """Tokens of the longest possible sequence; None while another leaf is at fault."""
    lengths = [context.leaves[f"{_ROLLOUT}.{side}_length"] for side in ("prompt", "response")]
    return sum(lengths) if all(is_whole(length, 1) for length in lengths) else None


def _static_bin(field: str, value: Any, context: Context) -> Verdict:
    if bins_dynamically(context):
        return Verdict(
            classification=Class.INFORMATIONAL,
            reason="not read: use_dynamic_bsz bounds micro-batches by tokens",
            warning=set_in_vain(field, context),
        )
    if not is_whole(value, 1):
        return Verdict(
            classification=Class.UNSUPPORTED,
            reason="with use_dynamic_bsz off, the pin stops unless the size of a micro-batch is set",
            fix=f"Set {field} to a whole number, or {_ACTOR}.use_dynamic_bsz=True and "
            f"{_ROLLOUT}.log_prob_use_dynamic_bsz=True",
        )
    longest = _longest(context)
    return Verdict(
        classification=Class.LOWERED,
        reason="becomes the tokens of as many longest sequences; results do not depend on micro-batches",
        label=_MICRO_BATCH,
        target=_MICRO_BATCH,
        lowered=None if longest is None else value * longest,
    )


def _dynamic_bin(field: str, value: Any, context: Context) -> Verdict:
    if not bins_dynamically(context):
        return Verdict(
            classification=Class.INFORMATIONAL,
            reason="not read: with use_dynamic_bsz off, ppo_micro_batch_size_per_gpu bounds micro-batches",
            warning=set_in_vain(field, context),
        )
    limit = whole(field, at_least=1)
    if not limit.accepts(value):
        return reject(limit)
    longest = _longest(context)
    return Verdict(
        classification=Class.LOWERED,
        reason="bounds the tokens of one forward; results do not depend on micro-batches",
        label=_MICRO_BATCH,
        target=_MICRO_BATCH,
        lowered=value,
        warning=None
        if longest is None or value >= longest
        else f"a sequence of more than {value} tokens, and there may be ones of {longest}, stops an "
        "upstream device; here it is a micro-batch of its own",
    )


def _order_seed(field: str, value: Any, context: Context) -> Verdict:
    """The recipe needs a seed all the same: where nothing draws from it, upstream's default."""
    limit = seed(field)
    if not limit.accepts(value):
        return reject(limit)
    if not shuffles_mini_batches(context):
        return Verdict(
            classification=Class.INFORMATIONAL,
            reason="not read: actor.shuffle is off",
            target="seeds.mini_batches",
            lowered=context.defaults[field],
            warning=set_in_vain(field, context),
        )
    return Verdict(
        classification=Class.EXACT,
        reason="the seed of the mini-batches' order",
        label="seeds.mini_batches",
        target="seeds.mini_batches",
        lowered=value,
    )


def _parameter_dtype(field: str, value: Any, context: Context) -> Verdict:
    """Null trains in float32 as well (fsdp/transformer_impl.py:241)."""
    if value is None or value in FLOAT32_NAMES:
        return Verdict(
            classification=Class.CONFORMANT,
            reason="weights, gradients and both moments in float32, of an adapter too",
            label="policy.parameter_dtype",
            target="policy.parameter_dtype",
            lowered="float32",
        )
    known = value in ("bf16", "bfloat16", "fp16", "float16", "16", 16)
    return Verdict(
        classification=Class.NOT_IMPLEMENTED if known else Class.UNSUPPORTED,
        reason="upstream then keeps weights and moments in half precision; here they are float32"
        if known
        else "the pin knows no such dtype",
        fix=f"Set {field}=fp32",
    )


def _compute_dtype(field: str, value: Any, context: Context) -> Verdict:
    """Upstream describes it as the dtype of mixed precision, and then reads another leaf that its
    tree lacks (fsdp/transformer_impl.py:372): it always computes in bfloat16."""
    return Verdict(
        classification=Class.INFORMATIONAL,
        reason="nothing reads it upstream, which computes in bfloat16; here the bound dtype decides",
        label="policy.compute_dtype",
        target="policy.compute_dtype",
        lowered=context.bindings["compute_dtype"],
        warning=set_in_vain(field, context),
    )


def _autocast_dtype(field: str, value: Any, context: Context) -> Verdict:
    """The leaf that upstream does read, where a launch appends it."""
    bound = context.bindings["compute_dtype"]
    return Verdict(
        classification=Class.CONFORMANT,
        reason="upstream's dtype of scoring and update; here the bound compute_dtype decides",
        label="policy.compute_dtype",
        warning=None
        if value == bound or (bound == "float32" and value in FLOAT32_NAMES)
        else f"computes in {bound} here, in {value} upstream: --bind compute_dtype=NAME changes it",
    )


def _grad_clip(field: str, value: Any, context: Context) -> Verdict:
    limit = context.leaves[f"{_ACTOR}.optim.clip_grad"]
    return Verdict(
        classification=Class.INFORMATIONAL,
        reason="nothing reads it: gradients are cut at optim.clip_grad",
        warning=None
        if value == limit or context.is_default(field)
        else f"{field} is set, and nothing reads it: optim.clip_grad is {limit}",
    )


RULES: tuple[Rule, ...] = (
    keeps_class(f"{_ACTOR}._target_"),
    *OPTIMIZER,
    *POLICY_LOSS,
    Rule(f"{_ACTOR}.ppo_mini_batch_size", _mini_batch),
    lowers(
        f"{_ACTOR}.ppo_epochs",
        "update.epochs",
        "passes over the batch of a step",
        limit=whole(f"{_ACTOR}.ppo_epochs", at_least=1),
    ),
    lowers(
        f"{_ACTOR}.shuffle",
        "update.shuffles",
        "deals the responses of a step to mini-batches at random, in the same order each step",
        limit=truth(f"{_ACTOR}.shuffle"),
    ),
    Rule(f"{_ACTOR}.data_loader_seed", _order_seed),
    notes(
        f"{_ACTOR}.use_dynamic_bsz",
        Class.LOWERED,
        "chooses which leaf bounds a micro-batch; results do not depend on micro-batches",
        label=_MICRO_BATCH,
    ),
    Rule(f"{_ACTOR}.ppo_micro_batch_size_per_gpu", _static_bin),
    Rule(f"{_ACTOR}.ppo_max_token_len_per_gpu", _dynamic_bin),
    size_over_all_devices(f"{_ACTOR}.ppo_micro_batch_size"),
    requires(
        f"{_ACTOR}.strategy",
        "fsdp",
        "fsdp2",
        classification=Class.DISTRIBUTED,
        reason="which sharding runs upstream; there is one device here",
        otherwise=Class.UNSUPPORTED,
        because="this tree configures FSDP workers only",
        fix=f"Set {_ACTOR}.strategy=fsdp",
    ),
    *fsdp(
        _FSDP,
        model_dtype=Rule(f"{_FSDP}.model_dtype", _parameter_dtype),
        seed=lowers(
            f"{_FSDP}.seed",
            "seeds.parameters",
            "seeds the adapter's first weights, which upstream leaves unseeded unless full_determinism",
            classification=Class.CONFORMANT,
            limit=seed(f"{_FSDP}.seed"),
        ),
        dtype=Rule(f"{_FSDP}.dtype", _compute_dtype),
        trains=True,
    ),
    *checkpoint(_ACTOR),
    dead(f"{_ACTOR}.checkpoint.strict", "nothing reads it: only Megatron's exporter would"),
    profiler(_ACTOR),
    router_replay(_ACTOR),
    qat(_ACTOR),
    *tuned(
        f"{_ACTOR}.use_fused_kernels",
        f"{_ACTOR}.use_remove_padding",
        f"{_ACTOR}.entropy_from_logits_with_chunking",
        f"{_ACTOR}.entropy_from_logits_chunk_size",
        f"{_ACTOR}.entropy_checkpointing",
        f"{_ACTOR}.pad_to_length",
    ),
    sequence_parallel(f"{_ACTOR}.ulysses_sequence_parallel_size"),
    Rule(f"{_ACTOR}.grad_clip", _grad_clip),
    dead(f"{_ACTOR}.rollout_n", "nothing reads this copy of rollout.n"),
    dead(f"{_ACTOR}.use_torch_compile", "nothing reads it: fsdp_config.use_torch_compile is read"),
    dead(f"{_ACTOR}.use_prefix_grouper", "nothing reads it: only the older trainer would"),
    dead(f"{_ACTOR}.freeze_vision_tower", "nothing reads it: the FSDP workers freeze no tower"),
)

APPENDED: tuple[Rule, ...] = (
    *OPTIMIZER_APPENDED,
    *POLICY_LOSS_APPENDED,
    Rule(f"{_FSDP}.mixed_precision.param_dtype", _autocast_dtype),
    *(
        notes(
            f"{_FSDP}.mixed_precision.{name}",
            Class.DISTRIBUTED,
            "the dtype in which devices exchange gradients and buffers; there is one here",
        )
        for name in ("reduce_dtype", "buffer_dtype")
    ),
    notes(
        f"{_ACTOR}.checkpoint.save_lora_only",
        Class.CONFORMANT,
        "a checkpoint here holds what is trained: the adapter where there is one",
        label="checkpoint",
    ),
    dead(
        f"{_ACTOR}.use_rollout_log_probs", "nothing reads it: log-probabilities are computed anew"
    ),
)
