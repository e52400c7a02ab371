"""The teachers of a run: which one judges which prompt, and their frozen models.

A teacher must read the student's tokens as the student does: its tokenizer gives every token the same number.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from miniverl.engine import models
from miniverl.engine.digest import other_weights
from miniverl.engine.experience import Experience, TeacherTargets
from miniverl.engine.models import Model
from miniverl.engine.problem import Problem, WrongCall
from miniverl.engine.quantised import Kept
from miniverl.engine.recipe import Distillation, Policy, Teacher
from miniverl.engine.teach import target_row, teacher_targets
from miniverl.engine.trajectory import Prompt, Trajectory

_SHOWN_ROWS = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Teachers:
    """`models` in the recipe's order; `of_prompt`: prompt_id -> the index of its teacher."""

    recipe: Distillation
    models: tuple[Model, ...]
    of_prompt: Mapping[int, int]

    def key(self, trajectory: Trajectory) -> str | None:
        """The key of the trajectory's teacher."""
        return self.recipe.teachers[self.of_prompt[trajectory.prompt_id]].key

    def row(self, step: int, experience: Experience) -> dict[str, Any]:
        """The experience's line in teacher_targets.jsonl."""
        assert experience.teacher is not None
        trajectory = experience.trajectory
        return target_row(step, trajectory, self.key(trajectory), experience.teacher)

    def targets(
        self, trajectories: Sequence[Trajectory], *, micro_batch_tokens: int, num_tokens: int
    ) -> list[TeacherTargets]:
        """Each trajectory's targets, by its own teacher. Raises what `teacher_targets` raises."""
        found = [
            iter(
                teacher_targets(
                    model,
                    its,
                    micro_batch_tokens=micro_batch_tokens,
                    top_k=self.recipe.top_k,
                    num_tokens=num_tokens,
                )
            )
            for model, its in zip(self.models, self.shares(trajectories), strict=True)
        ]
        return [next(found[self.of_prompt[each.prompt_id]]) for each in trajectories]

    def shares(self, trajectories: Sequence[Trajectory]) -> list[list[Trajectory]]:
        """The trajectories of each teacher."""
        return [
            [each for each in trajectories if self.of_prompt[each.prompt_id] == index]
            for index in range(len(self.models))
        ]


def routes(
    prompts: Iterable[Prompt], rows: Sequence[Mapping[str, Any]], recipe: Distillation
) -> dict[int, int]:
    """prompt_id -> the index of its teacher: the one whose key stands in the routing field of its row.

    `rows` are those of the data, by prompt_id. A teacher without a key takes every prompt. Upstream:
    verl/experimental/teacher_loop/teacher_manager.py:99, verl/experimental/agent_loop/agent_loop.py:1037
    (v0.9.0). Raises WrongCall with every value that no teacher has.
    """
    if recipe.teachers[0].key is None:
        return {each.prompt_id: 0 for each in prompts}
    indices = {teacher.key: index for index, teacher in enumerate(recipe.teachers)}
    chosen: dict[int, int] = {}
    missed: dict[str, list[int]] = {}
    for each in prompts:
        value = rows[each.prompt_id].get(recipe.routing_field)
        if isinstance(value, str) and value in indices:
            chosen[each.prompt_id] = indices[value]
        else:
            missed.setdefault(repr(value), []).append(each.prompt_id)
    if missed:
        raise WrongCall(_no_teacher(value, ids, recipe) for value, ids in missed.items())
    return chosen


def check_teachers(
    recipe: Distillation, folders: Sequence[Path], student: models.Tokenizer
) -> None:
    """Raises WrongCall with every folder that is not the model that the recipe names, or reads other tokens."""
    problems: list[Problem] = []
    for teacher, folder in zip(recipe.teachers, folders, strict=True):
        try:
            models.check_folder(folder)
            problems += _weight_problems(teacher, folder)
            problems += _token_problems(teacher, folder, models.read_tokenizer(folder), student)
        except WrongCall as error:
            problems += [replace(each, field=teacher.input) for each in error.problems]
    if problems:
        raise WrongCall(problems)


def load_teachers(
    recipe: Distillation,
    folders: Sequence[Path],
    of_prompt: Mapping[int, int],
    device: str,
    kept: Kept | None = None,
) -> Teachers:
    """The teachers in memory. Raises WrongCall for a folder that holds no whole model."""
    return Teachers(
        recipe=recipe,
        models=tuple(
            load_frozen(teacher, folder, device, kept)
            for teacher, folder in zip(recipe.teachers, folders, strict=True)
        ),
        of_prompt=of_prompt,
    )


def load_frozen(teacher: Teacher, folder: Path, device: str, kept: Kept | None = None) -> Model:
    """Weights, where they are not quantised, and products in the teacher's type, and nothing to train."""
    recipe = Policy(
        weights_sha256=teacher.weights_sha256,
        parameter_dtype=teacher.dtype,
        compute_dtype=teacher.dtype,
        lora=None,
        checkpoints_activations=False,
        quantization=teacher.quantization,
    )
    model = models.load_policy(
        recipe, folder, adapter_seed=0, device=device, kept=kept, role=teacher.input
    )
    model.network.requires_grad_(False)
    return model


def _no_teacher(value: str, prompt_ids: Sequence[int], recipe: Distillation) -> Problem:
    shown = ", ".join(map(str, prompt_ids[:_SHOWN_ROWS]))
    left = len(prompt_ids) - _SHOWN_ROWS
    more = f" and {left} more" if left > 0 else ""
    keys = ", ".join(str(teacher.key) for teacher in recipe.teachers)
    return Problem(
        field=recipe.routing_field,
        value=value,
        origin="training data",
        reason=f"no teacher takes it, and rows {shown}{more} hold it; there are teachers for {keys}",
        fix="Correct the data, or compile with a teacher for it",
    )


def _weight_problems(teacher: Teacher, folder: Path) -> Iterator[Problem]:
    reason = other_weights(folder, teacher.weights_sha256)
    if reason is not None:
        fix = "Bind that model, or compile again with this one"
        yield _problem(teacher, folder, reason, fix)


def _token_problems(
    teacher: Teacher, folder: Path, its: models.Tokenizer, student: models.Tokenizer
) -> Iterator[Problem]:
    reason = models.renumbered(its, student)
    if reason is not None:
        yield _problem(teacher, folder, reason, "Bind a teacher with the policy's tokenizer")


def _problem(teacher: Teacher, folder: Path, reason: str, fix: str) -> Problem:
    return Problem(
        field=teacher.input, value=str(folder), origin="bindings", reason=reason, fix=fix
    )
