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
_SOME = Range(spelled="a number above 0 and at most 1", accepts=lambda value: 0 < value <= 1)
_MASS = Range(
    spelled="a number above 0 and at most 1; 1 is off", accepts=lambda value: 0 < value <= 1
)
_DECAY = Range(spelled="a number of at least 0 and below 1", accepts=lambda value: 0 <= value < 1)
_NAMES = Range(spelled="at least one name", accepts=lambda value: len(value) > 0)

_ABOVE_ONE = Range(spelled="a number above 1", accepts=lambda value: value > 1)
_ANY_NUMBER = Range(spelled="a number", accepts=lambda value: True)

_CLIPS = {"clip_low": _NOT_NEGATIVE, "clip_high": _NOT_NEGATIVE}
# What each policy loss reads besides log-probabilities, advantages and mask.
POLICY_LOSS_ARGUMENTS: Mapping[str, Mapping[str, Range]] = {
    "vanilla": {**_CLIPS, "dual_clip": _ABOVE_ONE},
    "gspo": _CLIPS,
    "sapo": {"tau_positive": _POSITIVE, "tau_negative": _POSITIVE},
    "gpg": {},
    "cispo": _CLIPS,
    "dppo_tv": {**_CLIPS, "ratio_cap": _POSITIVE},
    "dppo_kl": {**_CLIPS, "ratio_cap": _POSITIVE},
    "dro": {"beta": _POSITIVE},
    "geo_mean": _CLIPS,
    "kl_cov": {"share": _SOME, "kl_coefficient": _ANY_NUMBER},
    "clip_cov": {
        **_CLIPS,
        "share": _SOME,
        "covariance_low": _ANY_NUMBER,
        "covariance_high": _ANY_NUMBER,
    },
}
# What each estimator reads of recipe.advantage; what it does not read is null.
ESTIMATOR_ARGUMENTS: Mapping[str, frozenset[str]] = {
    "gae": frozenset({"gamma", "gae_lambda"}),
    "grpo": frozenset({"divides_by_std"}),
    "grpo_passk": frozenset({"divides_by_std"}),
    "reinforce_plus_plus": frozenset({"gamma"}),
}

_TRAINING: Mapping[str, Range] = {
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
}
RANGES: Mapping[str, Range] = {
    "seeds.sampling": _ANY_COUNT,
    "seeds.data": _ANY_COUNT,
    "seeds.parameters": _ANY_COUNT,
    "seeds.mini_batches": _ANY_COUNT,
    "data.max_prompt_tokens": _COUNT,
    "data.max_rows": _COUNT,
    "data.first_permutation": _COUNT,
    "data.prompts_per_step": _COUNT,
    "data.prompts_per_draw": _COUNT,
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
    "group_filter.batches_in_flight": _COUNT,
    "reward.overlong_penalty.max_response_tokens": _COUNT,
    "reward.overlong_penalty.buffer_tokens": _COUNT,
    "reward.overlong_penalty.factor": _NOT_NEGATIVE,
    "kl_reward.adaptive.target": _POSITIVE,
    "kl_reward.adaptive.horizon": _COUNT,
    "rollout_correction.importance_weights.lower": _POSITIVE,
    "rollout_correction.importance_weights.upper": _POSITIVE,
    "advantage.gamma": _NOT_NEGATIVE,
    "advantage.gae_lambda": _NOT_NEGATIVE,
    "policy_loss.aggregation.horizon": _COUNT,
    "distillation.teachers": _NAMES,
    "distillation.top_k": _COUNT,
    "distillation.max_loss": _NOT_NEGATIVE,
    "distillation.policy_gradient_clips.0": _NOT_NEGATIVE,
    "distillation.policy_gradient_clips.1": _NOT_NEGATIVE,
    "critic.lora.rank": _COUNT,
    "critic.lora.target_modules": _NAMES,
    "critic.value_clip": _NOT_NEGATIVE,
    "critic.aggregation.horizon": _COUNT,
    "critic.mini_batch_seed": _ANY_COUNT,
    "critic.warmup_steps": _ANY_COUNT,
    **_TRAINING,
    **{f"critic.{path}": allowed for path, allowed in _TRAINING.items()},
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
    yield from _undivided(plain, origin)
    for path in ("policy_loss", "critic"):
        aggregation = _at(plain, f"{path}.aggregation")
        if aggregation == {"mode": "seq-mean-token-sum-norm", "horizon": None}:
            reason = "the mode seq-mean-token-sum-norm divides by it"
            yield _problem(f"{path}.aggregation.horizon", None, origin, reason)
    if plain["validation"] is not None and plain["data"]["validation_sha256"] is None:
        reason = "recipe.validation validates on the data that this digest names"
        yield _problem("data.validation_sha256", None, origin, reason)
    yield from _loss_arguments(plain["policy_loss"], origin)
    yield from _estimator_arguments(plain["advantage"], origin)
    yield from _missing_parts(plain, origin)


def _undivided(plain: Plain, origin: str) -> Iterator[Problem]:
    prompts = plain["data"]["prompts_per_step"]
    for path in (
        "update.prompts_per_mini_batch",
        "critic.update.prompts_per_mini_batch",
        "data.prompts_per_draw",
    ):
        each = _at(plain, path)
        if each is not None and prompts > 0 and each > 0 and prompts % each:
            reason = f"it does not divide the {prompts} of data.prompts_per_step"
            yield _problem(path, each, origin, reason)


def _loss_arguments(loss: Plain, origin: str) -> Iterator[Problem]:
    taken = POLICY_LOSS_ARGUMENTS[loss["name"]]
    for name in sorted(loss["arguments"].keys() | taken.keys()):
        path, value = f"policy_loss.arguments.{name}", loss["arguments"].get(name)
        if name not in taken:
            yield _problem(path, value, origin, f"the loss {loss['name']} has no such argument")
        elif type(value) not in (int, float) or not taken[name].accepts(value):
            yield _problem(path, value, origin, f"expected {taken[name].spelled}")


def _estimator_arguments(advantage: Plain, origin: str) -> Iterator[Problem]:
    name = advantage["estimator"]
    read = ESTIMATOR_ARGUMENTS.get(name, frozenset())
    for argument in ("divides_by_std", "gamma", "gae_lambda"):
        value = advantage[argument]
        if (value is None) == (argument in read):
            reason = f"the estimator {name} " + ("reads it" if argument in read else "has none")
            yield _problem(f"advantage.{argument}", value, origin, reason)


def _missing_parts(plain: Plain, origin: str) -> Iterator[Problem]:
    """Parts that need each other."""
    if plain["advantage"]["estimator"] == "gae" and plain["critic"] is None:
        yield _problem("critic", None, origin, "the estimator gae needs a critic's values")
    adapter = plain["policy"].get("adapter_sha256")
    if adapter is not None and plain["policy"]["lora"] is None:
        reason = "the recipe trains every weight, and starts from no adapter"
        yield _problem("policy.adapter_sha256", adapter, origin, reason)
    yield from _quantised_misfits(plain, origin)
    reward = plain["reward"]
    for part, name in (("model", "reward_model"), ("function", "function")):
        if (reward[part] is not None) != (reward["scorer"] == name):
            reason = f"it belongs to the scorer {name}, which is {reward['scorer']} here"
            yield _problem(f"reward.{part}", reward[part], origin, reason)
    if plain["distillation"] is not None:
        yield from _distillation_misfits(plain["distillation"], origin)
    if plain["rollout_correction"] is not None:
        yield from _correction_misfits(plain["rollout_correction"], origin)


def _quantised_misfits(plain: Plain, origin: str) -> Iterator[Problem]:
    quantization = plain["policy"].get("quantization")
    if quantization is not None and plain["policy"]["lora"] is None:
        reason = "weights of 4 bits are frozen, and without an adapter nothing would be trained"
        yield _problem("policy.quantization", quantization, origin, reason)
    weights = plain["rollout"].get("weights")
    if weights is not None and weights != quantization:
        reason = f"the policy's weights are not in {weights}"
        yield _problem("rollout.weights", weights, origin, reason)


def _distillation_misfits(distillation: Plain, origin: str) -> Iterator[Problem]:
    is_top_k = distillation["loss"] == "forward_kl_topk"
    reason = "the loss forward_kl_topk reads it, and no other"
    if (distillation["top_k"] is not None) != is_top_k:
        yield _problem("distillation.top_k", distillation["top_k"], origin, reason)
    least = distillation["min_log_prob"]
    if least is not None and not is_top_k:
        yield _problem("distillation.min_log_prob", least, origin, reason)
    coefficient = distillation["coefficient"]
    if coefficient != 1 and not distillation["uses_task_rewards"]:
        reason = "it is 1 without task rewards"
        yield _problem("distillation.coefficient", coefficient, origin, reason)
    keys = [teacher["key"] for teacher in distillation["teachers"]]
    for index, key in enumerate(keys):
        if len(keys) > 1 and (key is None or key in keys[:index]):
            reason = "each of several teachers has a key of its own"
            yield _problem(f"distillation.teachers.{index}.key", key, origin, reason)


def _correction_misfits(correction: Plain, origin: str) -> Iterator[Problem]:
    weights, path = correction["importance_weights"], "rollout_correction"
    if correction["bypasses_scoring"] and (weights is not None or correction["rejections"]):
        reason = (
            "it takes the sampler's log-probabilities as they are, and weighs or rejects nothing"
        )
        yield _problem(f"{path}.bypasses_scoring", True, origin, reason)
    bounded = [] if weights is None else [(f"{path}.importance_weights", weights)]
    for index, each in enumerate(correction["rejections"]):
        where, statistic = f"{path}.rejections.{index}", each["statistic"]
        bounded.append((where, each))
        if (each["lower"] is None) == statistic.endswith("k1"):
            reason = f"{statistic} has " + ("two bounds" if each["lower"] is None else "one bound")
            yield _problem(f"{where}.lower", each["lower"], origin, reason)
        for side in ("lower", "upper"):
            if each[side] is not None and not _POSITIVE.accepts(each[side]):
                reason = f"expected {_POSITIVE.spelled}"
                yield _problem(f"{where}.{side}", each[side], origin, reason)
    for where, each in bounded:
        if each["lower"] is not None and each["lower"] > each["upper"]:
            reason = f"it is above the upper bound, {each['upper']}"
            yield _problem(f"{where}.lower", each["lower"], origin, reason)


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
