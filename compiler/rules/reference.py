"""`actor_rollout_ref.ref`: the frozen initial policy that KL terms compare with.

It has a worker of its own only where a KL term needs it and no adapter is trained (v1/trainer_base.py:744).
"""

from typing import Any

from miniverl.compiler.rule import (
    Class,
    Context,
    Rule,
    Verdict,
    dead,
    notes,
    once,
    only_if,
    requires,
)
from miniverl.compiler.rules.repeated import (
    fsdp,
    keeps_class,
    profiler,
    router_replay,
    sequence_parallel,
    size_over_all_devices,
    tuned,
)
from miniverl.compiler.rules.switches import (
    bins_dynamically,
    has_reference_worker,
    needs_reference,
)
from miniverl.compiler.rules.update import FLOAT32_NAMES

_REF = "actor_rollout_ref.ref"
_FSDP = f"{_REF}.fsdp_config"
_SCORING = "scoring"
_NO_WORKER = "not read: no KL term needs a reference, or it is the actor without its adapter"


def _model_dtype(field: str, value: Any, context: Context) -> Verdict:
    """Null loads a model that is only scored in bfloat16 (fsdp/transformer_impl.py:242)."""
    if value in FLOAT32_NAMES:
        return Verdict(
            classification=Class.CONFORMANT,
            reason="the reference shares the initial weights of the policy, in their dtype",
            label="policy.parameter_dtype",
        )
    return Verdict(
        classification=Class.NOT_IMPLEMENTED,
        reason="the reference shares the initial weights of the policy, which are float32 here",
        fix=f"Set {field}=fp32",
    )


def _static_bin(field: str, value: Any, context: Context) -> Verdict:
    """Read for its presence even where the actor scores for the reference (utils/config.py:148)."""
    if needs_reference(context) and not bins_dynamically(context) and value is None:
        return Verdict(
            classification=Class.UNSUPPORTED,
            reason="with use_dynamic_bsz off, the pin stops unless this is set for the reference",
            fix=f"Set {field} to a whole number, or actor_rollout_ref.actor.use_dynamic_bsz=True and "
            "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=True",
        )
    return Verdict(
        classification=Class.LOWERED,
        reason="how many responses upstream scores at once; results do not depend on it",
        label=_SCORING,
    )


RULES: tuple[Rule, ...] = (
    keeps_class(f"{_REF}._target_"),
    dead(f"{_REF}.rollout_n", "nothing reads this copy of rollout.n"),
    dead(f"{_REF}.use_torch_compile", "nothing reads it: fsdp_config.use_torch_compile is read"),
    profiler(_REF),
    router_replay(_REF),
    Rule(f"{_REF}.log_prob_micro_batch_size_per_gpu", _static_bin),
    size_over_all_devices(f"{_REF}.log_prob_micro_batch_size"),
    *only_if(
        has_reference_worker,
        _NO_WORKER,
        once(
            requires(
                f"{_REF}.strategy",
                "fsdp",
                "fsdp2",
                classification=Class.DISTRIBUTED,
                reason="which sharding runs upstream; there is one device here",
                otherwise=Class.UNSUPPORTED,
                because="this tree configures FSDP workers only",
                fix=f"Set {_REF}.strategy=fsdp",
            )
        ),
        *(
            notes(
                f"{_REF}.{name}",
                Class.LOWERED,
                "how many tokens upstream scores at once; results do not depend on it",
                label=_SCORING,
            )
            for name in ("log_prob_use_dynamic_bsz", "log_prob_max_token_len_per_gpu")
        ),
        *fsdp(
            _FSDP,
            model_dtype=Rule(f"{_FSDP}.model_dtype", _model_dtype),
            seed=dead(
                f"{_FSDP}.seed", "nothing is drawn from it: the reference loads every weight"
            ),
            dtype=dead(
                f"{_FSDP}.dtype", "nothing reads it: the reference computes as the policy does"
            ),
            trains=False,
        ),
        *tuned(
            f"{_REF}.entropy_from_logits_with_chunking",
            f"{_REF}.entropy_from_logits_chunk_size",
            f"{_REF}.entropy_checkpointing",
            f"{_REF}.pad_to_length",
        ),
        sequence_parallel(f"{_REF}.ulysses_sequence_parallel_size"),
    ),
)
