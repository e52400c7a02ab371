"""A dataset on the Hub becomes prompt rows, against a server on this machine; what needs the Hub itself says so."""

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from miniverl.bench import cache, cli, entry, hub_rows
from miniverl.bench.exits import Exit
from miniverl.bench.pin import HubRowsPin, HubSplit, pin
from miniverl.compiler.upstream import quiet
from miniverl.engine.problem import Refused

# As in the dataset: a worked answer, and the result behind "#### ".
ROWS = {
    "train": [
        {"question": "Tom has 3 boxes of 4 pens. How many pens?", "answer": "3*4=<<3*4=12>>12\n#### 12"},
        {"question": "A car costs 1,200. Two cars?", "answer": "1200*2=2400\n#### 2,400"},
    ],
    "test": [{"question": "It is 2 and falls by 5.", "answer": "2-5=-3\n#### -3"}],
}  # fmt: skip
FILES = {split: f"main/{split}-00000-of-00001.parquet" for split in ROWS}


@pytest.fixture
def server(hub_server: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    with hub_server.listening(monkeypatch) as held:
        yield held


@pytest.fixture
def parquet(tmp_path: Path) -> dict[str, bytes]:
    """The bytes of a file of each split."""
    made = {}
    for split, rows in ROWS.items():
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "made.parquet")
        made[split] = (tmp_path / "made.parquet").read_bytes()
    return made


@pytest.fixture
def dataset(parquet: dict[str, bytes], server: Any, hub_server: ModuleType) -> HubRowsPin:
    """Its pin; the server holds it."""
    server.files = server.listed = {
        "README.md": b"# card\n",
        **{FILES[split]: content for split, content in parquet.items()},
    }
    splits = {
        split: HubSplit(
            file=FILES[split], rows=len(ROWS[split]), sha256=hashlib.sha256(content).hexdigest()
        )
        for split, content in parquet.items()
    }
    return HubRowsPin(
        kind="hub_rows",
        title="small",
        licence="MIT",
        repository=hub_server.REPOSITORY,
        revision=hub_server.COMMIT,
        layout="gsm8k",
        splits=splits,
    )


def test_questions_become_the_rows_that_upstreams_script_writes(
    dataset: HubRowsPin, server: Any, tmp_path: Path
) -> None:
    """verl examples/data_preprocess/gsm8k.py (v0.9.0)."""
    folder = tmp_path / "arriving"
    folder.mkdir()
    hub_rows.fill(dataset, folder, quiet)

    (first, second) = pq.read_table(folder / "train.parquet").to_pylist()
    assert first == {
        "data_source": "openai/gsm8k",
        "prompt": [
            {
                "role": "user",
                "content": "Tom has 3 boxes of 4 pens. How many pens? "
                'Let\'s think step by step and output the final answer after "####".',
            }
        ],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "12"},
        "extra_info": {
            "split": "train",
            "index": 0,
            "answer": "3*4=<<3*4=12>>12\n#### 12",
            "question": "Tom has 3 boxes of 4 pens. How many pens?",
        },
    }
    assert second["reward_model"]["ground_truth"] == "2400"
    assert second["extra_info"]["index"] == 1
    (last,) = pq.read_table(folder / "test.parquet").to_pylist()
    assert last["reward_model"]["ground_truth"] == "-3"
    assert last["extra_info"]["split"] == "test"
    assert hub_rows.wrong_content(dataset, folder) == []
    assert not [seen for seen in server.seen if "README" in seen]
    assert sorted(path.name for path in tmp_path.glob(".hub-*")) == []


def test_a_file_that_is_not_the_pinned_one_is_refused_before_it_is_read(
    dataset: HubRowsPin, tmp_path: Path
) -> None:
    other = replace(dataset.splits["test"], sha256="0" * 64)
    with pytest.raises(Refused) as caught:
        hub_rows.fill(replace(dataset, splits={**dataset.splits, "test": other}), tmp_path, quiet)
    (problem,) = caught.value.problems
    assert problem.field == "test-00000-of-00001.parquet"
    assert "0" * 64 in problem.reason
    assert not (tmp_path / "train.parquet").exists()


def test_without_a_digest_in_the_pin_the_first_fetch_gives_it(
    dataset: HubRowsPin,
    parquet: dict[str, bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MINIVERL_CACHE", str(tmp_path / "cache"))
    unknown = {name: replace(split, sha256=None) for name, split in dataset.splits.items()}
    stated = []
    for name, chosen in (("known", dataset), ("first", replace(dataset, splits=unknown))):
        monkeypatch.setattr(entry, "pin", {name: chosen}.__getitem__)
        folder = entry.place(name, chosen)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with cache.arriving(folder) as arriving:
            hub_rows.fill(chosen, arriving, quiet)
        stated.append(entry.input_of(name))

    known, first = stated
    assert (known["pin_state"], first["pin_state"]) == ("known", "first_fetch")
    digests = {split: hashlib.sha256(content).hexdigest() for split, content in parquet.items()}
    assert known["sha256"] == first["sha256"] == entry.files_sha256(digests)
    assert (known["kind"], known["digest_of"], known["rows"]) == ("data", "file", 3)


def test_a_row_that_is_no_question_is_named(dataset: HubRowsPin) -> None:
    rows = [*ROWS["train"], {"question": "Why?", "answer": "Nobody knows."}]
    with pytest.raises(Refused) as caught:
        hub_rows.converted(rows, "train", dataset)
    (problem,) = caught.value.problems
    assert problem.field == "train row 2"


def test_gsm8k_is_pinned_by_revision_and_by_the_digests_of_its_files() -> None:
    chosen = pin("gsm8k")
    assert isinstance(chosen, HubRowsPin)
    assert chosen.repository == "openai/gsm8k"
    assert {name: split.rows for name, split in chosen.splits.items()} == {
        "train": 7473,
        "test": 1319,
    }
    assert all(split.sha256 for split in chosen.splits.values())


def test_where_the_hub_is_out_of_reach_fetching_says_so_and_leaves_nothing(
    hub_server: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    hub_server.try_again_at_once(monkeypatch)
    monkeypatch.setenv("MINIVERL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nothing listens there
    assert cli.main(["fetch", "gsm8k", "--json"]) == Exit.CANNOT_HERE
    (problem,) = json.loads(capsys.readouterr().out)["problems"]
    assert problem["field"] == "openai/gsm8k"
    assert problem["reason"].startswith("it cannot be reached")
    assert problem["fix"] == "Connect to the network and fetch again"
    assert not list((tmp_path / "cache").rglob("*.parquet"))
    assert os.environ["MINIVERL_CACHE"]
