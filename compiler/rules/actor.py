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
from miniverl.compiler.rules.limits import is_whole, seed, whole
from miniverl.compiler.rules.optimizer import optimizer, optimizer_appended
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
from miniverl.compiler.rules.switches import bins_dynamically
from miniverl.compiler.rules.update import (
    compute_dtype,
    dead_norm,
    mini_batches,
    mixed_precision,
    order_seed,
    parameter_dtype,
)

_ACTOR = "actor_rollout_ref.actor"
_ROLLOUT = "actor_rollout_ref.rollout"
_FSDP = f"{_ACTOR}.fsdp_config"
_MICRO_BATCH = "update.micro_batch_tokens"


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


RULES: tuple[Rule, ...] = (
    keeps_class(f"{_ACTOR}._target_"),
    *optimizer(f"{_ACTOR}.optim", ""),
    *POLICY_LOSS,
    *mini_batches(_ACTOR, ""),
    order_seed(_ACTOR, "seeds.mini_batches"),
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
        model_dtype=parameter_dtype(_FSDP, "policy"),
        seed=lowers(
            f"{_FSDP}.seed",
            "seeds.parameters",
            "seeds new weights, of an adapter or a value head, which upstream leaves unseeded",
            classification=Class.CONFORMANT,
            limit=seed(f"{_FSDP}.seed"),
        ),
        dtype=compute_dtype(_FSDP, "policy"),
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
    dead_norm(_ACTOR),
    dead(f"{_ACTOR}.rollout_n", "nothing reads this copy of rollout.n"),
    dead(f"{_ACTOR}.use_torch_compile", "nothing reads it: fsdp_config.use_torch_compile is read"),
    dead(f"{_ACTOR}.use_prefix_grouper", "nothing reads it: only the older trainer would"),
    dead(f"{_ACTOR}.freeze_vision_tower", "nothing reads it: the FSDP workers freeze no tower"),
)

APPENDED: tuple[Rule, ...] = (
    optimizer_appended(f"{_ACTOR}.optim", ""),
    *POLICY_LOSS_APPENDED,
    *mixed_precision(_FSDP, "policy"),
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
