"""What stands in results/ are records, and each of them is valid."""

from pathlib import Path

import pytest

from miniverl.bench import validate

ROOT = Path(__file__).resolve().parents[2]
RECORDS = sorted((ROOT / "results").rglob("*.json"))


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_published_record_is_valid_and_measured(path: Path) -> None:
    assert validate.load(path)["status"] == "measured"


def test_there_are_published_records() -> None:
    assert RECORDS
