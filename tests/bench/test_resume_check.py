"""The comparison of two run folders, on folders written by hand."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from miniverl.bench import resume
from miniverl.engine import folder


def safetensors(tensors: Mapping[str, bytes], shape: tuple[int, ...] = (10,)) -> bytes:
    header, start = {}, 0
    for name, data in tensors.items():
        header[name] = {
            "dtype": "U8",
            "shape": shape,
            "data_offsets": [start, start + len(data)],
        }
        start += len(data)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + b"".join(tensors.values())


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Path, Path]:
    """Two folders with equal bytes."""
    straight = tmp_path / "straight"
    checkpoint = straight / "checkpoints" / "step-000008"
    checkpoint.mkdir(parents=True)
    (straight / "adapter").mkdir()
    (straight / "trajectories.jsonl").write_text('{"step":1}\n{"step":2}\n')
    (straight / "metrics.jsonl").write_text('{"loss":0.5}\n')
    (straight / "journal.jsonl").write_text('{"pid":1}\n')
    weights = safetensors({"first": b"\x01" * 10, "second": b"\x02" * 10})
    for name in ("adapter.safetensors", "optimizer.safetensors"):
        (checkpoint / name).write_bytes(weights)
    (checkpoint / "state.json").write_text('{\n "step": 8\n}\n')
    (straight / "adapter" / "adapter_model.safetensors").write_bytes(weights)
    resumed = tmp_path / "resumed"
    shutil.copytree(straight, resumed)
    return straight, resumed


def test_equal_bytes_match(runs: tuple[Path, Path]) -> None:
    check = resume.compare_runs(*runs)

    assert check.status == "exact_match"
    assert check.first_difference is None
    assert check.differing == ()


def test_logs_last_checkpoint_and_adapter_are_compared(runs: tuple[Path, Path]) -> None:
    assert resume.compared_files(*runs) == [
        "trajectories.jsonl",
        "metrics.jsonl",
        "checkpoints/step-000008/adapter.safetensors",
        "checkpoints/step-000008/optimizer.safetensors",
        "checkpoints/step-000008/state.json",
        "adapter/adapter_model.safetensors",
    ]


def test_a_whole_model_is_compared_where_one_was_exported(runs: tuple[Path, Path]) -> None:
    for run, content in zip(runs, (b"one", b"two"), strict=True):
        (run / "model").mkdir()
        (run / "model" / "model.safetensors").write_bytes(content)

    assert resume.compared_files(*runs)[-1] == "model/model.safetensors"


def test_what_is_compared_is_what_the_engine_leaves() -> None:
    assert (resume.LOGS, resume.EXPORTS) == (folder.LOGS, folder.EXPORTS)


def test_the_journal_may_differ_since_it_tells_times(runs: tuple[Path, Path]) -> None:
    (runs[1] / "journal.jsonl").write_text('{"pid":2}\n')

    assert resume.compare_runs(*runs).status == "exact_match"


def test_a_differing_line_is_named(runs: tuple[Path, Path]) -> None:
    (runs[1] / "trajectories.jsonl").write_text('{"step":1}\n{"step":3}\n')
    check = resume.compare_runs(*runs)

    assert check.status == "mismatch"
    assert str(check.first_difference) == "trajectories.jsonl, byte 19 (line 2)"


def test_a_differing_tensor_is_named(runs: tuple[Path, Path]) -> None:
    path = runs[1] / "checkpoints" / "step-000008" / "optimizer.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    check = resume.compare_runs(*runs)

    assert check.differing == ("checkpoints/step-000008/optimizer.safetensors",)
    assert check.first_difference is not None
    assert check.first_difference.place == "tensor second[9]"


def test_a_differing_element_is_named_by_its_row_and_column(runs: tuple[Path, Path]) -> None:
    for run, last in zip(runs, (b"\x00", b"\x01"), strict=True):
        content = safetensors({"wide": bytes(7 * 4 - 1) + last}, (7, 2))  # elements of two bytes
        (run / "checkpoints" / "step-000008" / "adapter.safetensors").write_bytes(content)

    difference = resume.compare_runs(*runs).first_difference
    assert difference is not None
    assert difference.place == "tensor wide[6, 1]"


def test_every_checkpoint_that_is_kept_is_compared(runs: tuple[Path, Path]) -> None:
    for run, content in zip(runs, ("{}", "[]"), strict=True):
        (run / "checkpoints" / "step-000004").mkdir()
        (run / "checkpoints" / "step-000004" / "state.json").write_text(content)

    assert resume.compare_runs(*runs).differing == ("checkpoints/step-000004/state.json",)


def test_a_log_that_ends_early_differs_where_it_ends(runs: tuple[Path, Path]) -> None:
    (runs[1] / "metrics.jsonl").write_text("")
    check = resume.compare_runs(*runs)

    assert str(check.first_difference) == "metrics.jsonl, byte 0 (line 1)"


def test_the_difference_nearest_to_its_cause_comes_first(runs: tuple[Path, Path]) -> None:
    (runs[1] / "adapter" / "adapter_model.safetensors").write_bytes(b"")
    (runs[1] / "trajectories.jsonl").write_text("")
    check = resume.compare_runs(*runs)

    assert check.differing == ("trajectories.jsonl", "adapter/adapter_model.safetensors")
    assert check.first_difference is not None
    assert check.first_difference.file == "trajectories.jsonl"


def test_a_run_that_stopped_at_another_step_lacks_the_other_s_checkpoint(
    runs: tuple[Path, Path],
) -> None:
    checkpoints = runs[1] / "checkpoints"
    (checkpoints / "step-000008").rename(checkpoints / "step-000007")
    check = resume.compare_runs(*runs)

    assert check.status == "mismatch"
    assert check.first_difference is not None
    assert check.first_difference.file.startswith("checkpoints/step-000007/")
    assert check.first_difference.place == "the straight run has no such file"
