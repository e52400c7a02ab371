"""Whether a policy learnt is read from checked records, and noise does not count."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from miniverl.bench import record
from miniverl.bench.learning import has_learnt, table

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results" / "records" / "cpu" / "smollm2-grpo-learn"
SEED = {
    json.loads(path.read_text("utf-8"))["workload"]["seed"]: path
    for path in RESULTS.rglob("*.json")
}
PUBLISHED = ROOT / "tests" / "data" / "published_record_rtx4080.json"


def _record(change: float, error: float, before: float, after: float) -> dict[str, object]:
    def trend(first: float, last: float) -> dict[str, float]:
        return {"first_third_mean": first, "last_third_mean": last}

    return {
        "workload": {"seed": 7},
        "measurements": {
            "training_metrics": {
                "reward_mean": trend(0.25, 0.25 + change)
                | {"change": change, "change_standard_error": error},
                "response_tokens_mean": trend(14.0, 8.0),
                "share_capped": trend(0.2, 0.0),
            },
            "validation_metrics": {"reward_mean": {"before": before, "after": after}},
        },
    }


def test_a_rise_of_more_than_two_standard_errors_is_learning() -> None:
    assert has_learnt(_record(0.25, 0.12, 0.35, 0.7))


@pytest.mark.parametrize(
    ("change", "error", "before", "after"),
    [(0.25, 0.125, 0.35, 0.7), (-0.3, 0.1, 0.35, 0.7), (0.25, 0.1, 0.35, 0.35)],
    ids=["within noise", "fell", "greedy answers did not gain"],
)
def test_everything_else_is_not(change: float, error: float, before: float, after: float) -> None:
    assert not has_learnt(_record(change, error, before, after))


def test_the_table_shows_lengths_beside_rewards() -> None:
    row = table([_record(0.25, 0.1, 0.35, 0.7)]).splitlines()[-1]
    assert row == (
        "| 7 | 0.250 | 0.500 | +0.250 ± 0.100 | 0.350 → 0.700 | 14.0 → 8.0 | 0.20 → 0.00 |"
    )


def _run(*paths: Path | str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "miniverl.bench.learning", *map(str, paths)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_published_records_have_learnt_and_draw_the_published_curve(tmp_path: Path) -> None:
    published = [SEED[seed] for seed in (1, 2, 3)]
    done = _run(*published, "--curve", tmp_path / "curve.svg")
    assert done.returncode == 0
    text = (ROOT / "docs" / "learning.md").read_text("utf-8")
    assert done.stdout.strip() in text
    drawn = (tmp_path / "curve.svg").read_text("utf-8")
    assert drawn == (ROOT / "docs" / "learning.svg").read_text("utf-8")


def test_one_record_that_has_not_learnt_is_a_no(tmp_path: Path) -> None:
    flat = json.loads(SEED[1].read_text("utf-8"))
    for step in flat["launches"][0]["steps"]:
        step["metrics"]["reward_mean"] = 0.5
    path = tmp_path / "flat.json"
    path.write_text(json.dumps(record.complete(flat)), "utf-8")
    assert _run(SEED[1], path).returncode == 1


def test_a_record_that_cannot_answer_is_a_wrong_call() -> None:
    answered = _run(PUBLISHED)
    assert answered.returncode == 2
    assert "measurements.validation_metrics" in answered.stderr


def test_an_edited_record_is_refused(tmp_path: Path) -> None:
    plain = json.loads(SEED[1].read_text("utf-8"))
    plain["measurements"]["training_metrics"]["reward_mean"]["change"] += 0.1
    edited = tmp_path / "edited.json"
    edited.write_text(json.dumps(plain), "utf-8")
    assert _run(edited).returncode == 1
