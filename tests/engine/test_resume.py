"""A run that is killed again and again, and resumed each time in a new process, leaves the bytes of a straight one.

This file is also the program of those processes: `python test_resume.py FOLDER MOMENT...` runs or resumes the
run in FOLDER once for each MOMENT, where it kills itself. Each time is a process of its own; they are forked
from one that has only imported, since importing is most of the time.
"""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from miniverl.engine import loop
from miniverl.engine import recipe as recipes
from miniverl.engine.algorithm import Advantage, GroupFilter
from miniverl.engine.events import (
    CheckpointSaved,
    Event,
    PhaseFinished,
    RunFinished,
    RunStarted,
    Warned,
)
from miniverl.engine.loop import Inputs
from miniverl.engine.problem import CannotHere, Refused, WrongCall
from miniverl.engine.recipe import Critic, Recipe

LOGS = ("trajectories.jsonl", "metrics.jsonl", "validation.jsonl")
COMPARED = (*LOGS, "adapter", "critic", "checkpoints")
ROLLOUT_1 = PhaseFinished(step=1, phase="rollout", seconds=0.0, tokens=0)


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _kill_before_rename(name: str) -> None:
    """When everything is written, and nothing is there yet."""
    rename = os.rename

    def killing(source: Any, target: Any) -> None:
        if Path(target).name == name:
            _kill()
        rename(source, target)

    os.rename = killing


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


def _files(folder: Path) -> dict[str, bytes]:
    paths = (path for name in COMPARED for path in (folder / name, *(folder / name).rglob("*")))
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths if path.is_file()}


def _assert_same_run(folder: Path, straight: Path) -> None:
    ours, theirs = _files(folder), _files(straight)
    assert ours.keys() == theirs.keys()
    for name, content in theirs.items():
        assert ours[name] == content, name


@pytest.fixture(scope="module")
def inputs(tiny_model: Path, tiny_train: Path, tiny_validation: Path) -> Inputs:
    return Inputs(model=tiny_model, train=tiny_train, validation=tiny_validation)


@pytest.fixture(scope="module")
def straight(tiny_recipe: Recipe, inputs: Inputs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("straight") / "run"
    with _settings_restored():
        _run(folder, tiny_recipe, inputs, False, lambda event: None)
    return folder


class _settings_restored:
    """As conftest.settings_restored, around what a module's fixture runs."""

    def __enter__(self) -> None:
        self._was = torch.are_deterministic_algorithms_enabled()

    def __exit__(self, *_: object) -> None:
        torch.use_deterministic_algorithms(self._was)
        torch.set_num_threads(1)


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def _bind(folder: Path, recipe: Recipe, inputs: Inputs) -> None:
    """What `_main` reads."""
    names = ("model", "train", "validation", "critic")
    bindings = {name: str(path) for name in names if (path := getattr(inputs, name)) is not None}
    (folder / "recipe.json").write_text(recipes.dumps(recipe))
    (folder / "bindings.json").write_text(json.dumps(bindings))


def test_a_run_killed_at_every_stage_leaves_the_bytes_of_a_straight_one(
    tiny_recipe: Recipe, inputs: Inputs, straight: Path, tmp_path: Path
) -> None:
    _bind(tmp_path, tiny_recipe, inputs)
    assert _statuses(tmp_path, MOMENTS) == [signal.SIGKILL] * len(MOMENTS)
    assert not (tmp_path / "adapter").exists()
    assert _statuses(tmp_path, ["never"]) == [0]
    _assert_same_run(tmp_path, straight)
    events = _lines(tmp_path / "journal.jsonl")
    starts = [event["resumed_step"] for event in events if event["event"] == "run_started"]
    assert starts == [None, None, None, 2, 2, 4, 4, 5, 5]
    assert len({event["pid"] for event in events}) == len(MOMENTS) + 1


def test_so_does_one_with_a_critic(
    tiny_recipe: Recipe, tiny_critic: Critic, inputs: Inputs, tmp_path: Path
) -> None:
    recipe = replace(
        tiny_recipe,
        critic=tiny_critic,
        advantage=Advantage(estimator="gae", divides_by_std=None, gamma=1.0, gae_lambda=0.9),
    )
    bound = replace(inputs, critic=inputs.model)
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


@pytest.mark.parametrize("file_bytes", [0, 100, 6000, 12_000])
def test_on_a_full_disk_a_run_says_so_and_goes_on_when_there_is_room(
    tiny_recipe: Recipe, inputs: Inputs, straight: Path, tmp_path: Path, file_bytes: int
) -> None:
    """No file can grow beyond `file_bytes`: the journal, a log and a checkpoint are refused in turn."""
    before, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, hard))
    try:
        with pytest.raises(CannotHere, match=r"run folder .* cannot be written: File too large"):
            _run(tmp_path, tiny_recipe, inputs, False, lambda event: None)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, hard))
    assert not list(tmp_path.rglob(".*.part"))
    _run(tmp_path, tiny_recipe, inputs, True, lambda event: None)
    _assert_same_run(tmp_path, straight)


def test_a_policy_that_diverges_stops_the_run_with_that_reason(
    tiny_recipe: Recipe, inputs: Inputs, tmp_path: Path
) -> None:
    recipe = replace(
        tiny_recipe, optimizer=replace(tiny_recipe.optimizer, learning_rate=1e30), validation=None
    )
    heard = list[Event]()
    with pytest.raises(Refused, match="its log-probabilities are not finite any more"):
        _run(tmp_path, recipe, inputs, False, heard.append)
    assert "optimizer_steps_skipped" in [each.code for each in heard if isinstance(each, Warned)]


def test_weights_that_are_not_finite_are_never_saved(
    tiny_recipe: Recipe, inputs: Inputs, tmp_path: Path
) -> None:
    recipe = replace(
        tiny_recipe,
        optimizer=replace(tiny_recipe.optimizer, learning_rate=3e37, weight_decay=100.0),
        steps=replace(tiny_recipe.steps, num_steps=1),
        validation=None,
    )
    with pytest.raises(Refused, match="its weights are not finite any more"):
        _run(tmp_path, recipe, inputs, False, lambda event: None)
    assert not (tmp_path / "checkpoints").exists()
    assert not (tmp_path / "adapter").exists()


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
    tiny_recipe: Recipe, inputs: Inputs, tmp_path: Path, variant: str
) -> None:
    recipe = VARIANTS[variant](tiny_recipe)
    _run(tmp_path / "straight", recipe, inputs, False, lambda event: None)

    def stop(event: Event) -> None:
        if isinstance(event, PhaseFinished) and (event.step, event.phase) == (4, "score_old"):
            raise _Stop

    with pytest.raises(_Stop):
        _run(tmp_path / "stopped", recipe, inputs, False, stop)
    _run(tmp_path / "stopped", recipe, inputs, True, lambda event: None)
    _assert_same_run(tmp_path / "stopped", tmp_path / "straight")
    rows = _lines(tmp_path / "straight" / "metrics.jsonl")
    assert any(row["gradient_norm"] > 0 for row in rows)
    is_filtered = recipe.group_filter is not None
    assert any(row.get("groups_dropped", 0) > 0 for row in rows) == is_filtered


def test_killed_between_the_rounds_of_a_step_a_run_drops_the_same_groups_again(
    tiny_recipe: Recipe, inputs: Inputs, tmp_path: Path
) -> None:
    recipe = VARIANTS["groups that are dropped"](tiny_recipe)
    _run(tmp_path / "straight", recipe, inputs, False, lambda event: None)
    killed = tmp_path / "killed"
    killed.mkdir()
    bindings = {"model": inputs.model, "train": inputs.train, "validation": inputs.validation}
    (killed / "recipe.json").write_text(recipes.dumps(recipe))
    (killed / "bindings.json").write_text(json.dumps(bindings, default=str))
    moments = ["rollout of step 1", "update of step 5", "never"]
    assert _statuses(killed, moments) == [signal.SIGKILL, signal.SIGKILL, 0]
    _assert_same_run(killed, tmp_path / "straight")


def test_a_run_leaves_what_the_recipe_asks_for(tiny_recipe: Recipe, straight: Path) -> None:
    trajectories = _lines(straight / "trajectories.jsonl")
    assert len(trajectories) == 5 * 2 * 3
    assert {row["step"] for row in trajectories} == {1, 2, 3, 4, 5}
    for row in trajectories:
        lengths = {len(row[name]) for name in ("response_tokens", "old_log_probs")}
        assert lengths == {len(row["reference_log_probs"])}
    assert {row["step"] for row in _lines(straight / "validation.jsonl")} == {0, 2, 4, 5}
    assert [row["step"] for row in _lines(straight / "metrics.jsonl")] == [1, 2, 3, 4, 5]
    assert sorted(path.name for path in (straight / "checkpoints").iterdir()) == [
        "step-000004",
        "step-000005",
    ]
    assert sorted(path.name for path in (straight / "adapter").iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]


def test_the_first_step_starts_at_the_reference(straight: Path) -> None:
    for row in _lines(straight / "trajectories.jsonl"):
        if row["step"] == 1:
            assert row["old_log_probs"] == row["reference_log_probs"]


def test_rewards_and_advantages_belong_together(straight: Path) -> None:
    rows = _lines(straight / "trajectories.jsonl")
    assert {row["reward"] for row in rows} == {0.0, 1.0}
    for step in range(1, 6):
        groups: dict[int, list[dict[str, Any]]] = {}
        for row in rows:
            if row["step"] == step:
                groups.setdefault(row["prompt_id"], []).append(row)
        for group in groups.values():
            assert sum(row["advantages"][0] for row in group) == pytest.approx(0.0, abs=1e-5)
            rewarded = [row["reward"] == 1.0 for row in group]
            above = [row["advantages"][0] > 0 for row in group]
            assert above == (rewarded if len(set(rewarded)) == 2 else [False] * len(group))


def test_a_finished_run_says_so_and_changes_nothing(
    tiny_recipe: Recipe, inputs: Inputs, straight: Path
) -> None:
    before, heard = _files(straight), list[Event]()
    _run(straight, tiny_recipe, inputs, True, heard.append)
    assert isinstance(heard[-1], RunFinished)
    assert not any(isinstance(event, PhaseFinished) for event in heard)
    assert _files(straight) == before
    assert not (straight / "recovery").exists()


def test_a_new_run_does_not_start_where_one_is(
    tiny_recipe: Recipe, inputs: Inputs, straight: Path
) -> None:
    with pytest.raises(WrongCall, match=r"holds a run already: trajectories\.jsonl"):
        _run(straight, tiny_recipe, inputs, False, lambda event: None)


def test_another_recipe_does_not_go_on_with_the_run(
    tiny_recipe: Recipe, inputs: Inputs, straight: Path
) -> None:
    before = _files(straight)
    other = replace(tiny_recipe, steps=replace(tiny_recipe.steps, num_steps=6))
    with pytest.raises(Refused, match="recipe_sha256"):
        _run(straight, other, inputs, True, lambda event: None)
    assert _files(straight) == before


def test_other_weights_than_the_recipe_names_are_refused(
    tiny_recipe: Recipe, inputs: Inputs, straight: Path, tmp_path: Path
) -> None:
    other = Path(shutil.copytree(inputs.model, tmp_path / "model"))
    weights = bytearray((other / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (other / "model.safetensors").write_bytes(weights)
    for resume, folder in ((False, tmp_path / "run"), (True, straight)):
        with pytest.raises(WrongCall, match="its weights have the digest"):
            _run(folder, tiny_recipe, replace(inputs, model=other), resume, lambda event: None)


def test_a_recipe_that_validates_needs_its_data(
    tiny_recipe: Recipe, inputs: Inputs, tmp_path: Path
) -> None:
    with pytest.raises(WrongCall, match="no validation data is bound"):
        _run(tmp_path, tiny_recipe, replace(inputs, validation=None), False, lambda event: None)


def test_two_processes_do_not_run_in_one_folder(
    tiny_recipe: Recipe, inputs: Inputs, tmp_path: Path
) -> None:
    def second(event: Event) -> None:
        if isinstance(event, RunStarted):
            with pytest.raises(Refused, match=f"process {os.getpid()} is running"):
                _run(tmp_path, tiny_recipe, inputs, True, lambda event: None)
            raise _Stop

    with pytest.raises(_Stop):
        _run(tmp_path, tiny_recipe, inputs, False, second)


def test_a_broken_checkpoint_costs_its_steps_and_nothing_else(
    tiny_recipe: Recipe, inputs: Inputs, straight: Path, tmp_path: Path
) -> None:
    def stop(event: Event) -> None:
        if isinstance(event, CheckpointSaved) and event.step == 4:
            raise _Stop

    with pytest.raises(_Stop):
        _run(tmp_path, tiny_recipe, inputs, False, stop)
    (tmp_path / "checkpoints/step-000004/optimizer.safetensors").write_bytes(b"")
    heard = list[Event]()
    _run(tmp_path, tiny_recipe, inputs, True, heard.append)
    assert [event.resumed_step for event in heard if isinstance(event, RunStarted)] == [2]
    codes = [event.code for event in heard if isinstance(event, Warned)]
    assert codes == ["checkpoint_unusable"] + 3 * ["log_cut_back"]
    assert len(list((tmp_path / "recovery").iterdir())) == 4
    _assert_same_run(tmp_path, straight)


if __name__ == "__main__":
    print(json.dumps(_main(Path(sys.argv[1]), sys.argv[2:])))
