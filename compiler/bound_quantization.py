"""Bindings that hold frozen weights in 4 bits. Upstream's workers have nothing of the kind, so no leaf asks for it.

Other weights give other numbers than the launch's: each binding is a row of the report, and is warned of. A subset's
block may ask for the policy's itself.
"""

from collections.abc import Iterator, Mapping
from typing import Any, get_args

from miniverl.compiler.rule import Context
from miniverl.engine.problem import Problem
from miniverl.engine.recipe import Quantization

FORMATS: tuple[str, ...] = ("none", *get_args(Quantization))

POLICY, ROLLOUT = "quantization", "rollout_weights"
TEACHER, REWARD_MODEL = "teacher_quantization", "reward_model_quantization"
# Binding -> the leaf that says upstream what such weights are held in.
LEAVES: Mapping[str, str] = {
    POLICY: "actor_rollout_ref.actor.fsdp_config.model_dtype",
    ROLLOUT: "actor_rollout_ref.rollout.quantization",
    TEACHER: "distillation.teacher_models.teacher_model.inference.dtype",
    REWARD_MODEL: "reward.reward_model.rollout.dtype",
}
_TARGETS: Mapping[str, str] = {POLICY: "policy.quantization", ROLLOUT: "rollout.weights"}
_WHAT: Mapping[str, str] = {
    POLICY: "the policy's frozen weights are in 4 bits, and an adapter is trained beside them",
    ROLLOUT: "the policy samples over its weights of 4 bits, and not over a copy",
    TEACHER: "the teachers' weights are in 4 bits",
    REWARD_MODEL: "the reward model's weights are in 4 bits",
}


def values(quantised: Mapping[str, str]) -> dict[str, Any]:
    """What of the recipe no leaf writes, by its path."""
    return {_TARGETS[name]: held for name, held in quantised.items() if name in _TARGETS}


def part(context: Context, name: str) -> dict[str, Any]:
    """What the recipe says of a teacher's or a reward model's weights beside their dtype."""
    quantised = context.bindings["quantised"]
    return {"quantization": quantised[name]} if name in quantised else {}


def rows(quantised: Mapping[str, str], bound: Mapping[str, str]) -> dict[str, tuple[str, Any]]:
    """Leaf and what runs in its place, of what is bound and not stated by the launch."""
    return {name: (LEAVES[name], held) for name, held in quantised.items() if name in bound}


def changes(context: Context, bound: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """What is bound beside the launch, and the warning of what it changes."""
    for name, held in context.bindings["quantised"].items():
        if name in bound:
            told = f"{_WHAT[name]}; upstream's are not, so these are other numbers"
            yield name, f"{name}={held}: {told}"


def problems(context: Context) -> Iterator[Problem]:
    """What the bindings leave open between them."""
    quantised = context.bindings["quantised"]
    if ROLLOUT in quantised and quantised.get(POLICY) != quantised[ROLLOUT]:
        yield Problem(
            field=ROLLOUT,
            value=quantised[ROLLOUT],
            origin="bindings",
            reason="it samples over the policy's quantised weights, and they are not quantised",
            fix=f"Bind {POLICY}={quantised[ROLLOUT]} too, or leave it out",
        )
