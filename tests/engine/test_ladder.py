"""Memory that does not suffice, by torch's own protocol: an operation of the run raises."""

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
) -> list[tuple[int, str, str, int, int]]:
    """The rungs of a run in which memory is refused that often behind the end of a step's phase."""
    heard: list[Event] = []
    with _Full() as device:

        def listen(event: Event) -> None:
            heard.append(event)
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
