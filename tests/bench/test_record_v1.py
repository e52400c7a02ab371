"""The published record of the earlier system: valid as it stands, and no other numbers are."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from miniverl.bench.record import load_strict
from miniverl.bench.validate import load, validate
from miniverl.engine.problem import Refused

PUBLISHED = Path(__file__).parents[1] / "data" / "published_record_rtx4080.json"
RATES = "/measurements/steady_state_median_throughput/"
Record = dict[str, Any]


@pytest.fixture
def record() -> Record:
    return load_strict(PUBLISHED)


def fields(record: Record) -> set[str]:
    return {problem.field for problem in validate(record)}


def test_the_published_record_is_valid() -> None:
    assert load(PUBLISHED)["schema_version"] == 1


def test_one_changed_digit_is_named(tmp_path: Path) -> None:
    text = PUBLISHED.read_text("utf-8")
    assert text.count("13.4693") == 1
    (tmp_path / "record.json").write_text(text.replace("13.4693", "13.9693"))
    with pytest.raises(Refused) as refused:
        load(tmp_path / "record.json")
    [problem] = refused.value.problems
    assert problem.field == RATES + "rollout_tokens_per_second"
    assert problem.value == 13.9693
    assert "256.0015" in problem.reason


def test_the_last_published_digit_of_a_rate_is_rounding(record: Record) -> None:
    rates = record["measurements"]["steady_state_median_throughput"]
    rates["teacher_scored_positions_per_second"] += 0.0001
    assert fields(record) == set()


def test_a_key_that_stands_twice_is_refused(tmp_path: Path) -> None:
    text = PUBLISHED.read_text("utf-8").replace('"kind"', '"kind": 1, "kind"', 1)
    (tmp_path / "record.json").write_text(text)
    with pytest.raises(Refused, match="twice the same key: kind"):
        load(tmp_path / "record.json")


def test_nan_is_refused(tmp_path: Path) -> None:
    text = PUBLISHED.read_text("utf-8").replace("8.1302", "NaN")
    (tmp_path / "record.json").write_text(text)
    with pytest.raises(Refused, match="NaN is no number"):
        load(tmp_path / "record.json")


def _set(value: Any, *path: str) -> Callable[[Record], None]:
    def edit(record: Record) -> None:
        place = record
        for name in path[:-1]:
            place = place[name]
        place[path[-1]] = value

    return edit


@pytest.mark.parametrize(
    ("edit", "field"),
    [
        (
            _set(1.3, "measurements", "steady_state_median_seconds", "actor_update"),
            RATES + "update_positions_per_second",
        ),
        (_set(32, "recipe", "response_limit"), RATES + "rollout_tokens_per_second"),
        (
            _set(28.0, "measurements", "time_to_first_teacher_targets_seconds"),
            "/measurements/time_to_first_teacher_targets_seconds",
        ),
        (_set(9, "recipe", "optimizer_updates"), "/recipe/prompts_consumed"),
        (_set(28, "resume", "task_cursor"), "/resume/task_cursor"),
        (_set(2.0, "measurements", "peak_reserved_gib"), "/measurements/peak_reserved_gib"),
        (
            _set(3.0, "resource_contract", "peak_reserved_limit_gib"),
            "/resource_contract/peak_reserved_within_limit",
        ),
        (_set(0.05, "resource_contract", "gpu_hour_limit"), "/resource_contract/gpu_hour_limit"),
        (
            _set(65, "measurements", "distinct_prompts_consumed"),
            "/measurements/distinct_prompts_consumed",
        ),
        (_set(100, "measurements", "checkpoint_bytes"), "/measurements/checkpoint_bytes"),
        (_set(False, "resume", "trajectories_byte_identical"), "/resume/status"),
        (_set("v0.9.0", "verl", "tag"), "/verl/tag"),
        (_set(2, "hardware", "gpu_count"), "/hardware/gpu_count"),
        (_set("2026-08-14", "measured_at"), "/measured_at"),
        (_set("2026-13-14T06:51:51Z", "measured_at"), "/measured_at"),
        (_set("g" * 64, "workload_driver_sha256"), "/workload_driver_sha256"),
        (_set("${COMMIT}", "profile"), "/profile"),
    ],
)
def test_what_does_not_agree_is_named(
    record: Record, edit: Callable[[Record], None], field: str
) -> None:
    edit(record)
    assert field in fields(record)


def test_every_field_is_required_and_no_other_is_known(record: Record) -> None:
    for name in record:
        without = copy.deepcopy(record)
        del without[name]
        assert fields(without) == {f"/{name}"}
    record["measurements"]["speed"] = 1
    assert fields(record) == {"/measurements/speed"}
