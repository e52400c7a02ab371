"""What a recipe's numbers may be: the range of each, and which of them must fit together.

The compiler states no other numbers; this is for a recipe that somebody wrote or changed by hand. Loads no torch.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from miniverl.engine.problem import Problem

Plain = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Range:
    spelled: str
    accepts: Callable[[Any], bool]


_ANY_COUNT = Range(spelled="a whole number of at least 0", accepts=lambda value: value >= 0)
_COUNT = Range(spelled="a whole number of at least 1", accepts=lambda value: value >= 1)
_NOT_NEGATIVE = Range(spelled="a number of at least 0", accepts=lambda value: value >= 0)
_POSITIVE = Range(spelled="a number above 0", accepts=lambda value: value > 0)
_SHARE = Range(spelled="a number from 0 to 1", accepts=lambda value: 0 <= value <= 1)
_MASS = Range(
    spelled="a number above 0 and at most 1; 1 is off", accepts=lambda value: 0 < value <= 1
)
_DECAY = Range(spelled="a number of at least 0 and below 1", accepts=lambda value: 0 <= value < 1)
_NAMES = Range(spelled="at least one name", accepts=lambda value: len(value) > 0)

RANGES: Mapping[str, Range] = {
    "seeds.sampling": _ANY_COUNT,
    "seeds.data": _ANY_COUNT,
    "seeds.parameters": _ANY_COUNT,
    "seeds.mini_batches": _ANY_COUNT,
    "data.max_prompt_tokens": _COUNT,
    "data.max_rows": _COUNT,
    "data.first_permutation": _COUNT,
    "data.prompts_per_step": _COUNT,
    "policy.lora.rank": _COUNT,
    "policy.lora.target_modules": _NAMES,
    "rollout.samples_per_prompt": _COUNT,
    "rollout.max_response_tokens": _COUNT,
    "rollout.temperature": _NOT_NEGATIVE,
    "rollout.top_p": _MASS,
    "rollout.top_k": _ANY_COUNT,
    "validation.every_steps": _ANY_COUNT,
    "validation.samples_per_prompt": _COUNT,
    "validation.temperature": _NOT_NEGATIVE,
    "validation.top_p": _MASS,
    "validation.top_k": _ANY_COUNT,
    "policy_loss.clip_low": _NOT_NEGATIVE,
    "policy_loss.clip_high": _NOT_NEGATIVE,
    "policy_loss.dual_clip": Range(spelled="a number above 1", accepts=lambda value: value > 1),
    "policy_loss.aggregation.horizon": _COUNT,
    "optimizer.learning_rate": _NOT_NEGATIVE,
    "optimizer.betas.0": _DECAY,
    "optimizer.betas.1": _DECAY,
    "optimizer.epsilon": _POSITIVE,
    "optimizer.weight_decay": _NOT_NEGATIVE,
    "optimizer.max_gradient_norm": _POSITIVE,
    "learning_rate_schedule.warmup_steps": _ANY_COUNT,
    "learning_rate_schedule.total_steps": _ANY_COUNT,
    "learning_rate_schedule.min_ratio": _SHARE,
    "learning_rate_schedule.num_cycles": _NOT_NEGATIVE,
    "update.prompts_per_mini_batch": _COUNT,
    "update.epochs": _COUNT,
    "update.micro_batch_tokens": _COUNT,
    "steps.num_steps": _COUNT,
    "steps.num_epochs": _COUNT,
    "steps.checkpoint_every": _ANY_COUNT,
    "steps.keep_checkpoints": _COUNT,
}


def range_problems(plain: Plain, origin: str) -> Iterator[Problem]:
    """Every number of a well-typed recipe that is out of its range, or does not fit with another one."""
    for path, allowed in RANGES.items():
        value = _at(plain, path)
        if value is not None and not allowed.accepts(value):
            yield _problem(path, value, origin, f"expected {allowed.spelled}")
    yield from _misfits(plain, origin)


def _misfits(plain: Plain, origin: str) -> Iterator[Problem]:
    prompts, each = plain["data"]["prompts_per_step"], plain["update"]["prompts_per_mini_batch"]
    if prompts > 0 and each > 0 and prompts % each:
        reason = f"it does not divide the {prompts} of data.prompts_per_step"
        yield _problem("update.prompts_per_mini_batch", each, origin, reason)
    aggregation = plain["policy_loss"]["aggregation"]
    if aggregation["mode"] == "seq-mean-token-sum-norm" and aggregation["horizon"] is None:
        reason = f"the mode {aggregation['mode']} divides by it"
        yield _problem("policy_loss.aggregation.horizon", None, origin, reason)
    if plain["validation"] is not None and plain["data"]["validation_sha256"] is None:
        reason = "recipe.validation validates on the data that this digest names"
        yield _problem("data.validation_sha256", None, origin, reason)


def _at(plain: Any, path: str) -> Any:
    """What stands at the path; None where an optional part above it is not there."""
    for name in path.split("."):
        if plain is None:
            return None
        plain = plain[int(name)] if name.isdigit() else plain[name]
    return plain


def _problem(path: str, value: Any, origin: str, reason: str) -> Problem:
    fix = "Compile the launch again, or correct it"
    return Problem(field=f"recipe.{path}", value=value, origin=origin, reason=reason, fix=fix)
