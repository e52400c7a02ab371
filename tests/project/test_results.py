"""What stands in results/ is a measured, valid record in its place, or the index of them."""

from pathlib import Path

import pytest

from miniverl.bench import publish, validate

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
