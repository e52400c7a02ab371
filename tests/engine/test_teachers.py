"""Which teacher judges which prompt, and which folders are no teachers."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, Qwen3Config

from miniverl.engine.digest import weights_sha256
from miniverl.engine.models import Tokenizer, load_tokenizer
from miniverl.engine.problem import WrongCall
from miniverl.engine.recipe import Distillation, Teacher
from miniverl.engine.teach import teacher_targets
from miniverl.engine.teachers import check_teachers, load_frozen, load_teachers, routes
from miniverl.engine.trajectory import Prompt, Trajectory

VOCABULARY = 34
TRAJECTORIES = tuple(
    Trajectory(
        prompt_id=prompt_id,
        sample=sample,
        prompt_tokens=(1, 9 + prompt_id, 2),
        response_tokens=response,
        is_finished=True,
        response="",
        reward=0.0,
    )
    for prompt_id, sample, response in ((0, 0, (4, 9, 3)), (1, 0, (6, 8)), (0, 1, (6,)))
)
RECIPE = Distillation(
    teachers=(),
    routing_field="data_source",
    loss="forward_kl_topk",
    top_k=2,
    min_log_prob=None,
    max_loss=None,
    policy_gradient_clips=None,
    uses_task_rewards=False,
    coefficient=1.0,
)


def _taught_by(*keys: str | None, field: str = "data_source") -> Distillation:
    teachers = tuple(Teacher(key=key, weights_sha256="", dtype="float32") for key in keys)
    return replace(RECIPE, teachers=teachers, routing_field=field)


def _prompt(prompt_id: int) -> Prompt:
    return Prompt(
        prompt_id=prompt_id,
        messages=(),
        tokens=(1,),
        ground_truth="",
        data_source=ROWS[prompt_id]["data_source"],
        extra={},
    )


ROWS = (
    {"data_source": "sums", "ability": "hard"},
    {"data_source": "overlong"},
    {"data_source": "words", "ability": "easy"},
    {"data_source": "sums", "ability": 7},
    {"data_source": "maps"},
)
PROMPTS = tuple(_prompt(number) for number in (0, 2, 3, 4))


def test_a_prompt_goes_to_the_teacher_whose_key_is_its_data_source() -> None:
    recipe = _taught_by("words", "maps", "sums")
    assert routes(PROMPTS, ROWS, recipe) == {0: 2, 2: 0, 3: 2, 4: 1}


def test_any_column_may_hold_the_keys() -> None:
    recipe = _taught_by("easy", "hard", field="ability")
    assert routes(PROMPTS[:2], ROWS, recipe) == {0: 1, 2: 0}


def test_a_teacher_without_a_key_takes_every_prompt() -> None:
    assert routes(PROMPTS, ROWS, _taught_by(None)) == {0: 0, 2: 0, 3: 0, 4: 0}


def test_every_value_without_a_teacher_is_named_with_its_rows() -> None:
    with pytest.raises(WrongCall) as caught:
        routes(PROMPTS, ROWS, _taught_by("words"))
    assert [(each.field, each.value) for each in caught.value.problems] == [
        ("data_source", "'sums'"),
        ("data_source", "'maps'"),
    ]
    assert "rows 0, 3 hold it" in caught.value.problems[0].reason
    with pytest.raises(WrongCall) as caught:
        routes(PROMPTS, ROWS, _taught_by("easy", "hard", field="ability"))
    assert [each.value for each in caught.value.problems] == ["7", "None"]


@pytest.fixture
def student(tiny_model: Path) -> Tokenizer:
    return load_tokenizer(tiny_model)


def _named(folder: Path, key: str | None = None) -> Distillation:
    teacher = Teacher(key=key, weights_sha256=weights_sha256(folder), dtype="float32")
    return replace(RECIPE, teachers=(teacher,))


def test_a_teacher_of_another_shape_and_the_same_tokens_is_fine(
    make_model: Callable[..., Path], student: Tokenizer
) -> None:
    folder = make_model(Qwen3Config, num_hidden_layers=1)
    check_teachers(_named(folder), [folder], student)


def test_all_that_is_wrong_with_the_teachers_is_named_at_once(
    make_model: Callable[..., Path], tmp_path: Path, student: Tokenizer
) -> None:
    good = make_model(LlamaConfig, num_hidden_layers=1)
    renumbered = Path(shutil.copytree(good, tmp_path / "renumbered"))
    tokens = json.loads((good / "tokenizer.json").read_text())
    numbers = tokens["model"]["vocab"]
    numbers["a"], numbers["b"] = numbers["b"], numbers["a"]
    (renumbered / "tokenizer.json").write_text(json.dumps(tokens))
    empty = tmp_path / "empty"
    empty.mkdir()
    teachers = (
        Teacher(key="x", weights_sha256="0" * 64, dtype="float32"),
        Teacher(key="y", weights_sha256=weights_sha256(good), dtype="float32"),
        Teacher(key="z", weights_sha256="0" * 64, dtype="float32"),
    )
    with pytest.raises(WrongCall) as caught:
        check_teachers(replace(RECIPE, teachers=teachers), [good, renumbered, empty], student)
    found = [(each.field, each.reason) for each in caught.value.problems]
    assert [field for field, _ in found] == ["teacher.x", "teacher.y"] + 3 * ["teacher.z"]
    assert "its weights have the digest" in found[0][1]
    assert "2 of the policy's tokens another number: 'a', 'b'" in found[1][1]
    assert found[2][1] == "no config.json in this folder"


def test_each_prompt_is_judged_by_its_own_teacher_in_order(
    make_model: Callable[..., Path],
) -> None:
    folders = [make_model(Qwen3Config, num_hidden_layers=1), make_model(LlamaConfig)]
    recipe = replace(
        RECIPE,
        teachers=tuple(
            Teacher(key=key, weights_sha256="", dtype="float32") for key in ("words", "sums")
        ),
    )
    teachers = load_teachers(recipe, folders, {0: 1, 1: 0}, "cpu")
    assert not any(model.trained() for model in teachers.models)
    assert [teachers.key(each) for each in TRAJECTORIES] == ["sums", "words", "sums"]
    found = teachers.targets(TRAJECTORIES, micro_batch_tokens=100, num_tokens=VOCABULARY)
    for index, members in ((1, (0, 2)), (0, (1,))):
        alone = teacher_targets(
            load_frozen(recipe.teachers[index], folders[index], "cpu"),
            [TRAJECTORIES[member] for member in members],
            micro_batch_tokens=100,
            top_k=2,
            num_tokens=VOCABULARY,
        )
        for member, its in zip(members, alone, strict=True):
            assert torch.equal(found[member].log_probs_R, its.log_probs_R)
            assert torch.equal(found[member].tokens_RK, its.tokens_RK)
