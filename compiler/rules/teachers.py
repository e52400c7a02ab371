"""`distillation.teacher_models`: which models teach, and the servers that score for them upstream.

One teacher takes every prompt. Where a launch appends others by name, each takes the prompts of its key, and
the one of upstream's tree is dropped (verl/workers/config/distillation.py:290-330).
"""

from dataclasses import dataclass
from typing import Any

from miniverl.compiler.rule import (
    Class,
    Context,
    Rule,
    Verdict,
    notes,
    reject,
    section,
    set_in_vain,
)
from miniverl.compiler.rules.limits import is_whole, whole
from miniverl.compiler.rules.repeated import keeps_class

_MODELS = "distillation.teacher_models."
_ONLY = f"{_MODELS}teacher_model"
_POOL = ("distillation.n_gpus_per_node", "distillation.nnodes")
_LOSS = "distillation.distillation_loss"
# What an appended teacher's server has unless it is stated (verl/workers/config/rollout.py:148-200).
_SERVER_DEFAULTS = {
    "tensor_model_parallel_size": 2,
    "data_parallel_size": 1,
    "pipeline_model_parallel_size": 1,
    "prompt_length": 512,
    "response_length": 512,
    "max_model_len": None,
}
_SCORER = "teacher"
_TUNED = "how upstream's server for the teacher uses its memory and time"


@dataclass(frozen=True, slots=True)
class Entry:
    """A teacher: the section that configures it, and the key of its prompts; None takes all."""

    path: str
    key: str | None


def teacher_entries(context: Context) -> tuple[Entry, ...]:
    """The teachers of a launch, by the order of their keys."""
    appended = _appended(context)
    if not appended:
        return (Entry(_ONLY, None),)
    entries = (Entry(path, str(context.leaves.get(f"{path}.key"))) for path in appended)
    return tuple(sorted(entries, key=lambda entry: str(entry.key)))


def unstated_of_teachers(context: Context) -> tuple[str, ...]:
    """What a launch with teachers of its own names leaves out, and the pin stops without."""
    wanted = ("inference.name", "key", "model_path")
    fields = (f"{path}.{name}" for path in _appended(context) for name in wanted)
    return tuple(field for field in fields if field not in context.leaves)


def _appended(context: Context) -> list[str]:
    names = {
        field.removeprefix(_MODELS).partition(".")[0]
        for field in context.leaves
        if field.startswith(_MODELS)
    }
    return sorted(f"{_MODELS}{name}" for name in names if f"{_MODELS}{name}" != _ONLY)


def _is_dropped(field: str, context: Context) -> bool:
    return field.startswith(f"{_ONLY}.") and bool(_appended(context))


def _server(path: str, name: str, context: Context) -> Any:
    return context.leaves.get(f"{path}.inference.{name}", _SERVER_DEFAULTS.get(name))


def _devices(path: str, context: Context) -> int:
    """Devices of one replica; 1 where a size is at fault."""
    product = 1
    for kind in ("tensor_model", "data", "pipeline_model"):
        size = _server(path, f"{kind}_parallel_size", context)
        product *= size if is_whole(size, 1) else 1
    return product


def _pool(field: str, value: Any, context: Context) -> Verdict:
    """The pin gives teachers devices of their own, and stops unless their sizes fit."""
    if not is_whole(value, 1):
        return Verdict(
            classification=Class.UNSUPPORTED,
            reason="the pin stops: teachers need devices of their own there, though none are needed here",
            fix=f"Set {field} to at least 1",
        )
    sizes = [context.leaves[name] for name in _POOL]
    devices = sizes[0] * sizes[1] if all(is_whole(size, 1) for size in sizes) else None
    if devices is None or field != _POOL[1]:
        return Verdict(
            classification=Class.DISTRIBUTED, reason="teachers share the one device here"
        )
    appended = _appended(context)
    taken = sum(_replicas(path, context) * _devices(path, context) for path in appended)
    if appended and taken != devices:
        return Verdict(
            classification=Class.UNSUPPORTED,
            reason=f"the pin stops: all replicas of the teachers take {taken} devices, and {devices} are theirs",
            fix=f"Set {_POOL[0]} and {_POOL[1]} to make {taken}",
        )
    if not appended and devices % _devices(_ONLY, context):
        return Verdict(
            classification=Class.UNSUPPORTED,
            reason=f"the pin stops: {devices} devices are not whole replicas of {_devices(_ONLY, context)}",
            fix=f"Set {_ONLY}.inference.tensor_model_parallel_size=1",
        )
    return Verdict(classification=Class.DISTRIBUTED, reason="teachers share the one device here")


def _replicas(path: str, context: Context) -> int:
    replicas = context.leaves.get(f"{path}.num_replicas", 0)
    return replicas if is_whole(replicas, 0) else 0


def _key(field: str, value: Any, context: Context) -> Verdict:
    if field == f"{_ONLY}.key":
        return Verdict(
            classification=Class.CONFORMANT,
            reason="not read: a single teacher takes every prompt, whatever its key",
            label=_SCORER,
            warning=set_in_vain(field, context),
        )
    keys = [context.leaves.get(f"{path}.key") for path in _appended(context)]
    if not isinstance(value, str) or not value or keys.count(value) > 1:
        return Verdict(
            classification=Class.UNSUPPORTED,
            reason="the pin stops unless each of several teachers has a key of its own",
            fix=f"Set {field} to what its prompts hold in distillation.teacher_key",
        )
    return Verdict(
        classification=Class.EXACT,
        reason="the prompts that this teacher scores",
        label="distillation.teachers",
    )


def _path(field: str, value: Any, context: Context) -> Verdict:
    if not isinstance(value, str) or not value:
        return Verdict(
            classification=Class.UNSUPPORTED,
            reason="the pin stops: it does not know which model teaches",
            fix=f"Set {field} to the teacher's name, and bind a folder with its weights",
        )
    return Verdict(
        classification=Class.CONFORMANT,
        reason="names the teacher; the recipe holds the digest of the folder bound for it",
        label="distillation.teachers",
    )


def _dtype(field: str, value: Any, context: Context) -> Verdict:
    bound = context.bindings["compute_dtype"]
    return Verdict(
        classification=Class.CONFORMANT,
        reason="the dtype of upstream's server; here the bound compute_dtype scores",
        label="distillation.teachers",
        warning=None if value == bound else f"scores in {bound} here, in {value} upstream",
    )


def _backend(field: str, value: Any, context: Context) -> Verdict:
    top_k = context.leaves[f"{_LOSS}.loss_mode"] == "forward_kl_topk"
    if top_k and value not in ("vllm", "sglang"):
        return Verdict(
            classification=Class.UNSUPPORTED,
            reason="the pin takes a teacher's likeliest tokens from vllm or sglang only",
            fix=f"Set {field}=vllm",
        )
    return Verdict(
        classification=Class.LOWERED,
        reason="the server that scores upstream; here the teacher's own forward does",
        label=_SCORER,
    )


def _context_length(field: str, value: Any, context: Context) -> Verdict:
    """verl/workers/config/distillation.py:178: prompt, response and one more token."""
    path = field.removesuffix(".inference.max_model_len")
    lengths = [_server(path, f"{side}_length", context) for side in ("prompt", "response")]
    needed = sum(lengths) + 1 if all(is_whole(length, 1) for length in lengths) else 1
    if value is None or is_whole(value, needed):
        return Verdict(
            classification=Class.CONFORMANT,
            reason="leaves room for the longest prompt and response",
            label=_SCORER,
        )
    return Verdict(
        classification=Class.UNSUPPORTED,
        reason=f"the pin stops: the longest prompt and response and one more token are {needed}",
        fix=f"Set {field} to at least {needed}, or to null",
    )


def _arguments(field: str, value: Any, context: Context) -> Verdict:
    argument = field.rpartition("engine_kwargs")[2].lstrip(".")
    top_k = context.leaves[f"{_LOSS}.topk"]
    if argument == "vllm.max_logprobs":
        if is_whole(value, top_k if is_whole(top_k, 1) else 1):
            return Verdict(classification=Class.LOWERED, reason=_TUNED, label=_SCORER)
        return Verdict(
            classification=Class.UNSUPPORTED,
            reason="the pin stops: the server gives fewer likely tokens than distillation_loss.topk",
            fix=f"Remove {field}",
        )
    if not argument and not value:
        return Verdict(
            classification=Class.INFORMATIONAL,
            reason="off, as upstream's default: arguments past upstream's own to its server",
        )
    return Verdict(
        classification=Class.NOT_IMPLEMENTED,
        reason="goes straight to the inference server, where it may change what is scored",
        fix=f"Remove {field}",
    )


def _length(field: str, value: Any, context: Context) -> Verdict:
    if not whole(field, at_least=1).accepts(value):
        return reject(whole(field, at_least=1))
    return Verdict(
        classification=Class.LOWERED, reason="room for what a teacher scores", label=_SCORER
    )


def _temperature(field: str, value: Any, context: Context) -> Verdict:
    return Verdict(
        classification=Class.INFORMATIONAL,
        reason="not read: a teacher scores at temperature 1",
        warning=set_in_vain(field, context),
    )


_LEAVES: tuple[Rule, ...] = (
    keeps_class("*._target_"),
    Rule("*.key", _key),
    Rule("*.model_path", _path),
    notes(
        "*.num_replicas",
        Class.DISTRIBUTED,
        "how many servers score upstream; there is one device here",
    ),
    Rule("*.inference.name", _backend),
    Rule("*.inference.dtype", _dtype),
    Rule("*.inference.max_model_len", _context_length),
    Rule("*.inference.engine_kwargs*", _arguments),
    Rule("*.inference.prompt_length", _length),
    Rule("*.inference.response_length", _length),
    Rule("*.inference.temperature", _temperature),
    *(
        notes(
            f"*.inference.{kind}_parallel_size",
            Class.DISTRIBUTED,
            "how upstream spreads a teacher over devices; there is one here",
        )
        for kind in ("tensor_model", "data", "expert", "pipeline_model")
    ),
    *(
        notes(f"*.inference.{name}", Class.LOWERED, _TUNED, label=_SCORER)
        for name in (
            "gpu_memory_utilization",
            "enforce_eager",
            "cudagraph_capture_sizes",
            "free_cache_engine",
            "max_num_batched_tokens",
            "max_num_seqs",
            "load_format",
            "limit_images",
            "enable_chunked_prefill",
            "enable_prefix_caching",
            "disable_log_stats",
            "skip_tokenizer_init",
        )
    ),
)


def _dropped_with_others(rule: Rule) -> Rule:
    def judge(field: str, value: Any, context: Context) -> Verdict:
        if _is_dropped(field, context):
            return Verdict(
                classification=Class.INFORMATIONAL,
                reason="not read: beside teachers with names of their own upstream drops this one",
                warning=set_in_vain(field, context),
            )
        return rule.judge(field, value, context)

    return Rule(rule.pattern, judge)


TEACHERS: tuple[Rule, ...] = (
    *(Rule(field, _pool) for field in _POOL),
    _dropped_with_others(section(f"{_MODELS}*", *_LEAVES, appended=_LEAVES[1:])),
)
