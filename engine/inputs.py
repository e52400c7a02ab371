"""The inputs of a run: where they are, and what is read from them before the weights are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from miniverl.engine import models
from miniverl.engine.critic import check_critic
from miniverl.engine.digest import weights_sha256
from miniverl.engine.problem import Problem, WrongCall
from miniverl.engine.prompts import training_prompts, validation_prompts
from miniverl.engine.recipe import Recipe
from miniverl.engine.reward import Reward, scorer
from miniverl.engine.reward_function import UserFunction
from miniverl.engine.reward_model import RewardModel
from miniverl.engine.rows import read_rows
from miniverl.engine.teachers import check_teachers, routes
from miniverl.engine.trajectory import Prompt

_NO_VALIDATION_DATA = Problem(
    field="validation",
    value=None,
    origin="bindings",
    reason="the recipe validates, and no validation data is bound",
    fix="Bind the data that the recipe was compiled for",
)
_NO_CRITIC = Problem(
    field="critic",
    value=None,
    origin="bindings",
    reason="the recipe trains a critic, and no model is bound for it",
    fix="Bind the model that the recipe was compiled for",
)
_NO_REWARD_MODEL = Problem(
    field="reward_model",
    value=None,
    origin="bindings",
    reason="a model scores the responses of the recipe, and none is bound",
    fix="Bind the model that the recipe was compiled for",
)
_NO_REWARD_FUNCTION = Problem(
    field="reward_function",
    value=None,
    origin="bindings",
    reason="a function scores the responses of the recipe, and none is bound",
    fix="Bind the file that the recipe was compiled for",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Inputs:
    """Where the inputs are whose content the recipe names; `teachers` in the recipe's order."""

    model: Path
    train: Path
    validation: Path | None = None
    critic: Path | None = None
    reward_model: Path | None = None
    reward_function: Path | None = None
    teachers: tuple[Path, ...] = ()

    @classmethod
    def of(cls, recipe: Recipe, paths: Mapping[str, Path]) -> "Inputs":
        """From paths by the names of `recipe.inputs`, every one of them there."""
        teachers = () if recipe.distillation is None else recipe.distillation.teachers
        return cls(
            model=paths["model"],
            train=paths["train"],
            validation=paths.get("validation"),
            critic=paths.get("critic"),
            reward_model=paths.get("reward_model"),
            reward_function=paths.get("reward_function"),
            teachers=tuple(paths[teacher.input] for teacher in teachers),
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
    models.check_folder(inputs.model)
    _require_weights(inputs.model, recipe.policy.weights_sha256)
    tokenizer = models.load_tokenizer(inputs.model)
    prompts = training_prompts(inputs.train, recipe.data, recipe.seeds.data, tokenizer)
    held_out: Sequence[Prompt] = ()
    if recipe.validation is not None:
        if inputs.validation is None:
            raise WrongCall([_NO_VALIDATION_DATA])
        held_out = validation_prompts(inputs.validation, recipe.data, tokenizer)
    if recipe.critic is not None:
        if inputs.critic is None:
            raise WrongCall([_NO_CRITIC])
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
    if inputs.reward_model is None:
        raise WrongCall([_NO_REWARD_MODEL])
    return RewardModel(recipe.reward.model, inputs.reward_model, eos_token=tokenizer.eos_token)


def _reward_function(recipe: Recipe, inputs: Inputs) -> UserFunction | None:
    if recipe.reward.function is None:
        return None
    if inputs.reward_function is None:
        raise WrongCall([_NO_REWARD_FUNCTION])
    return UserFunction(recipe.reward.function, inputs.reward_function, recipe.reward.arguments)


def _require_weights(folder: Path, sha256: str) -> None:
    """A run that goes on with other weights under its adapter would not be the run that it was."""
    found = weights_sha256(folder)
    if found != sha256:
        problem = Problem(
            field="model",
            value=str(folder),
            origin="bindings",
            reason=f"its weights have the digest {found}, and the recipe was compiled for {sha256}",
            fix="Bind that model, or compile again with this one",
        )
        raise WrongCall([problem])
