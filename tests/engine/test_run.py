"""A whole run: what it leaves, what it refuses to begin with, and what stops it."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from miniverl.engine import loop
from miniverl.engine.events import Event, PhaseFinished, RunFinished, Warned
from miniverl.engine.loop import Inputs
from miniverl.engine.problem import Refused, WrongCall
from miniverl.engine.recipe import Recipe
from miniverl.engine.score import bins
from miniverl.engine.trajectory import Trajectory


def _run(
    folder: Path, recipe: Recipe, inputs: Inputs, resume: bool, listen: Callable[[Event], None]
) -> None:
    loop.run(recipe, inputs, folder, device="cpu", threads=1, resume=resume, listen=listen)


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def _files(folder: Path) -> dict[str, bytes]:
    """All that holds no times."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name not in ("journal.jsonl", "run.lock")
    }


@pytest.fixture
def finished(tiny_run: Path, tmp_path: Path) -> Path:
    """A copy of the run's folder."""
    return Path(shutil.copytree(tiny_run, tmp_path / "finished"))


def test_a_run_leaves_what_the_recipe_asks_for(tiny_recipe: Recipe, tiny_run: Path) -> None:
    trajectories = _lines(tiny_run / "trajectories.jsonl")
    assert len(trajectories) == 5 * 2 * 3
    assert {row["step"] for row in trajectories} == {1, 2, 3, 4, 5}
    for row in trajectories:
        lengths = {len(row[name]) for name in ("response_tokens", "old_log_probs")}
        assert lengths == {len(row["reference_log_probs"])}
    assert {row["step"] for row in _lines(tiny_run / "validation.jsonl")} == {0, 2, 4, 5}
    assert [row["step"] for row in _lines(tiny_run / "metrics.jsonl")] == [1, 2, 3, 4, 5]
    assert sorted(path.name for path in (tiny_run / "checkpoints").iterdir()) == [
        "step-000004",
        "step-000005",
    ]
    assert sorted(path.name for path in (tiny_run / "adapter").iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]


def test_the_first_step_starts_at_the_reference(tiny_run: Path) -> None:
    for row in _lines(tiny_run / "trajectories.jsonl"):
        if row["step"] == 1:
            assert row["old_log_probs"] == row["reference_log_probs"]


def test_rewards_and_advantages_belong_together(tiny_run: Path) -> None:
    rows = _lines(tiny_run / "trajectories.jsonl")
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
    tiny_recipe: Recipe, tiny_inputs: Inputs, finished: Path
) -> None:
    before, heard = _files(finished), list[Event]()
    _run(finished, tiny_recipe, tiny_inputs, True, heard.append)
    assert isinstance(heard[-1], RunFinished)
    assert not any(isinstance(event, PhaseFinished) for event in heard)
    assert _files(finished) == before
    assert not (finished / "recovery").exists()


def test_a_new_run_does_not_start_where_one_is(
    tiny_recipe: Recipe, tiny_inputs: Inputs, finished: Path
) -> None:
    with pytest.raises(WrongCall, match=r"holds a run already: trajectories\.jsonl"):
        _run(finished, tiny_recipe, tiny_inputs, False, lambda event: None)


def test_another_recipe_does_not_go_on_with_the_run(
    tiny_recipe: Recipe, tiny_inputs: Inputs, finished: Path
) -> None:
    before = _files(finished)
    other = replace(tiny_recipe, steps=replace(tiny_recipe.steps, num_steps=6))
    with pytest.raises(Refused, match="recipe_sha256"):
        _run(finished, other, tiny_inputs, True, lambda event: None)
    assert _files(finished) == before


def test_other_weights_than_the_recipe_names_are_refused(
    tiny_recipe: Recipe, tiny_inputs: Inputs, finished: Path, tmp_path: Path
) -> None:
    other = Path(shutil.copytree(tiny_inputs.model, tmp_path / "model"))
    weights = bytearray((other / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (other / "model.safetensors").write_bytes(weights)
    for resume, folder in ((False, tmp_path / "run"), (True, finished)):
        with pytest.raises(WrongCall, match="its weights have the digest"):
            _run(folder, tiny_recipe, replace(tiny_inputs, model=other), resume, lambda event: None)


def test_a_recipe_that_validates_needs_its_data(
    tiny_recipe: Recipe, tiny_inputs: Inputs, tmp_path: Path
) -> None:
    with pytest.raises(WrongCall, match="no validation data is bound"):
        _run(
            tmp_path, tiny_recipe, replace(tiny_inputs, validation=None), False, lambda event: None
        )


def test_a_policy_that_diverges_stops_the_run_with_that_reason(
    tiny_recipe: Recipe, tiny_inputs: Inputs, tmp_path: Path
) -> None:
    recipe = replace(
        tiny_recipe, optimizer=replace(tiny_recipe.optimizer, learning_rate=1e30), validation=None
    )
    heard = list[Event]()
    with pytest.raises(Refused, match="its log-probabilities are not finite any more"):
        _run(tmp_path, recipe, tiny_inputs, False, heard.append)
    assert "optimizer_steps_skipped" in [each.code for each in heard if isinstance(each, Warned)]


def test_weights_that_are_not_finite_are_never_saved(
    tiny_recipe: Recipe, tiny_inputs: Inputs, tmp_path: Path
) -> None:
    recipe = replace(
        tiny_recipe,
        optimizer=replace(tiny_recipe.optimizer, learning_rate=3e37, weight_decay=100.0),
        steps=replace(tiny_recipe.steps, num_steps=1),
        validation=None,
    )
    with pytest.raises(Refused, match="its weights are not finite any more"):
        _run(tmp_path, recipe, tiny_inputs, False, lambda event: None)
    assert not (tmp_path / "checkpoints").exists()
    assert not (tmp_path / "adapter").exists()


def test_phases_tell_what_they_computed_at_once(tiny_run: Path) -> None:
    told = [
        (each["phase"], each["batches"], each["most_rows"])
        for each in _lines(tiny_run / "journal.jsonl")
        if each["event"] == "phase_finished" and each["step"] == 1
    ]
    counts = {phase: (batches, rows) for phase, batches, rows in told}
    assert counts["rollout"] == (0, 6)  # 2 prompts of 3 samples
    assert counts["reward"] == counts["advantage"] == (0, 0)
    trajectories = [
        Trajectory(
            prompt_id=each["prompt_id"],
            sample=each["sample"],
            prompt_tokens=tuple(each["prompt_tokens"]),
            response_tokens=tuple(each["response_tokens"]),
            is_finished=each["finished"],
            response=each["response"],
            reward=each["reward"],
        )
        for each in _lines(tiny_run / "trajectories.jsonl")[:6]
    ]
    scored = list(bins(trajectories, 32))
    assert counts["score_reference"] == (len(scored), max(map(len, scored)))
    per_prompt = [list(bins(trajectories[part], 32)) for part in (slice(3), slice(3, 6))]
    updated = [each for found in per_prompt for each in found]
    # Each prompt is a mini-batch, in two epochs.
    assert counts["update"][0] == 2 * sum(len(each) for each in per_prompt)
    assert max(map(len, updated)) <= counts["update"][1] <= 3
