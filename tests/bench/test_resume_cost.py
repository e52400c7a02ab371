"""What resuming costs is read off a record: checkpoints against steps, and what a resumed run loads."""

import copy
from types import ModuleType
from typing import Any

import pytest

from miniverl.bench import resume_cost
from miniverl.engine.problem import WrongCall

Record = dict[str, Any]


@pytest.fixture(scope="module")
def written(example: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Record:
    record = copy.deepcopy(dict(example.failed(tmp_path_factory.mktemp("failed"))))
    straight = record["launches"][0]
    steps = [_step(4.0, 0.1), _step(6.0), _step(10.0, 0.3), _step(10.0)]
    straight |= {"steps": steps, "checkpoints": [{"bytes": 10}, {"bytes": 30}, {"bytes": 20}]}
    record["launches"].append({**straight, "role": "resumed", "outside_steps": [_restored(0.4)]})
    return record


@pytest.fixture
def record(written: Record) -> Record:
    return copy.deepcopy(written)


def _step(seconds: float, checkpoint: float | None = None) -> dict[str, Any]:
    phases = {} if checkpoint is None else {"checkpoint": {"seconds": checkpoint}}
    return {"seconds": seconds, "phases": phases, "is_finished": True}


def _restored(seconds: float) -> dict[str, Any]:
    return {"phase": "restore", "seconds": seconds, "step": 2}


def test_the_share_is_of_all_steps_whether_they_save_or_not(record: Record) -> None:
    found = resume_cost.cost(record)
    assert found.share == pytest.approx((0.1 + 0.3) / (4 + 6 + 10 + 10))
    assert (found.checkpoint_seconds, found.step_seconds) == (0.2, 8.0)
    assert (found.checkpoint_bytes, found.restore_seconds) == (20, 0.4)
    assert found.is_within


@pytest.mark.parametrize(
    ("checkpoint", "restore"), [(0.7, 0.4), (0.1, 1.0)], ids=["share", "restore"]
)
def test_more_than_either_limit_is_not_within(
    record: Record, checkpoint: float, restore: float
) -> None:
    record["launches"][0]["steps"][0] = _step(4.0, checkpoint)
    record["launches"][1]["outside_steps"] = [_restored(restore)]
    assert not resume_cost.cost(record).is_within


def test_the_table_names_the_machine_and_the_versions(record: Record) -> None:
    told = resume_cost.table([record])
    assert "| 0.200 s | 8.00 s | 1.3% | 0.400 s |" in told
    assert f"torch {record['environment']['packages']['torch']}" in told.splitlines()[-1]


def test_a_record_of_no_resumed_run_is_a_wrong_call(record: Record) -> None:
    record["launches"].pop()
    with pytest.raises(WrongCall, match="no restored run"):
        resume_cost.table([record])
