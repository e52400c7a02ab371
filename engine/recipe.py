"""The recipe: everything that decides what a run computes, and nothing about where it runs.

A recipe holds content digests, never paths, so that one launch compiled on two machines has one digest.
No field has a default: the compiler states each of them, or the recipe does not exist. Loads no torch.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import rfc8785

from miniverl.engine.bounds import range_problems
from miniverl.engine.problem import Problem, WrongCall
from miniverl.engine.strict import strict_json

SCHEMA_VERSION = 1

Dtype = Literal["float32", "bfloat16", "float16"]
KlEstimator = Literal["k1", "abs", "k2", "k3", "k1+", "abs+", "k2+", "k3+"]
AggregationMode = Literal[
    "token-mean",
    "token-sum",
    "seq-mean-token-sum",
    "seq-mean-token-mean",
    "seq-mean-token-sum-norm",
]


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Rollout:
    samples_per_prompt: int
    max_response_tokens: int
    temperature: float
    top_p: float  # 1.0: off
    top_k: int  # 0: off
    ignores_eos: bool
    dtype: Dtype


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
class Reward:
    scorer: str  # a name in engine.reward.SCORERS
    arguments: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Advantage:
    estimator: Literal["grpo"]
    divides_by_std: bool  # False is Dr.GRPO


@dataclass(frozen=True, kw_only=True, slots=True)
class Aggregation:
    """How per-token losses become one number; `horizon` divides in seq-mean-token-sum-norm only."""

    mode: AggregationMode
    horizon: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyLoss:
    """The clipped surrogate with dual clip."""

    name: Literal["vanilla"]
    clip_low: float
    clip_high: float
    dual_clip: float
    aggregation: Aggregation
    entropy_coefficient: float


@dataclass(frozen=True, kw_only=True, slots=True)
class KlLoss:
    """KL to the reference policy (the initial policy) as a term of the loss."""

    estimator: KlEstimator
    coefficient: float


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
class Steps:
    """A step: one batch of rollouts and the optimizer steps on it. Both bounds hold; the nearer one ends the run."""

    num_steps: int | None
    num_epochs: int
    checkpoint_every: int  # 0: only after the last step
    keep_checkpoints: int | None  # None: all


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    schema_version: int
    seeds: Seeds
    data: Data
    policy: Policy
    rollout: Rollout
    validation: Validation | None
    reward: Reward
    advantage: Advantage
    policy_loss: PolicyLoss
    kl_loss: KlLoss | None
    optimizer: Optimizer
    learning_rate_schedule: LearningRateSchedule
    update: Update
    steps: Steps

    @property
    def sha256(self) -> str:
        """Digest over the RFC 8785 bytes of the recipe."""
        return hashlib.sha256(rfc8785.dumps(to_dict(self))).hexdigest()


def to_dict(recipe: Recipe) -> dict[str, Any]:
    """The recipe as plain JSON values."""
    plain: dict[str, Any] = json.loads(json.dumps(asdict(recipe), allow_nan=False))
    return plain


def dumps(recipe: Recipe) -> str:
    """Canonical JSON: sorted keys, a newline at the end."""
    return json.dumps(to_dict(recipe), indent=1, sort_keys=True, allow_nan=False) + "\n"


def from_dict(plain: Mapping[str, Any], origin: str) -> Recipe:
    """The recipe in `plain`; raises WrongCall with every field that is missing, unknown, ill-typed or out of range."""
    problems: list[Problem] = []
    built = _build(Recipe, plain, "recipe", origin, problems)
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


def _build(kind: Any, value: Any, path: str, origin: str, problems: list[Problem]) -> Any:
    """`value` as a `kind`, or None with the reason appended to `problems`."""
    if get_origin(kind) in (Union, UnionType):
        options = [option for option in get_args(kind) if option is not NoneType]
        return None if value is None else _build(options[0], value, path, origin, problems)
    if is_dataclass(kind):
        return _build_part(kind, value, path, origin, problems)
    if get_origin(kind) is tuple and isinstance(value, list):
        items = get_args(kind)
        inner = [items[0]] * len(value) if items[-1] is Ellipsis else list(items)
        if len(inner) == len(value):
            return tuple(
                _build(item, part, f"{path}.{index}", origin, problems)
                for index, (item, part) in enumerate(zip(inner, value, strict=True))
            )
    elif get_origin(kind) is Literal:
        if value in get_args(kind):
            return value
    elif get_origin(kind) is Mapping or kind is Mapping:
        if isinstance(value, dict):
            return value
    elif kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        if math.isfinite(value):
            return float(value)
    elif isinstance(kind, type) and type(value) is kind:
        return value
    problems.append(_problem(path, value, origin, f"expected {_spelled(kind)}"))
    return None


def _build_part(kind: Any, value: Any, path: str, origin: str, problems: list[Problem]) -> Any:
    if not isinstance(value, Mapping):
        problems.append(_problem(path, value, origin, "expected a mapping"))
        return None
    hints = get_type_hints(kind)
    names = [field.name for field in fields(kind)]
    for name in sorted(set(value) - set(names)):
        problems.append(_problem(f"{path}.{name}", value[name], origin, "unknown field"))
    missing = [name for name in names if name not in value]
    for name in missing:
        problems.append(_problem(f"{path}.{name}", None, origin, "missing field"))
    parts = {
        name: _build(hints[name], value[name], f"{path}.{name}", origin, problems)
        for name in names
        if name in value
    }
    return None if missing else kind(**parts)


def _spelled(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(map(repr, get_args(kind)))
    return getattr(kind, "__name__", str(kind))


def _problem(path: str, value: Any, origin: str, reason: str) -> Problem:
    return Problem(
        field=path, value=value, origin=origin, reason=reason, fix="Compile the launch again"
    )
