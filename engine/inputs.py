"""The inputs of a run: where they are, and what is read from them before the weights are."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from miniverl.engine import models
from miniverl.engine.adapter import check_adapter
from miniverl.engine.critic import check_critic
from miniverl.engine.digest import other_weights
from miniverl.engine.problem import Problem, WrongCall
from miniverl.engine.prompts import training_prompts, validation_prompts
from miniverl.engine.recipe import Recipe
from miniverl.engine.reward import Reward, scorer
from miniverl.engine.reward_function import UserFunction
from miniverl.engine.reward_model import RewardModel
from miniverl.engine.rows import read_rows
from miniverl.engine.teachers import check_teachers, routes
from miniverl.engine.trajectory import Prompt

# What a recipe may want besides its model and its data: why, and what is to be bound.
_WANTED: Mapping[str, tuple[str, str]] = {
    "adapter": ("the recipe starts from an adapter, and none is bound", "adapter"),
    "validation": ("the recipe validates, and no validation data is bound", "data"),
    "critic": ("the recipe trains a critic, and no model is bound for it", "model"),
    "reward_model": ("a model scores the responses of the recipe, and none is bound", "model"),
    "reward_function": ("a function scores the responses of the recipe, and none is bound", "file"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Inputs:
    """Where the inputs are whose content the recipe names; `teachers` in the recipe's order.

    And where quantised weights are kept from one run to the next; None: nowhere.
    """

    model: Path
    train: Path
    adapter: Path | None = None
    validation: Path | None = None
    critic: Path | None = None
    reward_model: Path | None = None
    reward_function: Path | None = None
    teachers: tuple[Path, ...] = ()
    quantised: Path | None = None

    @classmethod
    def of(
        cls, recipe: Recipe, paths: Mapping[str, Path], quantised: Path | None = None
    ) -> "Inputs":
        """From paths by the names of `recipe.inputs`, every one of them there."""
        teachers = () if recipe.distillation is None else recipe.distillation.teachers
        return cls(
            model=paths["model"],
            train=paths["train"],
            adapter=paths.get("adapter"),
            validation=paths.get("validation"),
            critic=paths.get("critic"),
            reward_model=paths.get("reward_model"),
            reward_function=paths.get("reward_function"),
            teachers=tuple(paths[teacher.input] for teacher in teachers),
            quantised=quantised,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedInputs:
    """The inputs, read and checked; all but the weights. Rewards judge by prompt number, hence one a file."""

    tokenizer: models.Tokenizer
    end_tokens: tuple[int, ...]
    prompts: Sequence[Prompt]
    teacher_of_prompt: Mapping[int, int]  # prompt_id -> index of its teacher
    reward_model: RewardModel | None  # it scores in both places; its weights are still to be loaded
    reward: Reward
    held_out: Sequence[Prompt]
    held_out_reward: Reward


def load_inputs(recipe: Recipe, inputs: Inputs) -> LoadedInputs:
    """Raises WrongCall for a model, data or rewards that the recipe cannot run with."""
    unbound = list(_unbound(recipe, inputs))
    if unbound:
        raise WrongCall(unbound)
    models.check_folder(inputs.model)
    _require_weights(inputs.model, recipe.policy.weights_sha256)
    if recipe.policy.adapter_sha256 is not None:
        assert recipe.policy.lora is not None, "engine/bounds.py refuses a recipe without it"
        assert inputs.adapter is not None
        check_adapter(recipe.policy.lora, recipe.policy.adapter_sha256, inputs.adapter)
    tokenizer = models.load_tokenizer(inputs.model)
    prompts = training_prompts(inputs.train, recipe.data, recipe.seeds.data, tokenizer)
    held_out: Sequence[Prompt] = ()
    if recipe.validation is not None:
        assert inputs.validation is not None
        held_out = validation_prompts(inputs.validation, recipe.data, tokenizer)
    if recipe.critic is not None:
        assert inputs.critic is not None
        check_critic(recipe.critic, inputs.critic, tokenizer)
    teacher_of_prompt: Mapping[int, int] = {}
    if recipe.distillation is not None:
        check_teachers(recipe.distillation, inputs.teachers, tokenizer)
        teacher_of_prompt = routes(prompts, read_rows(inputs.train), recipe.distillation)
    ends = () if recipe.rollout.ignores_eos else models.end_tokens(tokenizer, inputs.model)
    name, arguments = recipe.reward.scorer, recipe.reward.arguments
    reward_model = _reward_model(recipe, inputs, tokenizer)
    given = reward_model or _reward_function(recipe, inputs)
    return LoadedInputs(
        tokenizer=tokenizer,
        end_tokens=ends,
        prompts=prompts,
        teacher_of_prompt=teacher_of_prompt,
        reward_model=reward_model,
        reward=given or scorer(name, arguments, prompts),
        held_out=held_out,
        held_out_reward=given or scorer(name, arguments, held_out),
    )


def _reward_model(
    recipe: Recipe, inputs: Inputs, tokenizer: models.Tokenizer
) -> RewardModel | None:
    if recipe.reward.model is None:
        return None
    assert inputs.reward_model is not None
    return RewardModel(recipe.reward.model, inputs.reward_model, eos_token=tokenizer.eos_token)


def _reward_function(recipe: Recipe, inputs: Inputs) -> UserFunction | None:
    if recipe.reward.function is None:
        return None
    assert inputs.reward_function is not None
    return UserFunction(recipe.reward.function, inputs.reward_function, recipe.reward.arguments)


def _unbound(recipe: Recipe, inputs: Inputs) -> Iterator[Problem]:
    """All that the recipe wants and that is not there, in the order of `recipe.inputs`."""
    fix = "Bind the {} that the recipe was compiled for"
    for name in recipe.inputs:
        if name in _WANTED and getattr(inputs, name) is None:
            reason, kind = _WANTED[name]
            yield _problem(name, None, reason, fix.format(kind))
    teachers = () if recipe.distillation is None else recipe.distillation.teachers
    for teacher in teachers[len(inputs.teachers) :]:
        reason = "the policy of the recipe learns from it, and no model is bound for it"
        yield _problem(teacher.input, None, reason, fix.format("model"))


def _require_weights(folder: Path, sha256: str) -> None:
    """A run that goes on with other weights under its adapter would not be the run that it was."""
    reason = other_weights(folder, sha256)
    if reason is not None:
        fix = "Bind that model, or compile again with this one"
        raise WrongCall([_problem("model", str(folder), reason, fix)])


def _problem(field: str, value: str | None, reason: str, fix: str) -> Problem:
    return Problem(field=field, value=value, origin="bindings", reason=reason, fix=fix)
