"""A run that is asked to stop ends between two steps, with that step saved, and goes on to the same bytes."""

import json
from pathlib import Path

import pytest

from miniverl.engine import loop
from miniverl.engine.events import (
    CheckpointSaved,
    Event,
    RunFinished,
    RunStarted,
    RunStopped,
    StepFinished,
)
from miniverl.engine.loop import Inputs
from miniverl.engine.recipe import Recipe

pytestmark = pytest.mark.slow

COMPARED = ("trajectories.jsonl", "metrics.jsonl", "validation.jsonl")


@pytest.fixture(scope="session")
def inputs(tiny_model: Path, tiny_train: Path, tiny_validation: Path) -> Inputs:
    return Inputs(model=tiny_model, train=tiny_train, validation=tiny_validation)


def run(
    recipe: Recipe, inputs: Inputs, out: Path, *, resume: bool = False, stop_after: int | None
) -> tuple[bool, list[Event]]:
    """`stop_after`: the step behind which somebody asks; 0 is before the first."""
    told: list[Event] = []

    def is_stopping() -> bool:
        done = sum(isinstance(event, StepFinished) for event in told)
        return stop_after is not None and done >= stop_after

    is_whole = loop.run(
        recipe,
        inputs,
        out,
        device="cpu",
        threads=1,
        resume=resume,
        listen=told.append,
        is_stopping=is_stopping,
    )
    return is_whole, told


def test_a_stopped_run_saves_its_step_and_goes_on_to_the_same_bytes(
    tiny_recipe: Recipe, inputs: Inputs, tmp_path: Path
) -> None:
    """Checkpoints are due behind steps 2 and 4; it is asked in step 3."""
    straight, stopped = tmp_path / "straight", tmp_path / "stopped"
    assert run(tiny_recipe, inputs, straight, stop_after=None)[0]

    is_whole, told = run(tiny_recipe, inputs, stopped, stop_after=3)
    assert not is_whole
    assert told[-1] == RunStopped(step=3)
    assert [event.step for event in told if isinstance(event, CheckpointSaved)] == [2, 3]
    assert not (stopped / "adapter").exists()

    is_whole, told = run(tiny_recipe, inputs, stopped, resume=True, stop_after=None)
    assert is_whole
    assert next(event.resumed_step for event in told if isinstance(event, RunStarted)) == 3
    for name in COMPARED:
        assert (stopped / name).read_bytes() == (straight / name).read_bytes(), name
    for path in (straight / "adapter").iterdir():
        assert (stopped / "adapter" / path.name).read_bytes() == path.read_bytes(), path.name


def test_a_run_that_is_asked_before_its_first_step_does_none(
    tiny_recipe: Recipe, inputs: Inputs, tmp_path: Path
) -> None:
    is_whole, told = run(tiny_recipe, inputs, tmp_path, stop_after=0)
    assert not is_whole
    assert told[-1] == RunStopped(step=0)
    assert not (tmp_path / "checkpoints").exists()
    last = (tmp_path / "journal.jsonl").read_text("utf-8").splitlines()[-1]
    assert json.loads(last)["event"] == "run_stopped"


def test_a_run_that_is_asked_in_its_last_step_is_finished(
    tiny_recipe: Recipe, inputs: Inputs, tmp_path: Path
) -> None:
    last = tiny_recipe.steps.num_steps
    assert last is not None
    is_whole, told = run(tiny_recipe, inputs, tmp_path, stop_after=last)
    assert is_whole
    assert told[-1] == RunFinished(steps=last)
    assert (tmp_path / "adapter").exists()
