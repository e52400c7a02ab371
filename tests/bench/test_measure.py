"""From a journal to raw samples, and from raw samples to the numbers that follow from them."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from miniverl.bench import measure
from miniverl.bench.launch_values import launch_values
from miniverl.engine.events import SamplerLoaded, WeightsQuantised, to_dict

MIB = 1 << 20


@pytest.fixture
def straight(example: ModuleType, tmp_path: Path) -> dict[str, Any]:
    return dict(example.launch(tmp_path, example.Plan(), 1))


def _launch(folder: Path) -> dict[str, Any]:
    """Of a process that broke off."""
    return measure.launch(
        folder,
        role="straight",
        ordinal=1,
        pid=1,
        created_monotonic=10.0,
        interpreter_monotonic=None,
        ended_monotonic=10.5,
        exit_code=-11,
        failure=("segmentation_fault", "SIGSEGV"),
        warmup_steps=1,
        peak_bytes={},
    )


def test_times_count_from_the_creation_of_the_process(straight: dict[str, Any]) -> None:
    assert straight["interpreter_at_seconds"] == 0.125
    assert straight["imports_done_at_seconds"] == 4.0
    assert straight["started"]["at_seconds"] == 4.25
    assert straight["model_loads"][0]["at_seconds"] == 5.75
    # The first step is half as slow again: 6 seconds of rollout instead of 4.
    first = straight["steps"][0]
    assert first["started_at_seconds"] == 5.875
    assert first["phases"]["rollout"] == {"seconds": 6.0, "tokens": 320, "at_seconds": 11.875}


def test_a_step_keeps_its_phases_metrics_and_work(straight: dict[str, Any]) -> None:
    step = straight["steps"][3]
    assert step["step"] == 4
    assert step["seconds"] == pytest.approx(4.0 + 0.01 + 1.6 + 1.6 + 0.001 + 5.0)
    assert step["finished_at_seconds"] - step["started_at_seconds"] == pytest.approx(12.211)
    assert step["phases"]["checkpoint"]["at_seconds"] > step["finished_at_seconds"]
    assert step["metrics"]["reward_mean"] == 0.25
    assert step["memory"] == {"peak_rss_bytes": 1536 * MIB}
    assert step["work"] == {
        "prompt_ids": [12, 13, 14, 15],
        "responses": 16,
        "response_tokens": 320,
        "finished_responses": 15,
        "longest_response": 20,
        "prompt_tokens": 4 * 10,
        "prompt_attended_tokens": 4 * 55,  # 1 + 2 + ... + 10
        "response_attended_tokens": 16 * (465 - 55),  # 11 + 12 + ... + 30
    }
    assert [each["is_warmup"] for each in straight["steps"]] == [True] + [False] * 7


def test_one_journal_of_two_processes_gives_each_its_own_lines(
    example: ModuleType, tmp_path: Path
) -> None:
    killed = example.Plan(role="interrupted", pid=1, to_step=4, exit_code=-9, dies_in_rollout=True)
    resumed = example.Plan(role="resumed", pid=2, from_step=5, created=2000.0)
    first = example.launch(tmp_path, killed, 1)
    second = example.launch(tmp_path, resumed, 2)
    assert [step["step"] for step in first["steps"]] == [1, 2, 3, 4, 5]
    assert [step["step"] for step in second["steps"]] == [5, 6, 7, 8]
    assert second["started"]["resumed_step"] == 4
    assert second["steps"][0]["started_at_seconds"] < 10


def test_a_killed_launch_has_an_unfinished_step_and_a_torn_line(
    example: ModuleType, tmp_path: Path
) -> None:
    killed = example.Plan(role="interrupted", to_step=2, exit_code=-9, dies_in_rollout=True)
    launch = example.launch(tmp_path, killed, 1)
    assert (tmp_path / "journal.jsonl").read_text().endswith('"phase_fin')
    assert launch["steps"][-1]["is_finished"] is False
    assert launch["steps"][-1]["seconds"] == {"status": "not_measured"}
    assert launch["outputs"] is None
    assert launch["is_finished"] is False


def test_a_process_id_that_was_used_before_brings_no_old_events(
    example: ModuleType, tmp_path: Path
) -> None:
    example.launch(tmp_path, example.Plan(pid=7, created=1000.0), 1)
    again = example.launch(tmp_path, example.Plan(pid=7, created=5000.0), 2)
    assert len(again["steps"]) == 8


def test_an_earlier_boot_brings_no_old_events_either(example: ModuleType, tmp_path: Path) -> None:
    """Its clock had gone further, and gave the same process id."""
    example.launch(tmp_path, example.Plan(pid=7, created=5000.0), 1)
    again = example.launch(tmp_path, example.Plan(pid=7, created=1000.0), 2)
    assert len(again["steps"]) == 8
    assert again["steps"][0]["started_at_seconds"] < 100


def test_quantised_weights_and_what_is_sampled_over_are_told_where_there_are_any(
    straight: dict[str, Any], tmp_path: Path
) -> None:
    told = (
        WeightsQuantised(role="policy", bytes=516, is_from_cache=True),
        SamplerLoaded(weights="merged", dtype="bfloat16", bytes=2000),
    )
    lines = [
        json.dumps({**to_dict(event), "pid": 1, "monotonic_seconds": 12.0 + number})
        for number, event in enumerate(told)
    ]
    folder = tmp_path / "quantised"
    folder.mkdir()
    (folder / "journal.jsonl").write_text("".join(f"{line}\n" for line in lines))
    launch = _launch(folder)
    assert launch["quantised_weights"] == [
        {"role": "policy", "bytes": 516, "is_from_cache": True, "at_seconds": 2.0}
    ]
    assert launch["sampler"] == {
        "weights": "merged",
        "dtype": "bfloat16",
        "bytes": 2000,
        "at_seconds": 3.0,
    }
    assert not {"quantised_weights", "sampler"} & straight.keys()


def test_an_empty_run_folder_is_a_launch_that_did_nothing(tmp_path: Path) -> None:
    launch = _launch(tmp_path)
    assert launch["started"] is None
    assert launch["steps"] == []
    assert launch["memory"]["peak_rss_bytes"] == {"status": "not_measured"}
    values = launch_values(launch, 4)
    assert values["cold_startup_seconds"] == {"status": "not_measured"}
    assert values["steady_state_median_seconds"] == {}
    assert values["seconds"] == 0.5


def test_a_phase_that_ends_twice_in_a_step_adds_up(tmp_path: Path) -> None:
    lines: list[dict[str, Any]] = [
        {"event": "step_started", "step": 1},
        {"event": "phase_finished", "step": 1, "phase": "update", "seconds": 0.5, "tokens": 10},
        {"event": "phase_finished", "step": 1, "phase": "update", "seconds": 0.25, "tokens": 5},
        {"event": "phase_finished", "step": 0, "phase": "validation", "seconds": 2.0, "tokens": 9},
        {
            "event": "step_finished",
            "step": 1,
            "seconds": 0.75,
            "metrics": {"loss": float("nan"), "reward_mean": 1.0},
            "memory": {"peak_rss": 5},
        },
    ]
    with (tmp_path / "journal.jsonl").open("w") as journal:
        for second, line in enumerate(lines):
            journal.write(json.dumps(line | {"pid": 1, "monotonic_seconds": 10.0 + second}) + "\n")
    launch = measure.launch(
        tmp_path,
        role="straight",
        ordinal=1,
        pid=1,
        created_monotonic=10.0,
        interpreter_monotonic=None,
        ended_monotonic=20.0,
        exit_code=0,
        failure=None,
        warmup_steps=0,
        peak_bytes={"rss": 7},
    )
    step = launch["steps"][0]
    assert step["phases"]["update"] == {"seconds": 0.75, "tokens": 15, "at_seconds": 2.0}
    assert step["metrics"] == {"loss": {"status": "not_finite"}, "reward_mean": 1.0}
    assert launch["outside_steps"] == [
        {"step": 0, "phase": "validation", "seconds": 2.0, "tokens": 9, "at_seconds": 3.0}
    ]
    assert launch["memory"]["peak_rss_bytes"] == 7


def test_on_a_cpu_device_memory_is_not_supported_and_never_zero(straight: dict[str, Any]) -> None:
    memory = straight["memory"]
    assert memory["peak_rss_bytes"] == 1536 * MIB
    for kind in ("allocated", "reserved", "process", "device"):
        assert memory[f"peak_{kind}_bytes"] == {"status": "not_supported"}


def test_on_a_gpu_the_allocators_peaks_are_kept(example: ModuleType, tmp_path: Path) -> None:
    memory = {"peak_rss": 3 * MIB, "peak_allocated": 10 * MIB, "peak_reserved": 12 * MIB}
    launch = example.launch(tmp_path, example.Plan(device="cuda", memory=memory), 1)
    assert launch["memory"]["peak_allocated_bytes"] == 10 * MIB
    assert launch["memory"]["peak_reserved_bytes"] == 12 * MIB
    assert launch["memory"]["peak_device_bytes"] == {"status": "not_measured"}


def test_samples_are_thinned_evenly_and_keep_the_highest(tmp_path: Path) -> None:
    samples = [
        {"monotonic_seconds": 10.0 + index / 10, "rss_bytes": 100 + (index == 4321)}
        for index in range(5000)
    ]
    samples[17] = {"monotonic_seconds": 11.7}  # one reading failed
    launch = measure.launch(
        tmp_path,
        role="straight",
        ordinal=1,
        pid=1,
        created_monotonic=10.0,
        interpreter_monotonic=None,
        ended_monotonic=600.0,
        exit_code=0,
        failure=None,
        warmup_steps=0,
        peak_bytes={},
        samples=samples,
    )
    series = launch["telemetry"]["series"]
    assert len(series["at_seconds"]) == len(series["rss_bytes"]) == measure.MAX_SAMPLES
    assert max(series["rss_bytes"]) == 101
    assert series["at_seconds"] == sorted(series["at_seconds"])
    assert launch["telemetry"]["status"] == "valid"


def test_artifacts_are_named_by_bytes_and_digest(example: ModuleType, tmp_path: Path) -> None:
    example.launch(tmp_path / "straight", example.Plan(), 1)
    artifacts = measure.artifacts(tmp_path / "straight", tmp_path)
    name = "checkpoints/step-000008/state.json"
    assert artifacts["files"][name] == {
        "bytes": len(name),
        "sha256": hashlib.sha256(name.encode()).hexdigest(),
    }
    assert "journal.jsonl" not in artifacts["files"]
    sizes = [path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()]
    assert artifacts["total_workload_bytes"] == sum(sizes)


def test_the_steady_state_leaves_the_warmup_out(straight: dict[str, Any]) -> None:
    values = launch_values(straight, 4)
    assert values["steady_steps"] == 7
    assert values["steady_state_median_seconds"]["rollout"] == 4.0
    assert values["steady_state_median_seconds"]["actor_update"] == 5.0
    assert values["steady_state_median_seconds"]["checkpoint"] == 0.25
    assert values["steady_state_median_throughput"] == {
        "rollout_tokens_per_second": 80.0,
        "old_scored_positions_per_second": 200.0,
        "reference_scored_positions_per_second": 200.0,
        "update_positions_per_second": 64.0,
        "response_tokens_per_second": round(320 / 12.211, 4),
    }
    assert values["steady_state_drift"] == 1.0


def test_the_parts_of_the_cold_start_add_up(straight: dict[str, Any]) -> None:
    values = launch_values(straight, 4)
    parts = values["cold_start"]
    assert parts["imports_seconds"] == 3.875
    assert parts["model_load_seconds"] == 1.5
    assert parts["first_rollout_seconds"] == 6.0
    assert sum(parts.values()) == pytest.approx(values["time_to_first_update_seconds"])
    assert values["cold_startup_seconds"] == 5.75


def test_an_unknown_part_is_counted_with_the_next(straight: dict[str, Any]) -> None:
    unknown = straight | {"interpreter_at_seconds": {"status": "not_measured"}}
    parts = launch_values(unknown, 4)["cold_start"]
    assert parts["interpreter_seconds"] == {"status": "not_measured"}
    assert parts["imports_seconds"] == 4.0


def test_memory_is_told_in_gib(straight: dict[str, Any]) -> None:
    values = launch_values(straight, 4)
    assert values["peak_rss_gib"] == 1.5
    assert values["peak_allocated_gib"] == {"status": "not_supported"}


def test_a_record_gives_the_median_over_its_straight_launches(
    example: ModuleType, tmp_path: Path
) -> None:
    plans = tuple(
        replace(example.Plan(), pid=pid, slowness=slowness)
        for pid, slowness in enumerate((1.0, 1.25, 1.5), start=10)
    )
    record = example.measured(tmp_path, plans)
    measurements = record["measurements"]
    assert measurements["steady_state_median_seconds"]["rollout"] == 5.0
    rollouts = [v["steady_state_median_seconds"]["rollout"] for v in measurements["launches"]]
    assert rollouts == [4.0, 5.0, 6.0, 4.0, 4.0]
    assert measurements["prompts_consumed"] == 32
    assert measurements["distinct_prompts_consumed"] == 32


def test_learning_is_the_last_third_against_the_first(example: ModuleType, tmp_path: Path) -> None:
    reward = example.measured(tmp_path)["measurements"]["training_metrics"]["reward_mean"]
    # Rewards rise by 1/32 a step: thirds of two steps, six steps apart.
    assert reward["change"] == pytest.approx(6 / 32)
    assert reward["first_third_mean"] == pytest.approx(0.125 + 1.5 / 32)
    # Each third has the sample variance (1/32)^2 / 2.
    assert reward["change_standard_error"] == pytest.approx((1 / 32) * (0.5 / 2 + 0.5 / 2) ** 0.5)
