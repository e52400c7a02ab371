"""`miniverl export`: a run's metrics as TensorBoard and Weights & Biases themselves read them."""

import importlib.util
import json
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from miniverl.bench.cli import main

Capture = pytest.CaptureFixture[str]

STEPS = (
    {"step": 1, "reward_mean": 0.25, "loss": 0.0, "horizon": None},
    {"step": 2, "reward_mean": 0.5, "loss": -1e-3, "horizon": None},
)
EVENTS = (
    {"event": "validation_finished", "step": 0, "metrics": {"reward_mean": 0.125}},
    {"event": "validation_finished", "step": 2, "metrics": {"reward_mean": 9.0}},
    {"event": "run_started", "num_steps": 2, "resumed_step": 1},
    {"event": "validation_finished", "step": 2, "metrics": {"reward_mean": 0.75}},
)
VALUES = {
    ("train/reward_mean", 1): 0.25,
    ("train/reward_mean", 2): 0.5,
    ("train/loss", 1): 0.0,
    ("train/loss", 2): -1e-3,
    ("validation/reward_mean", 0): 0.125,
    ("validation/reward_mean", 2): 0.75,
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run that was resumed, validated step 2 twice, and tears its last line."""
    folder = tmp_path / "a run"
    folder.mkdir()
    (folder / "recipe.json").write_text('{"seed": 7}')
    for name, rows in {"metrics.jsonl": STEPS, "journal.jsonl": EVENTS}.items():
        (folder / name).write_text("".join(json.dumps(each) + "\n" for each in rows))
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "rew')
    return folder


def test_tensorboard_reads_every_number_of_every_step(
    run: Path, tmp_path: Path, capsys: Capture
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    out = tmp_path / "board"
    assert main(["export", str(run), "--tensorboard", str(out), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {"run": str(run), "steps": 3, "tensorboard": str(out)}
    read = EventAccumulator(str(out)).Reload()
    found = {
        (tag, event.step): event.value
        for tag in read.Tags()["scalars"]
        for event in read.Scalars(tag)
    }
    assert found == pytest.approx(VALUES)


@pytest.mark.skipif(
    importlib.util.find_spec("wandb") is None,
    reason="wandb is an extra that no lock holds: pip install wandb, and this runs",
)
def test_a_run_for_wandb_holds_the_same_and_nothing_of_the_machine(
    run: Path, tmp_path: Path, capsys: Capture
) -> None:
    out = tmp_path / "offline"
    assert main(["export", str(run), "--wandb", str(out)]) == 0
    assert f"wandb       {out}: 3 steps" in capsys.readouterr().err
    (written,) = out.glob("wandb/offline-run-*/run-*.wandb")
    records = list(wandb_records(written))
    found = {}
    for record in records:
        if record.WhichOneof("record_type") == "history":
            row = {item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
            found |= {(name, row["_step"]): row[name] for name in row if name[0] != "_"}
    assert found == VALUES
    stated = next(each.run for each in records if each.WhichOneof("record_type") == "run")
    assert (stated.project, stated.display_name, stated.host) == ("miniverl", "a run", "")
    config = {each.key: json.loads(each.value_json) for each in stated.config.update}
    assert config["seed"] == 7
    names = {path.name for path in written.parent.rglob("*") if path.is_file()}
    assert not names & {"requirements.txt", "wandb-metadata.json", "output.log", "diff.patch"}
    assert socket.gethostname().encode() not in written.read_bytes()


def wandb_records(path: Path) -> Iterator[Any]:
    """A file of less than 32 KiB: a mark of 7 bytes, then (checksum, length, kind) before each record."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, place = path.read_bytes(), 7
    while place < len(content):
        _, length, _ = struct.unpack("<IHB", content[place : place + 7])
        record = Record()
        record.ParseFromString(content[place + 7 : place + 7 + length])
        yield record
        place += 7 + length


def test_a_library_that_is_not_there_is_told_with_the_command_that_installs_it(
    run: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert main(["export", str(run), "--wandb", str(tmp_path / "out")]) == 3
    said = capsys.readouterr().err
    assert "The package wandb is not installed" in said
    assert "python -m pip install wandb" in said
    assert not (tmp_path / "out").exists()


def test_a_call_that_names_nothing_to_write_or_a_taken_folder_is_a_wrong_call(
    run: Path, tmp_path: Path, capsys: Capture
) -> None:
    assert main(["export", str(run)]) == 2
    assert "Give --tensorboard DIR" in capsys.readouterr().err
    assert main(["export", str(run), "--tensorboard", str(run)]) == 2
    assert "it is taken" in capsys.readouterr().err
    assert main(["export", str(tmp_path), "--tensorboard", str(tmp_path / "out")]) == 2
    assert "it holds runs and is none" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
