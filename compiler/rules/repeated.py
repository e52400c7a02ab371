"""Sub-trees that upstream repeats under several roles, each made from the prefix it stands under."""

from typing import Any

from miniverl.compiler.rule import (
    Class,
    Context,
    Rule,
    Verdict,
    behind,
    dead,
    notes,
    once,
    requires,
    section,
)

PLANNER = "memory planner"


def keeps_class(pattern: str) -> Rule:
    """`_target_` names the upstream dataclass that checks a section (verl/utils/config.py:50)."""

    def judge(field: str, value: Any, context: Context) -> Verdict:
        if value == context.defaults[field]:
            return Verdict(
                classification=Class.INFORMATIONAL,
                reason="names the class that checks this section upstream; nothing is built from it here",
            )
        return Verdict(
            classification=Class.UNSUPPORTED,
            reason="another class may read this section in another way, and is not known here",
            fix=f"Leave {field} at {context.defaults[field]}",
        )

    return Rule(pattern, judge)


def off(
    field: str,
    *safe: Any,
    what: str,
    because: str,
    fix: str,
    otherwise: Class = Class.NOT_IMPLEMENTED,
) -> Rule:
    """A mechanism that is accepted at its safe values only."""
    return requires(
        field,
        *safe,
        reason=f"off, as upstream's default: {what}",
        classification=Class.INFORMATIONAL,
        otherwise=otherwise,
        because=because,
        fix=fix,
    )


def behind_switch(pattern: str, switch: str) -> Rule:
    """Leaves of a mechanism that is not run here: they wait for its switch, which is rejected when it is on."""
    return behind(
        pattern,
        lambda context: bool(context.leaves[switch]),
        off=f"not read: {switch} is off",
        on=f"waits for {switch}, which is not run here",
    )


def size_over_all_devices(field: str) -> Rule:
    """A micro-batch that upstream would divide by the number of its devices."""
    return off(
        field,
        None,
        what="the micro-batch over all devices",
        otherwise=Class.UNSUPPORTED,
        because="the workers of the pin read the size for one device only",
        fix=f"Set {field}_per_gpu, and this to null",
    )


def placed(*fields: str) -> tuple[Rule, ...]:
    """Where and when parameters lie in memory upstream."""
    return tuple(
        notes(
            field,
            Class.LOWERED,
            "where upstream keeps its weights; the local run plans memory for itself",
            label=PLANNER,
        )
        for field in fields
    )


def sharded(*fields: str) -> tuple[Rule, ...]:
    return tuple(
        notes(
            field, Class.DISTRIBUTED, "how upstream spreads weights over devices; there is one here"
        )
        for field in fields
    )


def tuned(*fields: str) -> tuple[Rule, ...]:
    """Other ways to the same numbers up to rounding."""
    return tuple(
        notes(
            field,
            Class.LOWERED,
            "another way to the same numbers upstream; the local run scores in its own way",
            label="scoring",
        )
        for field in fields
    )


def profiler(prefix: str) -> Rule:
    return section(
        f"{prefix}.profiler.*",
        keeps_class("*._target_"),
        notes(
            "*",
            Class.INFORMATIONAL,
            "profiling upstream; it changes no number, and is not run here",
        ),
    )


def mtp(prefix: str) -> Rule:
    switch = f"{prefix}.mtp.enable"
    return section(
        f"{prefix}.mtp.*",
        keeps_class("*._target_"),
        once(
            off(
                switch,
                False,
                what="multi-token prediction heads",
                because="multi-token prediction trains further heads, which do not exist here",
                fix=f"Set {switch}=False",
            )
        ),
        behind_switch("*", switch),
    )


def qat(prefix: str) -> Rule:
    switch = f"{prefix}.qat.enable"
    return section(
        f"{prefix}.qat.*",
        keeps_class("*._target_"),
        once(
            off(
                switch,
                False,
                what="quantisation-aware training",
                because="quantisation-aware training changes the model that is trained",
                fix=f"Set {switch}=False",
            )
        ),
        behind_switch("*", switch),
    )


def router_replay(prefix: str) -> Rule:
    """Upstream's FSDP workers force it off (verl/workers/engine_workers.py:498)."""
    switch = f"{prefix}.router_replay.mode"
    return section(
        f"{prefix}.router_replay.*",
        keeps_class("*._target_"),
        off(
            switch,
            "disabled",
            what="replaying the expert routing of a rollout",
            otherwise=Class.UNSUPPORTED,
            because="the FSDP workers of the pin switch routing replay off, whatever is asked for",
            fix=f"Set {switch}=disabled",
        ),
        dead("*", f"not read: the FSDP workers never replay a routing, and {switch} is off"),
    )


def checkpoint(prefix: str) -> tuple[Rule, ...]:
    """verl/utils/checkpoint/checkpoint_manager.py:90, :133; v1/trainer_base.py:950."""
    path = f"{prefix}.checkpoint"
    return (
        keeps_class(f"{path}._target_"),
        Rule(f"{path}.save_contents", _save_contents),
        Rule(f"{path}.load_contents", _load_contents),
        off(
            f"{path}.async_save",
            False,
            what="saving beside the training",
            otherwise=Class.UNSUPPORTED,
            because="the pin then never names its latest checkpoint, so that a run cannot be resumed",
            fix=f"Set {path}.async_save=False",
        ),
    )


_CONTENTS = ("model", "optimizer", "extra", "hf_model")


def _save_contents(field: str, value: Any, context: Context) -> Verdict:
    if not isinstance(value, list) or any(part not in _CONTENTS for part in value):
        return Verdict(
            classification=Class.UNSUPPORTED,
            reason="a checkpoint of the pin has no such part",
            fix=f"Set {field} to a list of: {', '.join(_CONTENTS)}",
        )
    return Verdict(
        classification=Class.CONFORMANT,
        reason="a checkpoint here always holds weights, optimizer and state, whatever is left out upstream",
        label="checkpoint",
    )


def _load_contents(field: str, value: Any, context: Context) -> Verdict:
    is_partial = not isinstance(value, list) or not set(_CONTENTS[:3]) <= set(map(str, value))
    if is_partial and not context.is_default(field):
        return Verdict(
            classification=Class.NOT_IMPLEMENTED,
            reason="a run here resumes with all of its state or not at all",
            fix=f"Set {field} to a list that holds model, optimizer and extra",
        )
    return Verdict(
        classification=Class.CONFORMANT,
        reason="a run here resumes with all of its state, byte for byte",
        label="checkpoint",
    )


def fsdp(
    path: str, *, model_dtype: Rule, seed: Rule, dtype: Rule, trains: bool
) -> tuple[Rule, ...]:
    """An FSDP engine's configuration (verl/workers/engine/fsdp/transformer_impl.py)."""
    return (
        keeps_class(f"{path}._target_"),
        model_dtype,
        seed,
        dtype,
        *sharded(
            f"{path}.wrap_policy.min_num_params",
            f"{path}.reshard_after_forward",
            f"{path}.fsdp_size",
            f"{path}.forward_prefetch",
            f"{path}.use_orig_params",
            f"{path}.strategy",
        ),
        *placed(f"{path}.param_offload", f"{path}.optimizer_offload", f"{path}.offload_policy"),
        *tuned(
            f"{path}.entropy_from_logits_with_chunking",
            f"{path}.entropy_from_logits_chunk_size",
            f"{path}.entropy_checkpointing",
            f"{path}.use_torch_compile",
            f"{path}.pad_to_length",
            f"{path}.pad_to_length_bucket",
        ),
        sequence_parallel(f"{path}.ulysses_sequence_parallel_size"),
        notes(
            f"{path}.full_determinism",
            Class.CONFORMANT,
            "every run here is seeded and repeats itself, asked for or not",
            label="determinism",
        ),
        requires(
            f"{path}.forward_only",
            not trains,
            classification=Class.CONFORMANT,
            reason="the actor is trained"
            if trains
            else "the reference is scored and never trained",
            otherwise=Class.UNSUPPORTED,
            because="this role trains, or only scores, by its nature; the pin stops otherwise",
            fix=f"Set {path}.forward_only={not trains}",
        ),
        qat(path),
    )


def sequence_parallel(field: str) -> Rule:
    def judge(field: str, value: Any, context: Context) -> Verdict:
        packs = context.leaves["actor_rollout_ref.model.use_remove_padding"]
        if type(value) is int and value > 1 and not packs:
            return Verdict(
                classification=Class.UNSUPPORTED,
                reason="the pin splits sequences over devices only where padding is removed",
                fix=f"Set actor_rollout_ref.model.use_remove_padding=True, or {field}=1",
            )
        return Verdict(
            classification=Class.DISTRIBUTED,
            reason="how upstream spreads a sequence over devices; there is one here",
        )

    return Rule(field, judge)
