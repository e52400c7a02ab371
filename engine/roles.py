"""The models of a run, each in its role: policy, critic, reference, teachers; and what trains them."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from miniverl.engine import models
from miniverl.engine.checkpoint import Part
from miniverl.engine.critic import load_critic
from miniverl.engine.events import ModelLoaded, Warned
from miniverl.engine.inputs import Inputs, LoadedInputs
from miniverl.engine.journal import Journal
from miniverl.engine.models import Model, Reference
from miniverl.engine.problem import Problem, WrongCall
from miniverl.engine.quantised import Kept
from miniverl.engine.recipe import Critic, Recipe
from miniverl.engine.reward_model import RewardModel
from miniverl.engine.teachers import Teachers, load_teachers
from miniverl.engine.transformers_forward import reason_against
from miniverl.engine.update import adamw


@dataclass(frozen=True, kw_only=True, slots=True)
class Roles:
    """None where the recipe has no such model."""

    policy: Model
    policy_optimizer: torch.optim.AdamW
    critic: Model | None
    critic_optimizer: torch.optim.AdamW | None
    reference: Reference | None
    teachers: Teachers | None

    @property
    def parts(self) -> dict[str, Part]:
        """What is trained, by role."""
        found = {"policy": Part(self.policy.trained(), self.policy_optimizer)}
        if self.critic is not None and self.critic_optimizer is not None:
            found["critic"] = Part(self.critic.trained(), self.critic_optimizer)
        return found


def load_roles(
    recipe: Recipe, inputs: Inputs, loaded: LoadedInputs, journal: Journal, device: str
) -> Roles:
    """As they are when a run starts; a checkpoint is restored into them afterwards."""
    kept = Kept(folder=inputs.quantised, tell=journal)
    started = time.perf_counter()
    policy = models.load_policy(
        recipe.policy,
        inputs.model,
        adapter_seed=recipe.seeds.parameters,
        device=device,
        adapter=inputs.adapter,
        kept=kept,
    )
    _require_computable(journal, "policy", policy, inputs.model)
    _report(journal, "policy", policy, policy.trained(), started)
    if loaded.reward_model is not None:
        started = time.perf_counter()
        loaded.reward_model.load(device, kept)
        _report(journal, "reward_model", loaded.reward_model, {}, started)
    critic = critic_optimizer = None
    if recipe.critic is not None:
        critic = _critic(recipe.critic, inputs, recipe.seeds.parameters, journal, device)
        critic_optimizer = adamw(critic.trained(), recipe.critic.optimizer)
    return Roles(
        policy=policy,
        policy_optimizer=adamw(policy.trained(), recipe.optimizer),
        critic=critic,
        critic_optimizer=critic_optimizer,
        reference=_reference(recipe, policy, journal),
        teachers=_teachers(recipe, inputs, loaded, journal, device, kept),
    )


def _critic(recipe: Critic, inputs: Inputs, seed: int, journal: Journal, device: str) -> Model:
    assert inputs.critic is not None, "engine/inputs.py refuses a recipe whose critic is not bound"
    started = time.perf_counter()
    critic = load_critic(recipe, inputs.critic, seed=seed, device=device)
    _report(journal, "critic", critic, critic.trained(), started)
    return critic


def _reference(recipe: Recipe, policy: Model, journal: Journal) -> Reference | None:
    """Before a checkpoint is restored: the reference is the policy that the run started with."""
    if recipe.kl_loss is None and recipe.kl_reward is None:
        return None
    started = time.perf_counter()
    reference = models.reference_of(policy)
    with reference() as model:
        _report(journal, "reference", model, {}, started)
    return reference


def _teachers(
    recipe: Recipe,
    inputs: Inputs,
    loaded: LoadedInputs,
    journal: Journal,
    device: str,
    kept: Kept,
) -> Teachers | None:
    if recipe.distillation is None:
        return None
    started = time.perf_counter()
    teachers = load_teachers(
        recipe.distillation, inputs.teachers, loaded.teacher_of_prompt, device, kept
    )
    for teacher, model, folder in zip(
        recipe.distillation.teachers, teachers.models, inputs.teachers, strict=True
    ):
        _require_computable(journal, teacher.input, model, folder)
        _report(journal, teacher.input, model, {}, started)
    return teachers


def _require_computable(journal: Journal, role: str, model: Model, folder: Path) -> None:
    """Raises WrongCall for a model that neither this engine nor transformers' padded rows compute."""
    if model.is_known:
        return
    architecture = type(model.network).__name__
    reason = reason_against(model)
    if reason is not None:
        fix = "Take a model of another architecture"
        raise WrongCall(
            [Problem(field=role, value=str(folder), origin="bindings", reason=reason, fix=fix)]
        )
    message = (
        f"the {role} is a {architecture}, which has no form of its own here: transformers computes it, "
        "in padded rows, each prompt again for each of its samples"
    )
    journal(Warned(code="transformers_path", message=message))


def _report(
    journal: Journal,
    role: str,
    model: Model | RewardModel,
    trained: Mapping[str, Tensor],
    started: float,
) -> None:
    journal(
        ModelLoaded(
            role=role,
            parameters=model.num_parameters(),
            trainable_parameters=sum(each.numel() for each in trained.values()),
            seconds=time.perf_counter() - started,
        )
    )
