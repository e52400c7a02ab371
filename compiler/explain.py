"""What one leaf of upstream's tree means: its default, who reads it there, and what becomes of it here."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.resources import files
from typing import Any, get_args

from miniverl.compiler import profiles, upstream
from miniverl.compiler import source as sources
from miniverl.compiler.bindings import parse
from miniverl.compiler.follows import FOLLOWS
from miniverl.compiler.profiles import Profile
from miniverl.compiler.rule import Class, Verdict
from miniverl.compiler.suggest import did_you_mean
from miniverl.engine.algorithm import PolicyLossName
from miniverl.engine.problem import Problem, WrongCall

# Per leaf the values that upstream takes, and the lines that read it; a leaf without lines is read by nothing.
READERS: Mapping[str, Mapping[str, Any]] = json.loads(
    (files("miniverl.compiler") / "readers.json").read_text(encoding="utf-8")
)

_ACTOR = "actor_rollout_ref.actor"
_KL = "algorithm.use_kl_in_reward"
# What selects leaves that nothing reads by default; the first under which a leaf is read is told.
_SWITCHES: tuple[Mapping[str, Any], ...] = (
    {f"{_ACTOR}.use_kl_loss": True},
    {_KL: True},
    {_KL: True, "algorithm.kl_ctrl.type": "adaptive"},
    {"algorithm.adv_estimator": "grpo"},
    {"algorithm.filter_groups.enable": True},
    {"algorithm.rollout_correction.rollout_is": "token"},
    {"algorithm.rollout_correction.rollout_rs": "token_k1"},
    {"critic.enable": True},
    {"critic.enable": True, "critic.optim.lr_scheduler_type": "cosine"},
    {"distillation.enabled": True},
    {
        "distillation.enabled": True,
        "distillation.distillation_loss.loss_mode": "forward_kl_topk",
    },
    {
        "distillation.enabled": True,
        "distillation.distillation_loss.loss_mode": "k1",
        "distillation.distillation_loss.use_policy_gradient": True,
    },
    {"reward.reward_model.enable": True},
    {"actor_rollout_ref.model.lora_rank": 8},
    {f"{_ACTOR}.shuffle": True},
    {f"{_ACTOR}.optim.lr_scheduler_type": "cosine"},
    {f"{_ACTOR}.loss_agg_mode": "seq-mean-token-sum-norm"},
    {f"{_ACTOR}.use_dynamic_bsz": True},
    *({f"{_ACTOR}.policy_loss.loss_mode": name} for name in get_args(PolicyLossName)),
)


def explain(
    field: str, *, profile: str | None = None, progress: upstream.Progress = upstream.quiet
) -> dict[str, Any]:
    """The leaf as upstream ships it, judged with every other leaf at its default.

    Raises WrongCall, with the nearest name, for what is no leaf.
    """
    chosen = profiles.called(profile or profiles.DEFAULTS["hydra"])
    defaults = sources.defaults(chosen.config_name, version=chosen.verl, progress=progress)
    if field not in defaults:
        raise WrongCall([_no_leaf(field, defaults)])
    verdict = _verdict(field, chosen, defaults)
    reading = READERS.get(field, {})
    return {
        "classes": dict(_classes(field, chosen.verl, defaults)),
        "classification": str(verdict.classification),
        "counts_with": _counts_with(field, chosen, defaults),
        "default": defaults[field],
        "example": f"{_own(field)}={_example(defaults[field], reading.get('type', ''))}",
        "field": field,
        "fix": verdict.fix,
        "follows": FOLLOWS.get(field),
        "local_target": verdict.label,
        "readers": reading.get("readers", []),
        "reason": verdict.reason,
        "recipe_path": verdict.target,
        "type": reading.get("type"),
        "unit": _unit(field, defaults[field]),
        "verl": chosen.pin.tag,
    }


def text(explained: Mapping[str, Any]) -> str:
    """The explanation for a terminal."""
    takes = f"   takes {explained['type']}" if explained["type"] else ""
    lines = [
        f"{explained['field']}  (verl {explained['verl']})",
        f"  default   {json.dumps(explained['default'])}{takes}",
        f"  here      {explained['classification']}: {explained['reason']}",
    ]
    if explained["unit"]:
        lines.insert(2, f"  unit      {explained['unit']}")
    counts = explained["counts_with"]
    if counts:
        lines.append(
            f"  counts    with {counts['overrides']}, as {counts['classification']}: {counts['reason']}"
        )
    if explained["recipe_path"]:
        lines.append(f"  recipe    {explained['recipe_path']}")
    if explained["fix"]:
        lines.append(f"  fix       {explained['fix']}")
    if explained["follows"]:
        lines.append(f"  follows   {explained['follows']}, until it is set itself")
    readers = ", ".join(explained["readers"]) or "nothing, on the path of the default trainer"
    lines.append(f"  read by   {readers}")
    lines.append(f"  example   {explained['example']}")
    lines += [f"  {name}  {one}" for name, one in explained["classes"].items()]
    return "\n".join(lines)


def _verdict(field: str, profile: Profile, defaults: Mapping[str, Any]) -> Verdict:
    context = profiles.nothing_set(profile, defaults, parse([]))
    return profile.table.judge(field, defaults[field], context)


def _counts_with(
    field: str, profile: Profile, defaults: Mapping[str, Any]
) -> Mapping[str, str] | None:
    """The overrides under which a leaf that nothing reads by default is read, and what it then means."""
    if _verdict(field, profile, defaults).classification is not Class.INFORMATIONAL:
        return None
    nothing_set = profiles.nothing_set(profile, defaults, parse([]))
    for switch in _SWITCHES:
        if field in switch or not switch.keys() <= defaults.keys():
            continue
        moved = {copy: switch[copied] for copy, copied in FOLLOWS.items() if copied in switch}
        context = replace(nothing_set, leaves={**nothing_set.leaves, **moved, **switch})
        verdict = profile.table.judge(field, context.leaves[field], context)
        if verdict.classification is not Class.INFORMATIONAL:
            return {
                "classification": str(verdict.classification),
                "overrides": " ".join(f"{one}={value}" for one, value in switch.items()),
                "reason": verdict.reason,
            }
    return None


def _classes(field: str, verl: str, defaults: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What each profile of that release says of the leaf; None of those that it may not be stated in."""
    for name, one in profiles.PROFILES.items():
        if one.verl == verl:
            stated = one.admits(field)
            yield (
                name,
                str(_verdict(field, one, defaults).classification) if stated else "not stated",
            )


# By the last name of a leaf; the first that fits.
_UNITS: tuple[tuple[str, str], ...] = (
    (r"(train|gen|ppo_mini)_batch_size", "prompts"),
    (r"val_batch_size", "prompts"),
    (r".*micro_batch_size.*", "trajectories of one forward and backward"),
    (r".*(token_len|num_batched_tokens|model_len|token_length).*", "tokens"),
    (r"(max_)?(prompt|response)_length", "tokens"),
    (r".*total_epochs|ppo_epochs", "passes over the data"),
    (
        r".*total_training_steps|lr_warmup_steps|(save|test)_freq|critic_warmup",
        "steps: one batch of rollouts and its updates",
    ),
    (r"lr_warmup_steps_ratio", "share of the steps"),
    (r"n", "responses to each prompt"),
    (r".*timeout.*", "seconds"),
    (r".*gpu_memory_utilization", "share of a device's memory"),
    (r".*_parallel_size|.*n_gpus_per_node", "devices"),
    (r".*nnodes", "machines"),
    (r".*megabytes", "megabytes"),
    (r".*_mb", "megabytes"),
)


def _unit(field: str, default: Any) -> str | None:
    name = field.rpartition(".")[2]
    if isinstance(default, bool | str):
        return None
    return next((unit for pattern, unit in _UNITS if re.fullmatch(pattern, name)), None)


def _own(field: str) -> str:
    """The leaf that may be overridden: of a section that is a copy as a whole, that of the section copied."""
    followed = FOLLOWS.get(field, field)
    return followed if followed.split(".")[-2:] == field.split(".")[-2:] else field


def _example(default: Any, takes: str) -> str:
    """A value that the leaf takes, in Hydra's grammar: another choice where there are some, else its default."""
    choices = [word for word in takes.split("|") if re.fullmatch(r"[A-Za-z_][\w-]*", word)]
    others = [word for word in choices if word != default and word not in _KINDS]
    if isinstance(default, bool):
        return str(not default)
    if others:
        return others[0]
    if default is None:
        return next((value for kind, value in _KINDS.items() if kind in takes), "null")
    text = json.dumps(default, separators=(",", ":")).replace('"', "")
    return text if re.fullmatch(r"[\w.,:\[\]{}/+-]*", text) else f"'{text}'"


_KINDS = {
    "bool": "True",
    "int": "1",
    "float": "1.0",
    "path": "a_path",
    "list": "[]",
    "dict": "{}",
    "mapping": "{}",
    "str": "a_name",
    "null": "null",
}


def _no_leaf(field: str, defaults: Mapping[str, Any]) -> Problem:
    below = [leaf for leaf in defaults if leaf.startswith(f"{field}.")]
    return Problem(
        field="field",
        value=field,
        origin="command line",
        reason=f"it is a section of {len(below)} leaves"
        if below
        else "upstream's tree has no such leaf",
        fix=f"Ask for one of them, such as {below[0]}"
        if below
        else did_you_mean(
            field, defaults, "Give a dotted path such as actor_rollout_ref.rollout.n"
        ),
    )
