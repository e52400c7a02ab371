"""What stands in results/ is a measured, valid record in its place, or the index of them."""

from pathlib import Path

import pytest

from miniverl.bench import aa, publish, validate
from miniverl.bench.results import num_launches

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results"
RECORDS = sorted((RESULTS / "records").rglob("*.json"))


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: str(path.relative_to(RESULTS)))
def test_a_published_record_is_measured(path: Path) -> None:
    assert validate.load(path)["status"] == "measured"


def test_every_record_is_valid_in_its_place_and_listed() -> None:
    assert publish.check(RESULTS) == []


def test_there_are_published_records_and_nothing_else_but_the_index() -> None:
    assert RECORDS
    assert {*RESULTS.rglob("*.json")} - {*RECORDS} == {RESULTS / "index.json"}


def test_the_suite_against_itself_holds_as_published() -> None:
    loaded = [validate.load(path) for path in RECORDS if "smollm2-grpo-ci" in path.parts]
    [record] = [each for each in loaded if num_launches(each) >= aa.LAUNCHES]
    test = aa.self_test(record)
    assert test.holds
    shown = (ROOT / "docs" / "compare.md").read_text("utf-8")
    assert all(line.partition("inconclusive")[0] in shown for line in test.lines())
