"""What disks, clocks and people do to a run's folder between two processes: told clearly, and nothing is lost."""

import json
import os
import resource
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from miniverl.bench.resume import LOGS, compare_runs
from miniverl.engine import loop
from miniverl.engine.events import (
    CheckpointSaved,
    Event,
    PhaseFinished,
    RunFinished,
    RunStarted,
    Warned,
)
from miniverl.engine.loop import Inputs
from miniverl.engine.problem import CannotHere, Refused
from miniverl.engine.recipe import Recipe

pytestmark = pytest.mark.slow

Go = Callable[..., list[Event]]


@pytest.fixture
def go(tiny_recipe: Recipe, tiny_inputs: Inputs, tmp_path: Path) -> Go:
    """`go()`: run tiny_recipe in tmp_path/"run", or go on with it; gives what it told.

    `until(event)` says where it stops, as if it were killed: what it wrote by then is all that is there.
    """

    def run(
        until: Callable[[Event], bool] = lambda event: False, recipe: Recipe = tiny_recipe
    ) -> list[Event]:
        heard: list[Event] = []

        def listen(event: Event) -> None:
            heard.append(event)
            if until(event):
                raise _Stop

        with suppress(_Stop):
            loop.run(
                recipe,
                tiny_inputs,
                tmp_path / "run",
                device="cpu",
                threads=1,
                resume=True,
                listen=listen,
            )
        return heard

    return run


class _Stop(Exception):
    """Ends a run from its listener."""


def _saved(step: int) -> Callable[[Event], bool]:
    return lambda event: isinstance(event, CheckpointSaved) and event.step == step


def _scored(step: int) -> Callable[[Event], bool]:
    """In the middle of a step."""
    return lambda event: (
        isinstance(event, PhaseFinished) and (event.step, event.phase) == (step, "score_old")
    )


def _is_same(run: Path, straight: Path) -> bool:
    return compare_runs(straight, run).first_difference is None


def _codes(heard: list[Event]) -> list[str]:
    return [event.code for event in heard if isinstance(event, Warned)]


def _resumed_step(heard: list[Event]) -> int | None:
    (started,) = (event for event in heard if isinstance(event, RunStarted))
    return started.resumed_step


@pytest.mark.parametrize("file_bytes", [0, 100, 6000, 12_000])
def test_on_a_full_disk_a_run_says_so_and_goes_on_when_there_is_room(
    go: Go, tiny_run: Path, tmp_path: Path, file_bytes: int
) -> None:
    """No file can grow beyond `file_bytes`: the journal, a log and a checkpoint are refused in turn."""
    before, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, hard))
    try:
        with pytest.raises(CannotHere, match=r"run folder .* cannot be written: File too large"):
            go()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, hard))
    assert not list(tmp_path.rglob(".*.part"))
    go()
    assert _is_same(tmp_path / "run", tiny_run)


@contextmanager
def _as_nobody() -> Iterator[None]:
    """Without the rights of root, to whom no folder is read-only."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_folder_that_may_not_be_written_is_told_and_left_as_it_is(
    go: Go, tiny_run: Path, tmp_path: Path
) -> None:
    go(until=_scored(3))
    run = tmp_path / "run"
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.getuid() and folder != folder.parent:
            folder.chmod(folder.stat().st_mode | 0o055)
    run.chmod(0o555)
    try:
        with _as_nobody(), pytest.raises(CannotHere, match="cannot be written: Permission denied"):
            go()
    finally:
        run.chmod(0o755)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    go()
    assert _is_same(run, tiny_run)


def test_a_folder_that_cannot_be_made_is_told(
    tiny_recipe: Recipe, tiny_inputs: Inputs, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CannotHere, match="cannot be written: File exists"):
        loop.run(
            tiny_recipe,
            tiny_inputs,
            tmp_path / "file" / "some" / "run",
            device="cpu",
            threads=1,
            resume=False,
            listen=lambda event: None,
        )


def test_two_processes_do_not_run_in_one_folder(go: Go, tmp_path: Path) -> None:
    def second(event: Event) -> bool:
        if isinstance(event, RunStarted):
            with pytest.raises(Refused, match=f"process {os.getpid()} is running"):
                go()
            return True
        return False

    go(until=second)


def test_a_broken_checkpoint_costs_its_steps_and_nothing_else(
    go: Go, tiny_run: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    go(until=_saved(4))
    (run / "checkpoints/step-000004/optimizer.safetensors").write_bytes(b"")
    heard = go()
    assert _resumed_step(heard) == 2
    assert _codes(heard) == ["checkpoint_unusable"] + 3 * ["log_cut_back"]
    assert len(list((run / "recovery").iterdir())) == 4
    assert _is_same(run, tiny_run)


def test_a_broken_older_checkpoint_stops_nothing(go: Go, tiny_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    go(until=_saved(4))
    (run / "checkpoints/step-000002/manifest.json").unlink()
    heard = go()
    assert (_resumed_step(heard), _codes(heard)) == (4, [])
    assert _is_same(run, tiny_run)


def test_what_a_run_exported_outlives_its_last_checkpoint_in_recovery(
    go: Go, tiny_run: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(tiny_run, tmp_path / "run"))
    exported = (run / "adapter/adapter_model.safetensors").read_bytes()
    (run / "checkpoints/step-000005/state.json").write_text("{}")
    heard = go()
    assert _resumed_step(heard) == 4
    assert "export_moved" in _codes(heard)
    assert (run / "recovery/adapter.0/adapter_model.safetensors").read_bytes() == exported
    assert _is_same(run, tiny_run)


def test_retention_counts_the_checkpoints_of_earlier_processes(
    go: Go, tiny_recipe: Recipe, tmp_path: Path
) -> None:
    often = replace(tiny_recipe, steps=replace(tiny_recipe.steps, checkpoint_every=1))
    for step, kept in ((1, [1]), (2, [1, 2]), (3, [2, 3]), (5, [4, 5])):
        go(until=_saved(step), recipe=often)
        names = sorted(path.name for path in (tmp_path / "run/checkpoints").iterdir())
        assert names == [f"step-{each:06d}" for each in kept]


def test_a_log_that_is_gone_is_told_and_nothing_is_touched(go: Go, tmp_path: Path) -> None:
    run = tmp_path / "run"
    go(until=_saved(4))
    (run / "trajectories.jsonl").rename(tmp_path / "elsewhere")
    before = sorted(run.rglob("*"))
    with pytest.raises(Refused, match=r"trajectories\.jsonl does not begin with the \d+ bytes"):
        go()
    assert sorted(run.rglob("*")) == before


def test_without_its_checkpoints_a_run_begins_again_and_keeps_what_was_there(
    go: Go, tiny_run: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(tiny_run, tmp_path / "run"))
    shutil.rmtree(run / "checkpoints")
    heard = go()
    assert _resumed_step(heard) is None
    for name in ("trajectories.jsonl", "metrics.jsonl"):
        assert (run / f"recovery/{name}.from-0.0").read_bytes() == (tiny_run / name).read_bytes()
    assert (run / "recovery/adapter.0").is_dir()
    assert _is_same(run, tiny_run)


def test_over_many_kills_every_line_is_in_its_log_or_in_recovery(
    go: Go, tiny_run: Path, tmp_path: Path
) -> None:
    """Steps 1, 3 and 5 are lost twice each; the last line of a log is torn in between."""
    run = tmp_path / "run"
    written: dict[str, bytes] = dict.fromkeys(LOGS, b"")
    for step in (2, 2, 4, 4, 5, 5):
        go(until=_scored(step))
        for name in LOGS:
            with (run / name).open("ab") as file:
                file.write(b'{"torn"')
        kept = {name: _bound_bytes(run, name) for name in LOGS}
        for name in LOGS:
            written[name] += (run / name).read_bytes()[kept[name] :]
    go()
    for name in LOGS:
        aside = sorted((run / "recovery").glob(f"{name}.from-*"), key=_place)
        assert b"".join(path.read_bytes() for path in aside) == written[name]
    assert _is_same(run, tiny_run)


def _bound_bytes(run: Path, name: str) -> int:
    """How far the newest checkpoint says that the log goes."""
    newest = sorted(path for path in (run / "checkpoints").glob("step-*"))[-1:]
    states = [json.loads((path / "state.json").read_text()) for path in newest]
    return int(states[0]["logs"][name]["bytes"]) if states else 0


def _place(path: Path) -> tuple[int, int]:
    """Of NAME.from-1234.0: 1234, 0."""
    length, number = path.name.rpartition("from-")[2].split(".")
    return int(length), int(number)


def test_a_clock_that_goes_backwards_changes_no_byte(
    go: Go, tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another boot begins its monotonic clock again, and somebody sets the wall clock back."""
    journal = tmp_path / "run" / "journal.jsonl"
    go(until=_scored(3))
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    later = [line | {"monotonic_seconds": 1e9 + line["monotonic_seconds"]} for line in lines]
    journal.write_text("".join(json.dumps(line) + "\n" for line in later))
    os.utime(tmp_path / "run/checkpoints/step-000002", (2e9, 2e9))
    monkeypatch.setattr(time, "time", lambda: 0.0)
    heard = go()
    assert isinstance(heard[-1], RunFinished)
    assert _is_same(tmp_path / "run", tiny_run)


def test_what_killed_processes_left_half_written_goes(
    go: Go, tiny_run: Path, tmp_path: Path
) -> None:
    """Folders of the engine's own, and a file that the process that starts it was writing."""
    run = tmp_path / "run"
    go(until=_saved(2))
    for folder in (run / ".adapter.part", run / "checkpoints/.step-000001.gone"):
        folder.mkdir()
        (folder / "some").write_text("half")
    (run / ".recipe.json.123.part").write_text("{")
    go()
    assert not [path for path in run.rglob(".*")]
    assert _is_same(run, tiny_run)
