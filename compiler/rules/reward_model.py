"""`reward.reward_model`: a trained model that scores responses, and the server that it scores on upstream.

Its score is the reward wherever no function of the user's stands in front of it. Sources:
verl/experimental/reward_loop/reward_loop.py:118-240, reward_model.py:44-72, verl/trainer/ppo/v1/trainer_base.py:762.
"""

from typing import Any

from miniverl.compiler import bound_quantization
from miniverl.compiler.rule import (
    Class,
    Context,
    Rule,
    Verdict,
    notes,
    only_if,
    reject,
    requires,
    section,
    set_in_vain,
)
from miniverl.compiler.rules.limits import is_whole, one_of, truth
from miniverl.compiler.rules.repeated import keeps_class, off
from miniverl.compiler.rules.switches import has_reward_model

_MODEL = "reward.reward_model"
_SERVER = f"{_MODEL}.rollout"
_LABEL = "reward.model"
_PARALLEL = ("tensor_model", "data", "pipeline_model")


def lowered_model(context: Context) -> dict[str, Any]:
    """What a recipe says of the reward model; the digest is None until one is bound."""
    return {
        "weights_sha256": context.bindings["reward_model"],
        "dtype": context.bindings["compute_dtype"],
        **bound_quantization.part(context, bound_quantization.REWARD_MODEL),
    }


def _switch(field: str, value: Any, context: Context) -> Verdict:
    if not truth(field).accepts(value):
        return reject(truth(field))
    return Verdict(
        classification=Class.EXACT,
        reason="a trained model's score is the reward"
        if value
        else "no trained model scores the responses",
        label="reward.scorer",
    )


def _pool_switch(field: str, value: Any, context: Context) -> Verdict:
    if not truth(field).accepts(value):
        return reject(truth(field))
    return Verdict(
        classification=Class.CONFORMANT,
        reason="whether upstream scores beside the sampling or after it; the scores are the same",
        label=_LABEL,
    )


def _pool_size(field: str, value: Any, context: Context) -> Verdict:
    if context.leaves[f"{_MODEL}.enable_resource_pool"] is True and not is_whole(value, 1):
        return Verdict(
            classification=Class.UNSUPPORTED,
            reason="the pin stops: with a pool of its own the reward model needs devices in it",
            fix=f"Set {field} to at least 1, or {_MODEL}.enable_resource_pool=False",
        )
    return Verdict(
        classification=Class.DISTRIBUTED, reason="the reward model shares the one device here"
    )


def _path(field: str, value: Any, context: Context) -> Verdict:
    if not isinstance(value, str) or not value:
        return Verdict(
            classification=Class.UNSUPPORTED,
            reason="the pin stops: it does not know which model scores",
            fix=f"Set {field} to the model's name, and bind a folder with its weights",
        )
    return Verdict(
        classification=Class.CONFORMANT,
        reason="names the reward model; the recipe holds the digest of the folder bound for it",
        label=_LABEL,
    )


def _backend(field: str, value: Any, context: Context) -> Verdict:
    because = "the pin reads a reward from vllm or sglang only, and stops with any other server"
    limit = one_of(field, "vllm", "sglang", because=because)
    if not limit.accepts(value):
        return reject(limit)
    return Verdict(
        classification=Class.LOWERED,
        reason="the server that scores upstream; here the model's own forward does, at the last token",
        label=_LABEL,
    )


def _dtype(field: str, value: Any, context: Context) -> Verdict:
    bound = context.bindings["compute_dtype"]
    return Verdict(
        classification=Class.CONFORMANT,
        reason="the dtype of upstream's server; here the bound compute_dtype scores",
        label=_LABEL,
        warning=None
        if value == bound
        else f"the reward model scores in {bound} here, in {value} upstream",
    )


def _tensor_parallel(field: str, value: Any, context: Context) -> Verdict:
    """A server that takes more devices than there are is never started."""
    has_pool = context.leaves[f"{_MODEL}.enable_resource_pool"] is True
    pool = _MODEL if has_pool else "trainer"
    there = _product(context, *(f"{pool}.{side}" for side in ("n_gpus_per_node", "nnodes")))
    taken = _product(context, *(f"{_SERVER}.{kind}_parallel_size" for kind in _PARALLEL))
    if there is not None and taken is not None and taken > there:
        return Verdict(
            classification=Class.UNSUPPORTED,
            reason=f"the pin stops: the reward model's server takes {taken} devices of {there}",
            fix=f"Set {field}=1",
        )
    return Verdict(
        classification=Class.DISTRIBUTED,
        reason="how upstream spreads the reward model over devices; there is one here",
    )


def _product(context: Context, *fields: str) -> int | None:
    """None where a size is at fault, which the leaf's own rule says."""
    product = 1
    for field in fields:
        size = context.leaves[field]
        if not is_whole(size, 1):
            return None
        product *= size
    return product


def _length(field: str, value: Any, context: Context) -> Verdict:
    return Verdict(
        classification=Class.LOWERED,
        reason="room on upstream's server, which refuses a longer conversation; here the model's own limit does",
        label=_LABEL,
    )


def _sampling(field: str, value: Any, context: Context) -> Verdict:
    return Verdict(
        classification=Class.INFORMATIONAL,
        reason="not read: a reward model samples nothing",
        warning=set_in_vain(field, context),
    )


_ARGUMENTS = Rule(
    f"{_SERVER}.engine_kwargs.*",
    lambda field, value, context: Verdict(
        classification=Class.NOT_IMPLEMENTED,
        reason="goes straight to the inference server, where it may change what is scored",
        fix=f"Remove {field}",
    ),
)


def _server_off(name: str, safe: Any, what: str) -> Rule:
    return off(
        f"{_SERVER}.{name}",
        safe,
        what=what,
        because=f"{what} would change what is scored, and is not done here",
        fix=f"Set {_SERVER}.{name} to {safe}",
    )


REWARD_MODEL = section(
    f"{_MODEL}.*",
    keeps_class("*._target_"),
    Rule(f"{_MODEL}.enable", _switch),
    *only_if(
        has_reward_model,
        "not read: this launch has no reward model",
        Rule(f"{_MODEL}.enable_resource_pool", _pool_switch),
        Rule(f"{_MODEL}.n_gpus_per_node", _pool_size),
        Rule(f"{_MODEL}.nnodes", _pool_size),
        Rule(f"{_MODEL}.model_path", _path),
        Rule(f"{_SERVER}.name", _backend),
        Rule(f"{_SERVER}.dtype", _dtype),
        Rule(f"{_SERVER}.tensor_model_parallel_size", _tensor_parallel),
        notes(
            f"{_SERVER}.*_parallel_size",
            Class.DISTRIBUTED,
            "how upstream spreads the reward model over devices; there is one here",
        ),
        *(
            Rule(f"{_SERVER}.{name}", _length)
            for name in ("max_model_len", "prompt_length", "response_length")
        ),
        *(
            Rule(f"{_SERVER}.{name}", _sampling)
            for name in ("ignore_eos", "temperature", "top_k", "top_p", "do_sample", "n", "seed")
        ),
        requires(
            f"{_SERVER}.skip_tokenizer_init",
            False,
            reason="the reward model's own tokenizer reads the conversation",
            classification=Class.CONFORMANT,
            label=_LABEL,
            otherwise=Class.UNSUPPORTED,
            because="the pin stops: the server of a reward model needs its tokenizer",
            fix=f"Set {_SERVER}.skip_tokenizer_init=False",
        ),
        notes(
            f"{_SERVER}.full_determinism",
            Class.CONFORMANT,
            "every conversation is scored alone here, and gets the same score each time",
            label="determinism",
        ),
        _server_off("engine_kwargs", {}, "arguments past upstream's own to its server"),
        _server_off("quantization", None, "quantised weights"),
        _server_off("quantization_config_file", None, "quantised weights"),
        _server_off("mtp", None, "multi-token prediction"),
        _server_off("disaggregation.enabled", False, "servers that each do a part of the work"),
        notes(
            f"{_SERVER}.*",
            Class.LOWERED,
            "how upstream's server for the reward model uses its memory and time",
            label=_LABEL,
        ),
    ),
    appended=only_if(has_reward_model, "not read: this launch has no reward model", _ARGUMENTS),
)
