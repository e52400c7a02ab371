"""The inference server of `actor_rollout_ref.rollout`: settings that end at the local sampler.

Sources: verl/workers/config/rollout.py:148-345, verl/workers/rollout/vllm_rollout/vllm_async_server.py:285-312,
verl/workers/engine_workers.py:600-665.
"""

from typing import Any

from miniverl.compiler.rule import (
    Class,
    Context,
    Rule,
    Verdict,
    behind,
    dead,
    notes,
    reject,
    requires,
    section,
)
from miniverl.compiler.rules.agents import AGENTS
from miniverl.compiler.rules.correction import is_corrected
from miniverl.compiler.rules.limits import is_whole, one_of, truth
from miniverl.compiler.rules.repeated import (
    keeps_class,
    mtp,
    off,
    profiler,
    qat,
    size_over_all_devices,
)
from miniverl.compiler.rules.switches import bins_dynamically

_ROLLOUT = "actor_rollout_ref.rollout"
_SAMPLER = "own sampler"
_SCORING = "scoring"
_TUNED = "how upstream's inference server uses its memory and time; the local sampler plans its own"
_SPREAD = "how upstream spreads its servers over devices; there is one here"

# Arguments of an inference server that leave the distribution of its tokens alone.
_PERFORMANCE = (
    "compilation_config.",
    "attention_backend",
    "disable_mm_preprocessor_cache",
    "swap_space",
)


def _backend(field: str, value: Any, context: Context) -> Verdict:
    limit = one_of(
        field,
        "vllm",
        "sglang",
        "trtllm",
        because="upstream leaves this open, and stops unless it names a server that it knows",
    )
    if not limit.accepts(value):
        return reject(limit)
    return Verdict(
        classification=Class.LOWERED,
        reason="the server that samples upstream; here the policy itself does, with the same settings",
        label=_SAMPLER,
    )


def _context_length(field: str, value: Any, context: Context) -> Verdict:
    """The server's whole context, which also bounds a response (vllm_async_server.py:546)."""
    lengths = [context.leaves[f"{_ROLLOUT}.{side}_length"] for side in ("prompt", "response")]
    needed = sum(lengths) if all(is_whole(length, 1) for length in lengths) else 1
    if value is None or is_whole(value, needed):
        return Verdict(
            classification=Class.CONFORMANT,
            reason="leaves room for the longest prompt and response, and so bounds neither",
            label="rollout.max_response_tokens",
        )
    return Verdict(
        classification=Class.NOT_IMPLEMENTED,
        reason=f"would cut responses after long prompts: both together may take {needed} tokens",
        fix=f"Set {field} to at least {needed}, or to null",
    )


def _same_binning(field: str, value: Any, context: Context) -> Verdict:
    """verl/workers/engine_workers.py:602 asserts it."""
    if value is not context.leaves["actor_rollout_ref.actor.use_dynamic_bsz"]:
        return Verdict(
            classification=Class.UNSUPPORTED,
            reason="the pin stops unless it equals actor.use_dynamic_bsz",
            fix=f"Set {field} and actor_rollout_ref.actor.use_dynamic_bsz alike, or remove it",
        )
    return Verdict(
        classification=Class.LOWERED,
        reason="how upstream bounds what it scores at once; results do not depend on it",
        label=_SCORING,
    )


def _static_bin(field: str, value: Any, context: Context) -> Verdict:
    if value is None and not bins_dynamically(context):
        return Verdict(
            classification=Class.UNSUPPORTED,
            reason="with use_dynamic_bsz off, the pin stops unless this is set",
            fix=f"Set {field} to a whole number, or actor_rollout_ref.actor.use_dynamic_bsz=True and "
            f"{_ROLLOUT}.log_prob_use_dynamic_bsz=True",
        )
    return Verdict(
        classification=Class.LOWERED,
        reason="how many responses upstream scores at once; results do not depend on it",
        label=_SCORING,
    )


def _behaviour_log_probs(field: str, value: Any, context: Context) -> Verdict:
    limit = truth(field)
    if not limit.accepts(value):
        return reject(limit)
    if not value and is_corrected(context):
        return Verdict(
            classification=Class.UNSUPPORTED,
            reason="rollout correction needs the log-probabilities that this leaves out",
            fix=f"Set {field}=True",
        )
    return Verdict(
        classification=Class.CONFORMANT,
        reason="only rollout correction trains on the server's log-probabilities",
        label=_SAMPLER,
    )


def _expert_parallel(field: str, value: Any, context: Context) -> Verdict:
    sizes = [
        context.leaves[f"{_ROLLOUT}.{kind}_parallel_size"] for kind in ("tensor_model", "data")
    ]
    checked = context.leaves[f"{_ROLLOUT}.name"] != "trtllm" and is_whole(value, 2)
    if checked and all(is_whole(size, 1) for size in sizes) and value != sizes[0] * sizes[1]:
        return Verdict(
            classification=Class.UNSUPPORTED,
            reason="the pin stops unless experts spread over all tensor and data parallel devices",
            fix=f"Set {field}={sizes[0] * sizes[1]}, or to 1",
        )
    return Verdict(classification=Class.DISTRIBUTED, reason=_SPREAD)


def _engine_arguments(field: str, value: Any, context: Context) -> Verdict:
    """Go to the server as they are, and win over every other leaf (vllm_async_server.py:312)."""
    server, _, argument = field.removeprefix(f"{_ROLLOUT}.engine_kwargs.").partition(".")
    if server != context.leaves[f"{_ROLLOUT}.name"]:
        return Verdict(
            classification=Class.INFORMATIONAL,
            reason=f"not read: {server} is not the server of this launch",
            warning=f"{field} is set, and nothing reads it" if argument or value else None,
        )
    if not argument and not value:
        return Verdict(
            classification=Class.INFORMATIONAL,
            reason="off, as upstream's default: arguments past upstream's own to its server",
        )
    if argument.startswith(_PERFORMANCE):
        return Verdict(classification=Class.LOWERED, reason=_TUNED, label=_SAMPLER)
    return Verdict(
        classification=Class.NOT_IMPLEMENTED,
        reason="goes straight to the inference server, where it may change what is sampled",
        fix=f"Remove {field}",
    )


def _weight_transfer() -> tuple[Rule, ...]:
    """The default trainer sets the backend itself (v1/trainer_base.py:357)."""
    path = f"{_ROLLOUT}.checkpoint_engine"
    return (
        keeps_class(f"{path}._target_"),
        *(
            notes(
                f"{path}.{name}",
                Class.DISTRIBUTED,
                "how weights travel to upstream's servers; the local sampler uses the policy's",
            )
            for name in ("backend", "update_weights_bucket_megabytes", "engine_kwargs")
        ),
        off(
            f"{path}.custom_backend_module",
            None,
            what="a module of the user's that carries weights",
            because="a module named in a launch is never imported here",
            fix=f"Set {path}.custom_backend_module=null",
        ),
    )


def _disaggregation() -> Rule:
    switch = f"{_ROLLOUT}.disaggregation.enabled"
    return section(
        f"{_ROLLOUT}.disaggregation.*",
        off(
            switch,
            False,
            what="prefill and decoding on separate servers",
            otherwise=Class.UNSUPPORTED,
            because="prefill and decoding cannot be parted on one device",
            fix=f"Set {switch}=False",
        ),
        behind(
            "*",
            lambda context: bool(context.leaves[switch]),
            off=f"not read: {switch} is off",
            on=f"waits for {switch}, which one device cannot have",
        ),
    )


def _reporting(name: str) -> Rule:
    return section(
        f"{_ROLLOUT}.{name}.*",
        keeps_class("*._target_"),
        notes("*", Class.INFORMATIONAL, "what upstream reports about its rollouts, and where to"),
    )


SERVER: tuple[Rule, ...] = (
    Rule(f"{_ROLLOUT}.name", _backend),
    requires(
        f"{_ROLLOUT}.mode",
        "async",
        classification=Class.CONFORMANT,
        reason="responses are asked for at once; their order here is the prompts'",
        label=_SAMPLER,
        otherwise=Class.UNSUPPORTED,
        because="the pin has servers of the asynchronous kind only",
        fix=f"Set {_ROLLOUT}.mode=async",
    ),
    *(
        notes(f"{_ROLLOUT}.{name}", Class.DISTRIBUTED, _SPREAD)
        for name in (
            "nnodes",
            "n_gpus_per_node",
            "tensor_model_parallel_size",
            "data_parallel_size",
        )
    ),
    Rule(f"{_ROLLOUT}.expert_parallel_size", _expert_parallel),
    requires(
        f"{_ROLLOUT}.pipeline_model_parallel_size",
        1,
        classification=Class.DISTRIBUTED,
        reason=_SPREAD,
        otherwise=Class.UNSUPPORTED,
        because="no inference server of the pin splits layers over devices",
        fix=f"Set {_ROLLOUT}.pipeline_model_parallel_size=1",
    ),
    *(
        notes(f"{_ROLLOUT}.{name}", Class.LOWERED, _TUNED, label=_SAMPLER)
        for name in (
            "gpu_memory_utilization",
            "enforce_eager",
            "cudagraph_capture_sizes",
            "free_cache_engine",
            "max_num_batched_tokens",
            "max_num_seqs",
            "enable_chunked_prefill",
            "enable_prefix_caching",
            "scheduling_policy",
            "load_format",
            "layered_summon",
            "disable_log_stats",
            "skip_tokenizer_init",
        )
    ),
    dead(f"{_ROLLOUT}.multi_stage_wake_up", "nothing reads it: servers wake in one stage"),
    dead(f"{_ROLLOUT}.over_sample_rate", "nothing reads it: no request is given up early"),
    Rule(f"{_ROLLOUT}.max_model_len", _context_length),
    Rule(f"{_ROLLOUT}.calculate_log_probs", _behaviour_log_probs),
    requires(
        f"{_ROLLOUT}.logprobs_mode",
        "processed_logprobs",
        classification=Class.CONFORMANT,
        reason="the log-probabilities of what is sampled from, after temperature and filters",
        label=_SAMPLER,
        otherwise=Class.NOT_IMPLEMENTED,
        because="the sampler here keeps log-probabilities after temperature and filters only",
        fix=f"Set {_ROLLOUT}.logprobs_mode=processed_logprobs",
    ),
    Rule(f"{_ROLLOUT}.log_prob_use_dynamic_bsz", _same_binning),
    Rule(f"{_ROLLOUT}.log_prob_micro_batch_size_per_gpu", _static_bin),
    notes(
        f"{_ROLLOUT}.log_prob_max_token_len_per_gpu",
        Class.LOWERED,
        "how many tokens upstream scores at once; results do not depend on it",
        label=_SCORING,
    ),
    size_over_all_devices(f"{_ROLLOUT}.log_prob_micro_batch_size"),
    *(
        off(
            f"{_ROLLOUT}.{name}",
            None,
            what="a quantised policy for sampling",
            because="the sampler here uses the policy's own weights",
            fix=f"Set {_ROLLOUT}.{name}=null",
        )
        for name in ("quantization", "quantization_config_file")
    ),
    off(
        f"{_ROLLOUT}.enable_rollout_routing_replay",
        False,
        what="replaying the expert routing of a rollout",
        because="no routing of experts is recorded here",
        fix=f"Set {_ROLLOUT}.enable_rollout_routing_replay=False",
    ),
    notes(
        f"{_ROLLOUT}.moe_load_balance_metrics_interval",
        Class.INFORMATIONAL,
        "how often upstream reports the load of experts; it changes no number",
    ),
    Rule(f"{_ROLLOUT}.engine_kwargs.*", _engine_arguments),
    *AGENTS,
    *_weight_transfer(),
    _disaggregation(),
    _reporting("trace"),
    _reporting("prometheus"),
    profiler(_ROLLOUT),
    mtp(_ROLLOUT),
    qat(_ROLLOUT),
)

SERVER_APPENDED: tuple[Rule, ...] = (
    dead(f"{_ROLLOUT}.repetition_penalty", "nothing reads it: each request asks for none"),
    notes(f"{_ROLLOUT}.moe_tensor_parallel_size", Class.DISTRIBUTED, _SPREAD),
    *(
        notes(f"{_ROLLOUT}.{name}", Class.LOWERED, _TUNED, label=_SAMPLER)
        for name in (
            "enable_sleep_mode",
            "limit_images",
            "server.*",
            "standalone_gpu_memory_utilization",
        )
    ),
    *(
        off(
            f"{_ROLLOUT}.{name}",
            None,
            what="a class of the user's",
            because="a class named in a launch is never imported here",
            fix=f"Remove {_ROLLOUT}.{name}",
        )
        for name in ("checkpoint_manager_class", "agent.agent_loop_manager_class")
    ),
)
