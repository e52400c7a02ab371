"""The recipe: everything that decides what a run computes, and nothing about where it runs.

A recipe holds content digests, never paths, so that one launch compiled on two machines has one digest.
The compiler states each field, or the recipe does not exist; a default is None and says what older recipes mean.
Loads no torch.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal

import rfc8785

from miniverl.engine.algorithm import (
    Advantage,
    Aggregation,
    GroupFilter,
    KlLoss,
    KlReward,
    OverlongPenalty,
    PolicyLoss,
    RewardFunction,
    RolloutCorrection,
)
from miniverl.engine.bounds import range_problems
from miniverl.engine.problem import Problem, WrongCall
from miniverl.engine.strict import strict_json
from miniverl.engine.typed import Builder

SCHEMA_VERSION = 2
_FIX = "Compile the launch again"

Dtype = Literal["float32", "bfloat16", "float16"]
# Of the frozen weights of a body's linear layers (engine/nf4.py); None: they are in the type stated beside.
Quantization = Literal["nf4"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Seeds:
    """One seed for each named source of randomness (see engine/seeds.py)."""

    sampling: int
    data: int
    parameters: int
    mini_batches: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Data:
    """Which prompts, in which order. Digests are over the rows' canonical JSON, not over file bytes."""

    train_sha256: str
    validation_sha256: str | None
    prompt_field: str
    max_prompt_tokens: int
    drops_overlong: bool  # False: longer prompts lose their left end instead
    chat_template_arguments: Mapping[str, Any]
    max_rows: int | None  # taken before overlong rows are dropped
    shuffles: bool
    first_permutation: int  # which draw of the generator orders epoch 0, counted from 1
    prompts_per_step: int
    prompts_per_draw: int  # taken from the order at once; what is left at its end is dropped


@dataclass(frozen=True, kw_only=True, slots=True)
class Lora:
    rank: int
    alpha: float
    target_modules: tuple[str, ...]  # ("all-linear",) is every linear layer but the head
    excluded_modules: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """The trained model. `lora` None trains every weight."""

    weights_sha256: str  # content digest: names, dtypes, shapes and bytes of the tensors
    parameter_dtype: Dtype  # master weights and optimizer moments
    compute_dtype: Dtype  # scoring and update
    lora: Lora | None
    checkpoints_activations: bool
    adapter_sha256: str | None = None  # what `lora` starts from; None: a new adapter
    quantization: Quantization | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Rollout:
    samples_per_prompt: int
    max_response_tokens: int
    temperature: float
    top_p: float  # 1.0: off
    top_k: int  # 0: off
    ignores_eos: bool
    dtype: Dtype
    # "nf4": over the policy's quantised weights, its adapter beside; None: over a copy in `dtype`, adapter merged.
    weights: Quantization | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Validation:
    """Temperature 0 is greedy. `every_steps` n: every n steps and after the last one; 0: not while training."""

    before_training: bool
    every_steps: int
    samples_per_prompt: int
    temperature: float
    top_p: float
    top_k: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RewardModel:
    """A sequence classifier with one output, read at the last token of the conversation."""

    weights_sha256: str
    dtype: Dtype
    quantization: Quantization | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Reward:
    """`function` belongs to the scorer "function", `model` to the scorer "reward_model"."""

    scorer: str  # a name in engine.reward.SCORERS, or one of these two
    arguments: Mapping[str, Any]
    function: RewardFunction | None
    model: RewardModel | None
    overlong_penalty: OverlongPenalty | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Optimizer:
    """AdamW over one parameter group: weight decay reaches norms, biases and embeddings too."""

    name: Literal["adamw"]
    learning_rate: float
    betas: tuple[float, float]
    epsilon: float
    weight_decay: float
    max_gradient_norm: float


@dataclass(frozen=True, kw_only=True, slots=True)
class LearningRateSchedule:
    """Ticks once per step, not per optimizer step."""

    kind: Literal["constant", "cosine"]
    warmup_steps: int
    total_steps: int
    min_ratio: float
    num_cycles: float
    zero_indexed: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Update:
    prompts_per_mini_batch: int
    epochs: int
    shuffles: bool
    micro_batch_tokens: int  # of one forward, a shared prompt once; fixes the order of sums


@dataclass(frozen=True, kw_only=True, slots=True)
class Critic:
    """The value model: a backbone with a fresh head of one output. `lora` None trains every weight."""

    weights_sha256: str
    parameter_dtype: Dtype
    compute_dtype: Dtype
    lora: Lora | None
    checkpoints_activations: bool
    value_clip: float
    aggregation: Aggregation
    optimizer: Optimizer
    learning_rate_schedule: LearningRateSchedule
    update: Update
    mini_batch_seed: int
    warmup_steps: int  # the policy is first trained in step `warmup_steps`, or in step 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Teacher:
    """`key`: what the routing field of its prompts holds; None takes every prompt."""

    key: str | None
    weights_sha256: str
    dtype: Dtype
    quantization: Quantization | None = None

    @property
    def input(self) -> str:
        """Its name among the recipe's inputs."""
        return "teacher" if self.key is None else f"teacher.{self.key}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Distillation:
    """Learning from teachers' log-probabilities of the student's own responses."""

    teachers: tuple[Teacher, ...]
    routing_field: str
    loss: Literal["forward_kl_topk", "k1", "abs", "k2", "k3"]
    top_k: int | None  # forward_kl_topk
    min_log_prob: float | None  # forward_kl_topk: both sides are clamped from below
    max_loss: float | None  # per token, both ways
    policy_gradient_clips: (
        tuple[float, float] | None
    )  # (low, high); None: the loss itself is minimised
    uses_task_rewards: bool
    coefficient: float  # 1 without task rewards


@dataclass(frozen=True, kw_only=True, slots=True)
class Steps:
    """A step: one batch of rollouts and the optimizer steps on it. Both bounds hold; the nearer one ends the run."""

    num_steps: int | None
    num_epochs: int
    checkpoint_every: int  # 0: only after the last step
    keep_checkpoints: int | None  # None: all


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """Fields of its parts that have a default came later: where they hold it, a recipe keeps its digest."""

    schema_version: int
    seeds: Seeds
    data: Data
    policy: Policy
    rollout: Rollout
    validation: Validation | None
    group_filter: GroupFilter | None
    reward: Reward
    kl_reward: KlReward | None
    rollout_correction: RolloutCorrection | None
    advantage: Advantage
    policy_loss: PolicyLoss
    kl_loss: KlLoss | None
    distillation: Distillation | None
    critic: Critic | None
    optimizer: Optimizer
    learning_rate_schedule: LearningRateSchedule
    update: Update
    steps: Steps

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the files and folders whose content a run of it needs."""
        teachers = () if self.distillation is None else self.distillation.teachers
        wanted = {
            "model": True,
            "adapter": self.policy.adapter_sha256 is not None,
            "train": True,
            "validation": self.validation is not None,
            "critic": self.critic is not None,
            "reward_model": self.reward.model is not None,
            "reward_function": self.reward.function is not None,
            **{teacher.input: True for teacher in teachers},
        }
        return tuple(name for name, is_wanted in wanted.items() if is_wanted)

    def trains_policy_in(self, step: int) -> bool:
        """False while the critic warms up."""
        return self.critic is None or step >= self.critic.warmup_steps

    @property
    def sha256(self) -> str:
        """Digest over the RFC 8785 bytes of the recipe."""
        return hashlib.sha256(rfc8785.dumps(to_dict(self))).hexdigest()


def to_dict(recipe: Recipe) -> dict[str, Any]:
    """The recipe as plain JSON values."""
    plain: dict[str, Any] = json.loads(json.dumps(_stated(recipe), allow_nan=False))
    return plain


def _stated(value: Any) -> Any:
    """Without the fields that hold their default."""
    if is_dataclass(value):
        held = {part: getattr(value, part.name) for part in fields(value)}
        return {part.name: _stated(its) for part, its in held.items() if its != part.default}
    if isinstance(value, tuple):
        return [_stated(item) for item in value]
    return value


def dumps(recipe: Recipe) -> str:
    """Canonical JSON: sorted keys, a newline at the end."""
    return json.dumps(to_dict(recipe), indent=1, sort_keys=True, allow_nan=False) + "\n"


def from_dict(plain: Mapping[str, Any], origin: str) -> Recipe:
    """The recipe in `plain`; raises WrongCall with every field that is missing, unknown, ill-typed or out of range."""
    builder = Builder(origin, fix=_FIX)
    built = builder.build(Recipe, plain, "recipe")
    problems = builder.problems
    if not problems:
        problems += range_problems(to_dict(built), origin)
    version = plain.get("schema_version") if isinstance(plain, Mapping) else None
    if type(version) is int and version != SCHEMA_VERSION:
        reason = f"this miniverl knows version {SCHEMA_VERSION} only"
        problems.insert(0, _problem("recipe.schema_version", version, origin, reason))
    if problems:
        raise WrongCall(problems)
    assert isinstance(built, Recipe)
    return built


def loads(text: str, origin: str) -> Recipe:
    """Read a recipe from JSON text. `origin` is named in errors."""
    try:
        plain = strict_json(text)
    except ValueError as error:
        raise WrongCall([_problem("recipe", text[:40], origin, str(error))]) from error
    return from_dict(plain, origin)


def _problem(path: str, value: Any, origin: str, reason: str) -> Problem:
    return Problem(field=path, value=value, origin=origin, reason=reason, fix=_FIX)
