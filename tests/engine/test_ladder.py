"""Memory that does not suffice, by torch's own protocol: an operation of the run raises."""

import hashlib
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from miniverl.engine import loop
from miniverl.engine.events import Downshifted, Event, PhaseFinished
from miniverl.engine.inputs import Inputs
from miniverl.engine.problem import CannotHere
from miniverl.engine.recipe import Recipe

pytestmark = pytest.mark.slow

_LATE = 150  # operations: behind the first rows, or within a backward pass


class _Full(TorchDispatchMode):
    """A device that refuses the `_LATE`-th operation from now on, that often."""

    refusals = 0
    count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.count += 1
        if self.refusals and self.count == _LATE:
            self.count = 0
            self.refusals -= 1
            raise torch.OutOfMemoryError("Tried to allocate 1.00 GiB")
        return func(*args, **(kwargs or {}))


def _run(
    folder: Path,
    recipe: Recipe,
    inputs: Inputs,
    refused: dict[tuple[int, str], int],
    *,
    resume: bool = False,
    also: Callable[[Event], None] = lambda event: None,
) -> list[tuple[int, str, str, int, int]]:
    """The rungs of a run in which memory is refused that often behind the end of a step's phase."""
    heard: list[Event] = []
    with _Full() as device:

        def listen(event: Event) -> None:
            heard.append(event)
            also(event)
            if isinstance(event, PhaseFinished):
                device.refusals, device.count = refused.get((event.step, event.phase), 0), 0

        loop.run(recipe, inputs, folder, device="cpu", threads=1, resume=resume, listen=listen)
    return [
        (each.step, each.phase, each.what, each.then, each.now)
        for each in heard
        if isinstance(each, Downshifted)
    ]


def _contents(folder: Path) -> dict[str, bytes]:
    """All that is neither a time nor says what was computed at once."""
    names = ("journal.jsonl", "run.lock", "state.json", "manifest.json")
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name not in names
    }


def test_fewer_rows_and_activations_computed_again_leave_every_byte(
    tiny_recipe: Recipe, tiny_inputs: Inputs, tiny_run: Path, tmp_path: Path
) -> None:
    refused = {(0, "validation"): 2, (1, "advantage"): 1}
    rungs = _run(tmp_path / "run", tiny_recipe, tiny_inputs, refused)
    assert rungs == [
        (1, "rollout", "rows", 6, 3),
        (1, "rollout", "rows", 3, 2),
        (1, "update", "recomputes", 0, 1),
    ]
    assert _contents(tmp_path / "run") == _contents(tiny_run)


def test_below_two_rows_a_run_ends_with_numbers_and_goes_on_where_memory_suffices(
    tiny_recipe: Recipe, tiny_inputs: Inputs, tiny_run: Path, tmp_path: Path
) -> None:
    reason = r"rollout = '2 rows' \(step 3\): out of memory, .* Tried to allocate 1.00 GiB"
    with pytest.raises(CannotHere, match=reason):
        _run(tmp_path / "run", tiny_recipe, tiny_inputs, {(2, "checkpoint"): 9})
    assert _run(tmp_path / "run", tiny_recipe, tiny_inputs, {}, resume=True) == []
    assert _contents(tmp_path / "run") == _contents(tiny_run)


def test_smaller_bins_are_remembered_by_a_resumed_run(
    tiny_recipe: Recipe, tiny_inputs: Inputs, tmp_path: Path
) -> None:
    refused = {(1, "advantage"): 2}
    rungs = _run(tmp_path / "straight", tiny_recipe, tiny_inputs, refused)
    assert [each[:3] for each in rungs] == [(1, "update", "recomputes"), (1, "update", "tokens")]
    with pytest.raises(CannotHere):  # behind the checkpoint of step 2
        _run(tmp_path / "run", tiny_recipe, tiny_inputs, refused | {(2, "checkpoint"): 9})
    assert _run(tmp_path / "run", tiny_recipe, tiny_inputs, {}, resume=True) == []
    assert _contents(tmp_path / "run") == _contents(tmp_path / "straight")


def test_scoring_that_does_not_fit_goes_on_in_smaller_bins(
    tiny_recipe: Recipe, tiny_inputs: Inputs, tiny_run: Path, tmp_path: Path
) -> None:
    rungs = _run(tmp_path / "run", tiny_recipe, tiny_inputs, {(1, "reward"): 1})
    assert [each[:3] for each in rungs] == [(1, "score_old", "tokens")]
    assert rungs[0][4] < rungs[0][3] == tiny_recipe.update.micro_batch_tokens
    found, expected = (_old_log_probs(folder) for folder in (tmp_path / "run", tiny_run))
    # Of the first step; later ones come from what it learnt.
    torch.testing.assert_close(found[:6], expected[:6], rtol=1e-5, atol=1e-6)


def test_scoring_that_does_not_fit_even_alone_ends_with_numbers_and_goes_on_where_memory_suffices(
    tiny_recipe: Recipe, tiny_inputs: Inputs, tiny_run: Path, tmp_path: Path
) -> None:
    reason = (
        r"score_reference = '\d+ tokens' \(step 3\): out of memory, .* Tried to allocate 1.00 GiB"
    )
    with pytest.raises(CannotHere, match=reason):
        _run(tmp_path / "run", tiny_recipe, tiny_inputs, {(3, "score_old"): 9})
    assert _run(tmp_path / "run", tiny_recipe, tiny_inputs, {}, resume=True) == []
    assert _contents(tmp_path / "run") == _contents(tiny_run)


def test_a_run_killed_before_a_checkpoint_knows_of_a_rung_begins_again_as_the_recipe_says(
    tiny_recipe: Recipe, tiny_inputs: Inputs, tiny_run: Path, tmp_path: Path
) -> None:
    def kill(event: Event) -> None:
        if isinstance(event, PhaseFinished) and (event.step, event.phase) == (3, "update"):
            os.kill(os.getpid(), signal.SIGKILL)

    process = os.fork()
    if process == 0:
        _run(tmp_path / "run", tiny_recipe, tiny_inputs, {(3, "advantage"): 2}, also=kill)
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(process, 0)[1]) == signal.SIGKILL
    assert "downshifted" in (tmp_path / "run" / "journal.jsonl").read_text()
    assert _run(tmp_path / "run", tiny_recipe, tiny_inputs, {}, resume=True) == []
    assert _contents(tmp_path / "run") == _contents(tiny_run)


def test_a_checkpoint_from_before_there_were_rungs_is_resumed(
    tiny_recipe: Recipe, tiny_inputs: Inputs, tiny_run: Path, tmp_path: Path
) -> None:
    with pytest.raises(CannotHere):  # behind the checkpoint of step 2
        _run(tmp_path / "run", tiny_recipe, tiny_inputs, {(2, "checkpoint"): 9})
    newest = tmp_path / "run" / "checkpoints" / "step-000002"
    state = json.loads((newest / "state.json").read_text())
    del state["downshifts"]
    manifest = json.loads((newest / "manifest.json").read_text())
    text = json.dumps(state).encode()
    manifest["state.json"] = {"bytes": len(text), "sha256": hashlib.sha256(text).hexdigest()}
    (newest / "state.json").write_bytes(text)
    (newest / "manifest.json").write_text(json.dumps(manifest))
    assert _run(tmp_path / "run", tiny_recipe, tiny_inputs, {}, resume=True) == []
    assert _contents(tmp_path / "run") == _contents(tiny_run)


def _old_log_probs(folder: Path) -> list[list[float]]:
    lines = (folder / "trajectories.jsonl").read_text().splitlines()
    return [json.loads(line)["old_log_probs"] for line in lines]
