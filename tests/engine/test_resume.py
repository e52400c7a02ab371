"""A run that is killed again and again, and resumed each time in a new process, leaves the bytes of a straight one.

This file is also the program of those processes: `python test_resume.py FOLDER MOMENT...` runs or resumes the
run in FOLDER once for each MOMENT, where it kills itself. Each time is a process of its own; they are forked
from one that has only imported, since importing is most of the time.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch.optim.optimizer import register_optimizer_step_post_hook

from miniverl.bench.resume import compare_runs
from miniverl.engine import disk, loop
from miniverl.engine import recipe as recipes
from miniverl.engine.algorithm import Advantage, GroupFilter
from miniverl.engine.events import CheckpointSaved, Event, PhaseFinished
from miniverl.engine.loop import Inputs
from miniverl.engine.recipe import Critic, Recipe

pytestmark = pytest.mark.slow


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _kill_before_rename(name: str) -> None:
    """When everything is written, and nothing is there yet."""
    rename = disk.rename

    def killing(source: Path, target: Path) -> None:
        if target.name == name:
            _kill()
        rename(source, target)

    disk.rename = killing


def _kill_in_optimizer_step(number: int) -> None:
    """Between the mini-batches of one update: the policy has moved, and nothing says so."""
    counted = iter(range(1, number + 1))

    def killing(*_: object) -> None:
        if next(counted) == number:
            _kill()

    register_optimizer_step_post_hook(killing)


def _kill_behind(event_type: type, **fields: object) -> Callable[[Event], None]:
    def listen(event: Event) -> None:
        is_met = isinstance(event, event_type)
        if is_met and all(getattr(event, name) == value for name, value in fields.items()):
            _kill()

    return listen


# In the order in which one run meets them: checkpoints follow steps 2, 4 and 5, a step has 4 optimizer steps.
MOMENTS: dict[str, Callable[[], Callable[[Event], None] | None]] = {
    "rollout of step 1": lambda: _kill_behind(PhaseFinished, step=1, phase="rollout"),
    "update of step 2": lambda: _kill_in_optimizer_step(6),
    "checkpoint of step 4": lambda: _kill_before_rename("step-000004"),
    "old scores of step 4": lambda: _kill_behind(PhaseFinished, step=4, phase="score_old"),
    "behind the checkpoint of step 4": lambda: _kill_behind(CheckpointSaved, step=4),
    "update of step 5": lambda: _kill_behind(PhaseFinished, step=5, phase="update"),
    "retention after step 5": lambda: _kill_before_rename(".step-000002.gone"),
    "export": lambda: _kill_before_rename("adapter"),
}
# The critic takes 2 optimizer steps in each step; the policy, first trained in step 2, 4.
CRITIC_MOMENTS: dict[str, Callable[[], Callable[[Event], None] | None]] = {
    "values of step 1": lambda: _kill_behind(PhaseFinished, step=1, phase="score_values"),
    "critic's update of step 2": lambda: _kill_in_optimizer_step(3),
    "between both updates of step 4": lambda: _kill_behind(
        PhaseFinished, step=4, phase="critic_update"
    ),
    "checkpoint of step 4": MOMENTS["checkpoint of step 4"],
    "export of the critic": lambda: _kill_before_rename("critic"),
    "export": MOMENTS["export"],
}


def _run(
    folder: Path, recipe: Recipe, inputs: Inputs, resume: bool, listen: Callable[[Event], None]
) -> None:
    loop.run(recipe, inputs, folder, device="cpu", threads=1, resume=resume, listen=listen)


def _main(folder: Path, moments: list[str]) -> list[int]:
    """The wait status of one process for each moment."""
    statuses = []
    for moment in moments:
        process = os.fork()
        if not process:
            _resume_until(folder, moment)
            os._exit(0)
        statuses.append(os.waitpid(process, 0)[1])
    return statuses


def _resume_until(folder: Path, moment: str) -> None:
    bindings = json.loads((folder / "bindings.json").read_text())
    recipe = recipes.loads((folder / "recipe.json").read_text(), "test")
    known = MOMENTS | CRITIC_MOMENTS
    listen = known[moment]() if moment in known else None
    inputs = Inputs(**{name: Path(path) for name, path in bindings.items()})
    _run(folder, recipe, inputs, True, listen or (lambda event: None))


def _statuses(folder: Path, moments: Iterable[str]) -> list[int]:
    command = [sys.executable, __file__, str(folder), *moments]
    finished = subprocess.run(command, check=False, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    statuses: list[int] = json.loads(finished.stdout)
    return statuses


def _assert_same_run(folder: Path, straight: Path) -> None:
    assert compare_runs(straight, folder).first_difference is None


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def _bind(folder: Path, recipe: Recipe, inputs: Inputs) -> None:
    """What `_main` reads."""
    names = ("model", "train", "validation", "critic")
    bindings = {name: str(path) for name in names if (path := getattr(inputs, name)) is not None}
    (folder / "recipe.json").write_text(recipes.dumps(recipe))
    (folder / "bindings.json").write_text(json.dumps(bindings))


def test_a_run_killed_at_every_stage_leaves_the_bytes_of_a_straight_one(
    tiny_recipe: Recipe, tiny_inputs: Inputs, tiny_run: Path, tmp_path: Path
) -> None:
    _bind(tmp_path, tiny_recipe, tiny_inputs)
    assert _statuses(tmp_path, MOMENTS) == [signal.SIGKILL] * len(MOMENTS)
    assert not (tmp_path / "adapter").exists()
    assert _statuses(tmp_path, ["never"]) == [0]
    _assert_same_run(tmp_path, tiny_run)
    events = _lines(tmp_path / "journal.jsonl")
    starts = [event["resumed_step"] for event in events if event["event"] == "run_started"]
    assert starts == [None, None, None, 2, 2, 4, 4, 5, 5]
    assert len({event["pid"] for event in events}) == len(MOMENTS) + 1


def test_so_does_one_with_a_critic(
    tiny_recipe: Recipe, tiny_critic: Critic, tiny_inputs: Inputs, tmp_path: Path
) -> None:
    recipe = replace(
        tiny_recipe,
        critic=tiny_critic,
        advantage=Advantage(estimator="gae", divides_by_std=None, gamma=1.0, gae_lambda=0.9),
    )
    bound = replace(tiny_inputs, critic=tiny_inputs.model)
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    _run(straight, recipe, bound, False, lambda event: None)
    killed.mkdir()
    _bind(killed, recipe, bound)
    assert _statuses(killed, CRITIC_MOMENTS) == [signal.SIGKILL] * len(CRITIC_MOMENTS)
    assert not (killed / "adapter").exists()
    assert _statuses(killed, ["never"]) == [0]
    _assert_same_run(killed, straight)
    assert (killed / "critic" / "adapter_model.safetensors").is_file()
    events = _lines(killed / "journal.jsonl")
    starts = [event["resumed_step"] for event in events if event["event"] == "run_started"]
    assert starts == [None, None, None, 2, 2, 5, 5]


class _Stop(Exception):
    """Ends a run from its listener, where a process of its own would be too slow for many variants."""


VARIANTS: dict[str, Callable[[Recipe], Recipe]] = {
    "whole weights and their frozen copy": lambda recipe: replace(
        recipe, policy=replace(recipe.policy, lora=None)
    ),
    "bfloat16 products, checkpointed activations": lambda recipe: replace(
        recipe,
        policy=replace(recipe.policy, compute_dtype="bfloat16", checkpoints_activations=True),
        rollout=replace(recipe.rollout, dtype="bfloat16"),
    ),
    "bfloat16 weights": lambda recipe: replace(
        recipe,
        policy=replace(recipe.policy, parameter_dtype="bfloat16", compute_dtype="bfloat16"),
        rollout=replace(recipe.rollout, dtype="bfloat16"),
    ),
    "no reference, a warm-up, sampled validation": lambda recipe: replace(
        recipe,
        kl_loss=None,
        learning_rate_schedule=replace(
            recipe.learning_rate_schedule, kind="cosine", warmup_steps=2
        ),
        validation=recipe.validation
        and replace(recipe.validation, temperature=0.9, top_p=0.8, top_k=9, samples_per_prompt=2),
    ),
    "two epochs of ordered data": lambda recipe: replace(
        recipe,
        data=replace(recipe.data, shuffles=False, prompts_per_step=4),
        steps=replace(recipe.steps, num_steps=None, num_epochs=2, checkpoint_every=1),
    ),
    "steps over the end of an epoch": lambda recipe: replace(
        recipe,
        data=replace(recipe.data, prompts_per_step=4, prompts_per_draw=1),
        steps=replace(recipe.steps, num_steps=None, num_epochs=3),
    ),
    "groups that are dropped": lambda recipe: replace(
        recipe,
        data=replace(recipe.data, prompts_per_draw=1),
        group_filter=GroupFilter(metric="reward", batches_in_flight=1),
        rollout=replace(recipe.rollout, samples_per_prompt=8, temperature=2.0),
    ),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_stopped_run_goes_on_to_the_bytes_of_a_straight_one(
    tiny_recipe: Recipe, tiny_inputs: Inputs, tmp_path: Path, variant: str
) -> None:
    recipe = VARIANTS[variant](tiny_recipe)
    _run(tmp_path / "straight", recipe, tiny_inputs, False, lambda event: None)

    def stop(event: Event) -> None:
        if isinstance(event, PhaseFinished) and (event.step, event.phase) == (4, "score_old"):
            raise _Stop

    with pytest.raises(_Stop):
        _run(tmp_path / "stopped", recipe, tiny_inputs, False, stop)
    _run(tmp_path / "stopped", recipe, tiny_inputs, True, lambda event: None)
    _assert_same_run(tmp_path / "stopped", tmp_path / "straight")
    rows = _lines(tmp_path / "straight" / "metrics.jsonl")
    assert any(row["gradient_norm"] > 0 for row in rows)
    is_filtered = recipe.group_filter is not None
    assert any(row.get("groups_dropped", 0) > 0 for row in rows) == is_filtered


def test_killed_between_the_rounds_of_a_step_a_run_drops_the_same_groups_again(
    tiny_recipe: Recipe, tiny_inputs: Inputs, tmp_path: Path
) -> None:
    recipe = VARIANTS["groups that are dropped"](tiny_recipe)
    _run(tmp_path / "straight", recipe, tiny_inputs, False, lambda event: None)
    killed = tmp_path / "killed"
    killed.mkdir()
    _bind(killed, recipe, tiny_inputs)
    moments = ["rollout of step 1", "update of step 5", "never"]
    assert _statuses(killed, moments) == [signal.SIGKILL, signal.SIGKILL, 0]
    _assert_same_run(killed, tmp_path / "straight")


if __name__ == "__main__":
    print(json.dumps(_main(Path(sys.argv[1]), sys.argv[2:])))
