"""A config file as a source: a whole resolved config, or a documented subset with its `miniverl` block.

A whole config stands for itself. A subset states some leaves; the others hold what upstream ships, follow the
leaf that they copy there, or follow the `miniverl` block. The report has a row for each leaf stated, and the
recipe is lowered from all of them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from miniverl.compiler.bindings import DTYPES, Bindings
from miniverl.compiler.bound_quantization import FORMATS, POLICY
from miniverl.compiler.bound_reward import PROVIDERS
from miniverl.compiler.faults import placeholder_problems
from miniverl.compiler.follows import FOLLOWS
from miniverl.compiler.leaf import parents
from miniverl.compiler.mapping import Document
from miniverl.compiler.profiles import Profile
from miniverl.compiler.source import MANDATORY, Source
from miniverl.engine.problem import Problem, Refused

SUFFIXES = (".yaml", ".yml", ".json")
BLOCK = "miniverl"

_ACTOR = "actor_rollout_ref.actor"
_MODEL = "actor_rollout_ref.model"
_ROLLOUT = "actor_rollout_ref.rollout"
_BATCH = "miniverl.update.trajectory_batch_size"
_ENABLED = "miniverl.actor.lora_enabled"

# Upstream ships a placeholder, or a path of one of its authors, for each of these.
REQUIRED: Mapping[str, str] = {
    "data.train_files": "[train.parquet]",
    "data.val_files": "[], or [validation.parquet]",
    f"{_MODEL}.path": "Qwen/Qwen3-0.6B",
    f"{_ROLLOUT}.name": "vllm",
}


def is_file(source: str) -> bool:
    return Path(source).suffix in SUFFIXES


def has_block(document: Document) -> bool:
    """Whether it is a documented subset."""
    return any(field.partition(".")[0] == BLOCK for field in document.leaves)


def resolved(document: Document, defaults: Mapping[str, Any], profile: Profile) -> Source:
    """A whole config. A leaf that it lacks is judged as missing; raises Refused for what is none at all."""
    _check_sections(document, defaults)
    origins = {field: document.origin(field) for field in document.leaves}
    open_leaves = tuple(_left_open(document, defaults))
    if open_leaves:
        raise Refused(open_leaves)
    placeholders = tuple(placeholder_problems(document.leaves, origins, defaults))
    return Source(
        config_name=profile.config_name,
        leaves=document.leaves,
        origins={**dict.fromkeys(defaults, document.name), **origins},
        launched=document.leaves,
        defaults=defaults,
        description=f"the resolved config {document.name} with {len(document.leaves)} leaves",
        sha256=document.sha256,
        notes=(),
        stated=None,
        required=placeholders,
        placeholders=frozenset(problem.field for problem in placeholders),
        mends_missing="A resolved config has every leaf: put it back, or compile hydra: with overrides",
    )


def subset(document: Document, defaults: Mapping[str, Any], profile: Profile) -> Source:
    """A documented subset; raises Refused for a file without any section of upstream's."""
    _check_sections(document, defaults)
    stated = {**profile.local, **document.leaves}
    implied = dict(_implied(stated, document))
    leaves = dict(stated)
    origins = {field: "default" for field in (*defaults, *profile.local)}
    for field in defaults:
        leaves[field], origins[field] = _value(field, document, implied, defaults)
    branches = {above for field in document.leaves for above in parents(field)} & defaults.keys()
    if stated[_ENABLED] is False:
        leaves[f"{_MODEL}.lora_rank"] = 0
    return Source(
        config_name=profile.config_name,
        leaves={field: leaf for field, leaf in leaves.items() if field not in branches},
        origins={**origins, **{field: document.origin(field) for field in document.leaves}},
        launched=leaves,
        defaults=defaults,
        description=f"the subset {document.name} with {len(document.leaves)} leaves",
        sha256=document.sha256,
        notes=(),
        stated=document.leaves,
        required=tuple(_required(document)),
        mends_missing="Put it back",
    )


def bound_by(source: Source, bindings: Bindings) -> Bindings:
    """The bindings with what the `miniverl` block binds; what is bound on the command line wins."""
    provider, dtype = (
        source.leaves[f"miniverl.{name}"] for name in ("reward.provider", "actor.dtype")
    )
    if not (bindings.reward or bindings.reward_function) and provider in PROVIDERS:
        bindings = replace(bindings, reward=provider)
    if "compute_dtype" not in bindings.origins and dtype in DTYPES:
        bindings = replace(bindings, compute_dtype=dtype)
    stated = source.leaves["miniverl.actor.quantization"]
    if POLICY not in bindings.origins and stated in FORMATS and stated != "none":
        bindings = replace(bindings, quantised={**bindings.quantised, POLICY: stated})
    return bindings


def _check_sections(document: Document, defaults: Mapping[str, Any]) -> None:
    found = {field.partition(".")[0] for field in document.leaves}
    if found & {field.partition(".")[0] for field in defaults}:
        return
    raise Refused(
        [
            Problem(
                field=document.name,
                value=", ".join(sorted(found)[:8]) or None,
                origin=f"{document.name}:1",
                reason="it has none of the sections of an upstream config, such as data or trainer",
                fix="Give the config itself: a whole resolved one, or a subset with a miniverl block",
            )
        ]
    )


def _left_open(document: Document, defaults: Mapping[str, Any]) -> Iterator[Problem]:
    for field, value in document.leaves.items():
        if value == MANDATORY and defaults.get(field) != MANDATORY:
            yield _problem(
                field, value, document.origin(field), "??? marks a value that nobody has set"
            )


def _implied(
    stated: Mapping[str, Any], document: Document
) -> Iterator[tuple[str, tuple[Any, str]]]:
    """Leaves that the block states under another name, and where."""
    origin = document.origin(_BATCH) if _BATCH in document.leaves else "default"
    for field in (
        f"{_ACTOR}.ppo_micro_batch_size_per_gpu",
        f"{_ROLLOUT}.log_prob_micro_batch_size_per_gpu",
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu",
    ):
        yield field, (stated[_BATCH], f"{_BATCH} of {origin}")


def _value(
    field: str,
    document: Document,
    implied: Mapping[str, tuple[Any, str]],
    defaults: Mapping[str, Any],
) -> tuple[Any, str]:
    """What a leaf holds, and where that was set."""
    if field in document.leaves:
        return document.leaves[field], document.origin(field)
    if field in implied:
        return implied[field]
    if field in FOLLOWS:
        value, origin = _value(FOLLOWS[field], document, implied, defaults)
        if origin != "default":
            return value, f"default ${{{FOLLOWS[field]}}}"
    return defaults[field], "default"


def _required(document: Document) -> Iterator[Problem]:
    for field, example in REQUIRED.items():
        value = document.leaves.get(field, MANDATORY)
        is_placeholder = isinstance(value, str) and (
            value == MANDATORY or (value.startswith("<") and value.endswith(">"))
        )
        if is_placeholder:
            origin = document.origin(field) if field in document.leaves else document.name
            reason = "nobody has set it, and upstream's own value is a placeholder"
            yield _problem(field, value, origin, reason, example)


def _problem(field: str, value: object, origin: str, reason: str, example: str = "...") -> Problem:
    return Problem(
        field=field, value=value, origin=origin, reason=reason, fix=f"State {field}, as {example}"
    )
