"""The table of what was run: from records, with its exit code."""

from pathlib import Path
from types import ModuleType

import pytest

from miniverl.bench import corpus_runs
from miniverl.compiler.whole import write_json


def test_the_table_says_what_trained_and_whether_it_resumed_exactly(
    example: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = example.measured(tmp_path / "measured")
    path = tmp_path / "record.json"
    write_json(path, record)

    with pytest.raises(SystemExit) as ended:
        corpus_runs.main([str(path), "--table"], standalone_mode=False)

    assert ended.value.code == 0
    _, _, row = capsys.readouterr().out.splitlines()
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    recipe = record["recipe"]["compiled"]
    assert cells[:3] == [
        record["workload"]["name"],
        recipe["advantage"]["estimator"],
        recipe["policy_loss"]["name"],
    ]
    assert cells[5:] == [
        "exact match",
        f"`{record['record_sha256'][:12]}` of {record['source_commit'][:7]}",
    ]


def test_a_run_that_failed_ends_with_1(example: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    write_json(path, example.failed(tmp_path / "failed"))

    with pytest.raises(SystemExit) as ended:
        corpus_runs.main([str(path), "--table"], standalone_mode=False)

    assert ended.value.code == 1
