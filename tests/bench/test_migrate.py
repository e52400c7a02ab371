"""From version 1 to version 2: nothing lost, nothing invented, and the same record for whoever reads it."""

import copy
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from miniverl.bench import record as records
from miniverl.bench.cli import main
from miniverl.bench.compare import compare
from miniverl.bench.migrate import migrated
from miniverl.bench.show import record_view
from miniverl.bench.validate import load, validate
from miniverl.bench.version1 import version1
from miniverl.compiler.whole import json_text, write_json

DATA = Path(__file__).parents[1] / "data"
PUBLISHED = DATA / "published_record_rtx4080.json"
GOLDEN = DATA / "golden_records"
Record = dict[str, Any]
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def record() -> Record:
    return migrated(PUBLISHED.read_text("utf-8"))


def numbers(value: Any) -> list[float]:
    if isinstance(value, dict):
        return [each for part in value.values() for each in numbers(part)]
    if isinstance(value, list):
        return [each for part in value for each in numbers(part)]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return [value] if is_number else []


def test_the_published_record_migrates_to_a_valid_one_of_version_2(record: Record) -> None:
    assert validate(record) == []
    assert record["schema_version"] == 2


def test_the_original_bytes_and_their_digest_are_kept(record: Record) -> None:
    content = PUBLISHED.read_bytes()
    kept = record["migrated_from"]
    assert kept["sha256"] == hashlib.sha256(content).hexdigest()
    assert kept["text"].encode() == content
    assert version1(record) == json.loads(content)


def test_no_number_is_invented(record: Record) -> None:
    said = set(numbers(json.loads(PUBLISHED.read_text("utf-8"))))
    del record["migrated_from"]
    # Versions of schemas; one launch; no launches with samples; whole GiB in the key.
    assert set(numbers(record)) - said <= {1, 2, 16}


def test_a_migrated_record_is_the_golden_one(record: Record) -> None:
    assert json_text(record) == (GOLDEN / "record-v1-migrated.json").read_text("utf-8")


@pytest.mark.parametrize(
    "path", [PUBLISHED, *sorted(GOLDEN.glob("*.json"))], ids=lambda path: path.name
)
def test_a_record_of_every_version_that_was_ever_written_stays_valid(path: Path) -> None:
    golden = load(path)
    assert compare(golden, golden).verdict in ("descriptive", "not_comparable")
    with (console := Console(width=100)).capture() as captured:
        console.print(record_view(golden))
    assert golden["status"].replace("_", " ") in captured.get()


def test_it_compares_with_the_record_it_was_made_from_as_one_launch(record: Record) -> None:
    comparison = compare(records.load_strict(PUBLISHED), record)
    assert (comparison.verdict, comparison.key_differences) == ("descriptive", ())
    assert {metric.launches_b for metric in comparison.metrics} == {1}
    assert {metric.ratio for metric in comparison.metrics} == {1.0}


def _rate(record: Record) -> None:
    record["measurements"]["steady_state_median_throughput"]["rollout_tokens_per_second"] = 14.0


def _extra(record: Record) -> None:
    record["environment"]["python"] = "3.11.0"


def _original(record: Record) -> None:
    text = record["migrated_from"]["text"].replace("13.4693", "13.9693")
    record["migrated_from"] |= {"text": text, "sha256": hashlib.sha256(text.encode()).hexdigest()}


def _digest(record: Record) -> None:
    record["migrated_from"]["sha256"] = "0" * 64


def _no_record(record: Record) -> None:
    record["migrated_from"] |= {"text": "{}", "sha256": hashlib.sha256(b"{}").hexdigest()}


@pytest.mark.parametrize(
    ("edit", "field"),
    [
        (_rate, "/measurements/steady_state_median_throughput/rollout_tokens_per_second"),
        (_extra, "/environment/python"),
        (_original, "/migrated_from/text"),
        (_digest, "/migrated_from/sha256"),
        (_no_record, "/migrated_from/text"),
    ],
)
def test_a_forged_migration_is_named_even_with_fitting_seals(
    record: Record, edit: Callable[[Record], None], field: str
) -> None:
    forged = copy.deepcopy(record)
    edit(forged)
    assert field in [each.field for each in validate(records.seal(forged))]


def test_a_measured_record_must_say_what_only_a_migrated_one_may_leave_out(
    record: Record,
) -> None:
    del record["migrated_from"]
    missing = {each.field for each in validate(record) if each.code == "missing_field"}
    assert {"/class", "/workload/seed", "/recipe/compiled", "/hardware/cpu_model"} <= missing


def test_the_command_writes_beside_the_record_and_refuses_what_is_migrated(
    tmp_path: Path, capsys: Capture
) -> None:
    (tmp_path / "old.json").write_bytes(PUBLISHED.read_bytes())
    assert main(["migrate", str(tmp_path / "old.json")]) == 0
    assert main(["check", str(tmp_path / "old.v2.json")]) == 0
    assert main(["migrate", str(tmp_path / "old.v2.json")]) == 1
    assert "there is nothing to migrate" in capsys.readouterr().err


def test_an_invalid_record_is_not_migrated(tmp_path: Path) -> None:
    text = PUBLISHED.read_text("utf-8").replace("13.4693", "13.9693")
    (tmp_path / "old.json").write_text(text)
    assert main(["migrate", str(tmp_path / "old.json"), "-o", str(tmp_path / "new.json")]) == 1
    assert not (tmp_path / "new.json").exists()


def test_a_page_shows_it_as_one_launch(record: Record, tmp_path: Path) -> None:
    write_json(tmp_path / "record.json", record)
    assert main(["site", str(tmp_path / "record.json"), "--out", str(tmp_path / "site")]) == 0
    page = (tmp_path / "site" / "index.html").read_text("utf-8")
    assert "NVIDIA GeForce RTX 4080" in page
    assert "Descriptive only" in page
