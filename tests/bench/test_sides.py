"""What a side of a comparison can be, how its records are matched, and what its clocks say."""

import copy
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from miniverl.bench import aa, publish
from miniverl.bench.cli import main
from miniverl.bench.clocks import steady_mhz
from miniverl.bench.compare import compare, compare_sides
from miniverl.bench.explain import explanation
from miniverl.bench.record import complete
from miniverl.bench.results import environment_id
from miniverl.bench.sides import match, sides
from miniverl.compiler.whole import write_json
from miniverl.engine.problem import Refused, WrongCall

PUBLISHED = Path(__file__).parents[1] / "data" / "published_record_rtx4080.json"
STEP = "steady_state_median_seconds.step"
Record = dict[str, Any]
Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def base(example: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Record:
    """Ten straight launches, 1 % apart."""
    plans = tuple(
        example.Plan(pid=100 + index, slowness=1 + 0.01 * ((7 * index) % 5 - 2) / 2)
        for index in range(10)
    )
    return dict(example.measured(tmp_path_factory.mktemp("base"), plans))


@pytest.fixture(scope="module")
def small(example: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Record:
    return dict(example.measured(tmp_path_factory.mktemp("small")))


def with_driver(record: Record, driver: str) -> Record:
    return complete({**record, "hardware": {**record["hardware"], "driver": driver}})


def half(record: Record, start: int) -> Record:
    """A record with every other straight launch."""
    launches = [x for x in record["launches"] if x["role"] == "straight"][start::2]
    others = [x for x in record["launches"] if x["role"] != "straight"]
    kept = [{**each, "ordinal": index + 1} for index, each in enumerate([*launches, *others])]
    return complete(
        {**record, "launches": kept, "workload": {**record["workload"], "launches": len(launches)}}
    )


def slowed(record: Record, factor: float, mhz: float) -> Record:
    """The record's steps `factor` times as slow, at this clock."""
    changed = copy.deepcopy(record)
    for values, launch in zip(
        changed["measurements"]["launches"], changed["launches"], strict=True
    ):
        for name in values["steady_state_median_seconds"]:
            values["steady_state_median_seconds"][name] *= factor
        for name in values["steady_state_median_throughput"]:
            values["steady_state_median_throughput"][name] /= factor
        series = launch["telemetry"]["series"]
        series["sm_clock_mhz"] = [mhz for _ in series["at_seconds"]]
    return changed


def test_a_folder_is_all_its_records_once(small: Record, tmp_path: Path) -> None:
    write_json(tmp_path / "run" / "record.json", small)
    write_json(tmp_path / "latest.json", small)
    write_json(tmp_path / "run" / "recipe.json", {"schema_version": 1})
    (tmp_path / "run" / "list.json").write_text("[1]")
    [found, again] = sides([str(tmp_path), str(tmp_path / "latest.json")], tmp_path)
    assert found == again == [small]


def test_launches_of_several_records_of_one_side_are_taken_together(base: Record) -> None:
    one, other = half(base, 0), half(base, 1)
    comparison = compare_sides([one, other], [base])
    [step] = [metric for metric in comparison.metrics if metric.name == STEP]
    assert (step.launches_a, step.launches_b) == (10, 10)
    assert step.ratio == pytest.approx(1.0)
    assert comparison.verdict == "same"


def test_a_side_that_is_not_one_stack_is_told_and_confounds(base: Record) -> None:
    mixed = [with_driver(base, "580.1"), with_driver(base, "580.2")]
    comparison = compare_sides(mixed, [with_driver(base, "580.1")])
    assert comparison.notes == ("A: not the same in all its records: driver",)
    assert comparison.cause == "driver"
    [difference] = comparison.treatment_differences
    assert (difference.a, difference.b) == ("580.1 | 580.2", "580.1")


def test_an_environment_is_looked_up_in_the_index(
    small: Record, tmp_path: Path, capsys: Capture
) -> None:
    results, ids = tmp_path / "results", []
    for driver in ("580.1", "590.2"):
        write_json(tmp_path / f"{driver}.json", with_driver(small, driver))
        publish.publish([tmp_path / f"{driver}.json"], results, review=None, as_is=False)
        ids.append(environment_id(with_driver(small, driver)))
    assert main(["compare", *ids, "--results", str(results), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["verdict"] == "descriptive"
    [comparison] = answer["comparisons"]
    assert comparison["cause"] == "driver"
    assert comparison["workload"] == "smollm2-grpo"


def test_an_unknown_environment_and_an_empty_folder_are_wrong_calls(tmp_path: Path) -> None:
    with pytest.raises(WrongCall, match="lists no such environment"):
        sides(["0123456789ab"], tmp_path)
    with pytest.raises(WrongCall, match="no record is in this folder"):
        sides([str(tmp_path)], tmp_path)


def test_an_invalid_record_in_a_folder_is_refused(small: Record, tmp_path: Path) -> None:
    write_json(tmp_path / "record.json", {**small, "reason": "edited"})
    with pytest.raises(Refused):
        sides([str(tmp_path)], tmp_path)


def test_equal_work_is_matched_and_the_rest_is_told(base: Record) -> None:
    original = json.loads(PUBLISHED.read_text("utf-8"))
    matched = match([base, original], [base])
    assert matched.pairs == [([base], [base])]
    assert matched.only_a == ["single_gpu_verl_pg_k1_systems_workload"]
    assert match([base], [original]).pairs == [([base], [original])]


def test_a_slower_clock_and_nothing_else_is_named_as_the_cause(base: Record) -> None:
    """Ten per cent more seconds at a tenth less clock are the same cycles."""
    before = with_driver(base, "580.1")
    a, b = slowed(before, 1.0, 1980.0), slowed(with_driver(base, "590.2"), 1.1, 1800.0)
    comparison = compare(a, b)
    assert (comparison.verdict, comparison.cause) == ("regressed", "clock_shift")
    [step] = [metric for metric in comparison.metrics if metric.name == STEP]
    assert step.is_clock_shift
    assert step.ratio_in_cycles == pytest.approx(1.0)
    assert "in cycles they are the same" in "\n".join(explanation(comparison, [a], [b]))


def test_a_slower_step_at_the_same_clock_stays_the_software_s(base: Record) -> None:
    a, b = slowed(with_driver(base, "1"), 1.0, 1980.0), slowed(with_driver(base, "2"), 1.1, 1980.0)
    comparison = compare(a, b)
    assert (comparison.verdict, comparison.cause) == ("regressed", "driver")
    assert {m.is_clock_shift for m in comparison.metrics if m.verdict == "regressed"} == {False}


def test_without_clocks_nothing_is_said_of_them(base: Record) -> None:
    slower = slowed(base, 1.1, 0.0)
    assert {metric.is_clock_shift for metric in compare(base, slower).metrics} == {None}


def test_the_clock_is_the_mean_over_the_steady_steps(base: Record) -> None:
    launch = copy.deepcopy(base["launches"][0])
    series = launch["telemetry"]["series"]
    first = launch["steps"][1]["started_at_seconds"]
    series["sm_clock_mhz"] = [500.0 if at < first else 1500.0 for at in series["at_seconds"]]
    assert steady_mhz(launch) == 1500.0
    launch["telemetry"]["status"] = "invalid"
    assert steady_mhz(launch) is None


def test_the_explanation_tells_launches_contract_and_cause(base: Record) -> None:
    text = "\n".join(explanation(compare(base, base), [base], [base]))
    assert "10 and 10 launches" in text
    assert "A: resident 1.50 GiB of 6.00 GiB" in text
    assert "Nothing of what is recorded of the software differs." in text


def test_equal_launches_are_called_a_change_in_at_most_one_of_twenty_pairs(base: Record) -> None:
    test = aa.self_test(base)
    assert test.pairs == 200
    assert test.rate <= 0.05
    assert test.beyond_chance / test.pairs <= 0.09  # 5 %, give or take what 200 pairs tell
    assert (test.halves_verdict, test.holds) == ("same", True)
    assert test.spread[STEP] == pytest.approx(0.0074, abs=0.0005)
    assert "The suite holds." in test.lines()[-1]


def test_an_a_a_takes_ten_launches(base: Record) -> None:
    with pytest.raises(Refused, match="10"):
        aa.self_test(half(base, 0))
