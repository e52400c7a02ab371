"""The doctor: what is here, what can be run, and what to do."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from miniverl.bench import doctor, workload
from miniverl.bench.fetch import fetch
from miniverl.compiler.upstream import quiet

pytestmark = pytest.mark.slow


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MINIVERL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # the tests are about a machine without a card
    return tmp_path / "cache"


def test_the_report_is_json_of_every_part(cache: Path) -> None:
    report = doctor.examine(os.environ)
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    assert report["profile"] == "cpu"
    assert set(report["workloads"]) == set(workload.names())


def test_looking_fetches_nothing_and_leaves_no_trace(cache: Path) -> None:
    report = doctor.examine(os.environ)
    assert set(report["cache"]["pins"].values()) == {"not fetched"}
    assert not cache.exists()


def test_a_fetched_pin_and_a_damaged_one_are_told_apart(cache: Path) -> None:
    folder = fetch(["chain-sum"], quiet)["chain-sum"]
    assert doctor.examine(os.environ)["cache"]["pins"]["chain-sum"] == "fetched"
    (folder / "train.parquet").write_bytes(b"damaged")
    report = doctor.examine(os.environ)
    assert report["cache"]["pins"]["chain-sum"] == "damaged: train.parquet"
    (finding,) = [one for one in report["findings"] if one["level"] == "error"]
    assert finding["what"] == "chain-sum is damaged: train.parquet"
    assert finding["fix"] == f"Delete {folder} and fetch again"


def test_each_profile_is_usable_or_has_a_reason(cache: Path) -> None:
    profiles = doctor.examine(os.environ)["profiles"]
    assert profiles["cpu"] == "usable"
    assert profiles["4080"].startswith("GPU profile 4080 needs an NVIDIA GeForce RTX 4080")


def test_the_text_has_a_line_for_each_fact(cache: Path) -> None:
    text = doctor.text(doctor.examine(os.environ))
    for word in ("machine ", "system ", "cards ", "stack ", "cache ", "profiles ", "workloads"):
        assert sum(line.startswith(word) for line in text.splitlines()) == 1
    assert "smollm2-grpo-learn" in text
    assert "None" not in text


def test_the_fingerprint_holds_nothing_that_passes(cache: Path) -> None:
    fingerprint = doctor.fingerprint(os.environ)
    fetch(["chain-sum"], quiet)
    assert doctor.fingerprint(os.environ) == fingerprint
    assert str(cache) not in json.dumps(fingerprint)


def test_no_heavy_library_is_loaded_to_look(cache: Path) -> None:
    script = "import os, sys; from miniverl.bench import doctor; doctor.examine(os.environ)\n"
    script += "print(sorted({'torch', 'transformers', 'pyarrow'} & set(sys.modules)))"
    command = [sys.executable, "-P", "-c", script]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    assert answer.stdout == "[]\n"
