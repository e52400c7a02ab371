"""What befell a launch is told in the record, as a finding that names the launch."""

from types import ModuleType
from typing import Any

import pytest

from miniverl.bench import facts, record
from miniverl.bench.validate import validate


@pytest.fixture
def launch(example: ModuleType, tmp_path: Any) -> dict[str, Any]:
    """One that nothing befell, on a card that was asked three times."""
    taken: dict[str, Any] = example.measured(tmp_path / "run")["launches"][0]
    series = {
        "at_seconds": [1.0, 2.0, 3.0],
        "power_watts": [100.0, 100.0, 100.0],
        "energy_joules": [1000.0, 1100.0, 1200.0],
        "clock_event_reasons": [0, 0, 0],
        "load_average": [0.1, 0.1, 0.1],
    }
    fields = {name: "measured" for name in series if name != "at_seconds"}
    taken["telemetry"] |= {"status": "valid", "reasons": [], "series": series, "fields": fields}
    taken["telemetry"] |= {"every_seconds": 1.0, "samples_taken": 3}
    return taken


def _codes(launch: dict[str, Any]) -> list[str]:
    return [code for code, message in facts._telemetry_findings(launch)]


def test_a_quiet_launch_has_no_finding(launch: dict[str, Any]) -> None:
    assert _codes(launch) == []


@pytest.mark.parametrize(
    "reason", ["gap", "device_lost", "foreign_process", "throttled", "sampler_died"]
)
def test_why_telemetry_is_doubted_is_a_finding(launch: dict[str, Any], reason: str) -> None:
    launch["telemetry"] |= {"status": "invalid", "reasons": [reason]}
    ((code, message),) = facts._telemetry_findings(launch)

    assert code == reason
    assert message.endswith(f"(launch {launch['ordinal']})")


@pytest.mark.parametrize(
    ("name", "values", "code"),
    [
        ("clock_event_reasons", [0, 4, 0], "power_capped"),  # NVML's SwPowerCap
        ("load_average", [900.0, 900.0, 900.0], "shared_cores"),
        ("energy_joules", [1000.0, 1050.0, 1100.0], "energy_mismatch"),  # half of 2 s at 100 W
    ],
)
def test_what_the_samples_show_is_a_finding(
    launch: dict[str, Any], name: str, values: list[float], code: str
) -> None:
    launch["telemetry"]["series"][name] = values

    assert _codes(launch) == [code]


def test_a_launch_of_which_nothing_was_sampled_says_so(launch: dict[str, Any]) -> None:
    launch["telemetry"] |= {"status": "not_measured", "series": {"at_seconds": []}, "fields": {}}

    assert _codes(launch) == ["no_telemetry"]


@pytest.mark.parametrize(
    ("what", "then", "now", "message"),
    [
        ("rows", 64, 32, "rollout decoded 32 rows at once in place of 64; bytes stay"),
        ("recomputes", 0, 1, "rollout computed activations again; bytes stay"),
        ("tokens", 512, 256, "rollout computed bins of 256 tokens in place of 512; a launch that"),
    ],
)
def test_what_went_on_with_less_is_a_finding(
    launch: dict[str, Any], what: str, then: int, now: int, message: str
) -> None:
    rung = {"step": 3, "phase": "rollout", "what": what, "then": then, "now": now}
    launch["downshifts"] = [{**rung, "at_seconds": 9.0}]
    ((code, told),) = facts._downshift_findings(launch)

    assert code == "less_at_once"
    assert told.startswith(f"Memory did not suffice: from step 3 on {message}")
    assert told.endswith(f"(launch {launch['ordinal']})")


def test_a_record_with_such_a_launch_is_valid(example: ModuleType, tmp_path: Any) -> None:
    kept = example.measured(tmp_path)
    rung = {"step": 3, "phase": "update", "what": "tokens", "then": 512, "now": 256}
    kept["launches"][0]["downshifts"] = [{**rung, "at_seconds": 9.0}]
    assert validate(record.seal(kept)) == []
