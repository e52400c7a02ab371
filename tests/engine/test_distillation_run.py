"""Whole runs with teachers: they come near them, and go on after a stop to the bytes of a straight run."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from transformers import LlamaConfig, Qwen3Config

from miniverl.engine import loop
from miniverl.engine.digest import rows_sha256, weights_sha256
from miniverl.engine.events import Event, ModelLoaded, PhaseFinished
from miniverl.engine.inputs import Inputs
from miniverl.engine.problem import WrongCall
from miniverl.engine.recipe import Distillation, Recipe, Teacher
from miniverl.engine.rows import read_rows

pytestmark = pytest.mark.slow

COMPARED = (
    "trajectories.jsonl",
    "metrics.jsonl",
    "teacher_targets.jsonl",
    "adapter",
    "checkpoints",
)
TOP_K = Distillation(
    teachers=(),
    routing_field="data_source",
    loss="forward_kl_topk",
    top_k=4,
    min_log_prob=-10.0,
    max_loss=10.0,
    policy_gradient_clips=None,
    uses_task_rewards=False,
    coefficient=1.0,
)
K1 = replace(TOP_K, loss="k1", top_k=None, min_log_prob=None, policy_gradient_clips=(0.2, 0.2))


@pytest.fixture(scope="module")
def inputs(
    tiny_model: Path,
    tiny_train: Path,
    make_model: Callable[..., Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Inputs:
    """The prompts of tiny_train, from two sources: odd ones for one teacher and even ones for the other."""
    rows = [
        row | {"data_source": "odd" if number % 2 else "even"}
        for number, row in enumerate(read_rows(tiny_train))
    ]
    train = tmp_path_factory.mktemp("two_sources") / "train.parquet"
    pq.write_table(pa.Table.from_pylist(rows), train)
    teachers = (make_model(Qwen3Config, num_hidden_layers=1), make_model(LlamaConfig))
    return Inputs(model=tiny_model, train=train, teachers=teachers)


def _recipe(tiny: Recipe, inputs: Inputs, distillation: Distillation, *keys: str | None) -> Recipe:
    """3 steps without validation, taught by as many of the teachers as there are keys."""
    teachers = tuple(
        Teacher(key=key, weights_sha256=weights_sha256(folder), dtype="float32")
        for key, folder in zip(keys, inputs.teachers, strict=False)
    )
    return replace(
        tiny,
        data=replace(
            tiny.data,
            train_sha256=rows_sha256(read_rows(inputs.train)),
            validation_sha256=None,
        ),
        validation=None,
        distillation=replace(distillation, teachers=teachers),
        steps=replace(tiny.steps, num_steps=3),
    )


def _run(
    folder: Path, recipe: Recipe, inputs: Inputs, resume: bool, listen: Callable[[Event], None]
) -> None:
    teachers = recipe.distillation.teachers if recipe.distillation is not None else ()
    used = replace(inputs, teachers=inputs.teachers[: len(teachers)])
    loop.run(recipe, used, folder, device="cpu", threads=1, resume=resume, listen=listen)


def _files(folder: Path) -> dict[str, bytes]:
    paths = (path for name in COMPARED for path in (folder / name, *(folder / name).rglob("*")))
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths if path.is_file()}


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


class _Stop(Exception):
    """Ends a run from its listener."""


@pytest.mark.parametrize(
    ("distillation", "keys"),
    [
        (TOP_K, ("odd", "even")),
        (K1, (None,)),
        (replace(TOP_K, uses_task_rewards=True, coefficient=0.5), (None,)),
    ],
    ids=["two teachers, top-k", "policy gradient", "beside task rewards"],
)
def test_a_stopped_run_goes_on_to_the_bytes_of_a_straight_one(
    tiny_recipe: Recipe,
    inputs: Inputs,
    tmp_path: Path,
    distillation: Distillation,
    keys: tuple[str | None, ...],
) -> None:
    recipe = _recipe(tiny_recipe, inputs, distillation, *keys)
    _run(tmp_path / "straight", recipe, inputs, False, lambda event: None)

    def stop(event: Event) -> None:
        if isinstance(event, PhaseFinished) and (event.step, event.phase) == (3, "update"):
            raise _Stop

    with pytest.raises(_Stop):
        _run(tmp_path / "stopped", recipe, inputs, False, stop)
    _run(tmp_path / "stopped", recipe, inputs, True, lambda event: None)
    straight, stopped = _files(tmp_path / "straight"), _files(tmp_path / "stopped")
    assert straight.keys() == stopped.keys()
    for name, content in straight.items():
        assert stopped[name] == content, name
    rows = _lines(tmp_path / "straight" / "teacher_targets.jsonl")
    trajectories = _lines(tmp_path / "straight" / "trajectories.jsonl")
    for row, trajectory in zip(rows, trajectories, strict=True):
        assert [row[name] for name in ("step", "prompt_id", "sample")] == [
            trajectory[name] for name in ("step", "prompt_id", "sample")
        ]
        taught_by = ("even", "odd")[row["prompt_id"] % 2] if len(keys) == 2 else None
        assert row["teacher"] == taught_by
    assert all(row["gradient_norm"] > 0 for row in _lines(tmp_path / "straight/metrics.jsonl"))


def test_the_policy_comes_near_its_teacher(
    tiny_recipe: Recipe, inputs: Inputs, tmp_path: Path
) -> None:
    recipe = _recipe(tiny_recipe, inputs, TOP_K, None)
    recipe = replace(
        recipe,
        policy=replace(recipe.policy, lora=None),
        rollout=replace(recipe.rollout, samples_per_prompt=8),
        optimizer=replace(recipe.optimizer, learning_rate=0.005),
        update=replace(recipe.update, prompts_per_mini_batch=2),
        steps=replace(recipe.steps, num_steps=12, checkpoint_every=0),
    )
    heard = list[Event]()
    _run(tmp_path, recipe, inputs, False, heard.append)
    roles = [event.role for event in heard if isinstance(event, ModelLoaded)]
    assert roles[0] == "policy"
    assert roles[-1] == "teacher"
    divergences = [row["distillation_divergence"] for row in _lines(tmp_path / "metrics.jsonl")]
    assert sum(divergences[-3:]) < 0.7 * sum(divergences[:3])


def test_prompts_without_a_teacher_stop_the_run_before_it_starts(
    tiny_recipe: Recipe, inputs: Inputs, tmp_path: Path
) -> None:
    recipe = _recipe(tiny_recipe, inputs, TOP_K, "odd", "other")
    heard = list[Event]()
    with pytest.raises(WrongCall, match=r"no teacher takes it, and rows 0, 2, 4, 6, 8 hold it"):
        _run(tmp_path, recipe, inputs, False, heard.append)
    assert not any(isinstance(event, ModelLoaded) for event in heard)
