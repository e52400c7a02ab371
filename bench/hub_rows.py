"""A dataset on the Hub as prompt rows: its Parquet files at one commit, verified, and each row in verl's layout.

The digest of what was fetched stays beside the rows, since the rows alone do not show it.
"""

import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet

from miniverl.bench import hub
from miniverl.bench.cache import wrong_digest
from miniverl.bench.disk import file_sha256
from miniverl.bench.entry import FETCHED
from miniverl.bench.pin import HubRowsPin
from miniverl.compiler.upstream import Progress
from miniverl.compiler.whole import write_json
from miniverl.engine.problem import Problem, Refused

Row = dict[str, Any]

_GSM8K_ASK = ' Let\'s think step by step and output the final answer after "####".'
_GSM8K_ANSWER = re.compile(r"#### (-?[0-9.,]+)")


def fill(pin: HubRowsPin, folder: Path, progress: Progress) -> None:
    """Download the files of `pin`, and write one Parquet file of prompt rows for each split.

    Raises CannotHere when the Hub does not give them, Refused for other bytes or rows than the pinned ones.
    """
    names = [split.file for split in pin.splits.values()]
    staging, _ = hub.downloaded(pin, "dataset", names, folder, progress)
    try:
        fetched = _verified(pin, staging)
        for name, split in pin.splits.items():
            source = pyarrow.parquet.read_table(staging / split.file).to_pylist()
            rows = converted(source, name, pin)
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / f"{name}.parquet")
        write_json(folder / FETCHED, fetched)
    finally:
        shutil.rmtree(staging)


def wrong_content(pin: HubRowsPin, folder: Path) -> list[Problem]:
    """Each split with another number of rows; the manifest holds the digests."""
    counts = {name: _count(folder / f"{name}.parquet") for name in pin.splits}
    return [
        wrong_digest(folder / f"{name}.parquet", f"{split.rows} rows", f"{counts[name]} rows")
        for name, split in pin.splits.items()
        if counts[name] != split.rows
    ]


def converted(source: list[Row], split: str, pin: HubRowsPin) -> list[Row]:
    """The prompt row of each row, in order; raises Refused with every row that has none."""
    rows, problems = [], []
    for index, row in enumerate(source):
        made = LAYOUTS[pin.layout](row, split, index)
        if made is None:
            problems.append(_no_prompt(pin, split, index, row))
        else:
            rows.append(made)
    if problems:
        raise Refused(problems)
    return rows


def gsm8k(row: Row, split: str, index: int) -> Row | None:
    """Question and worked answer; the number behind "#### " is the truth, without commas.

    verl examples/data_preprocess/gsm8k.py:27-32 and 61-88 (v0.9.0). None: an answer without such a number.
    """
    question, answer = row.get("question"), row.get("answer")
    if not isinstance(question, str) or not isinstance(answer, str):
        return None
    found = _GSM8K_ANSWER.search(answer)
    if found is None:
        return None
    return {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "user", "content": question + _GSM8K_ASK}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": found[1].replace(",", "")},
        "extra_info": {"split": split, "index": index, "answer": answer, "question": question},
    }


LAYOUTS: Mapping[str, Callable[[Row, str, int], Row | None]] = {"gsm8k": gsm8k}


def _verified(pin: HubRowsPin, staging: Path) -> dict[str, dict[str, Any]]:
    """Name and digest of the file of each split."""
    fetched, problems = {}, []
    for name, split in pin.splits.items():
        path = staging / split.file
        found = file_sha256(path) if path.exists() else "no such file"
        fetched[name] = {"file": split.file, "sha256": found}
        if not path.exists() or found != (split.sha256 or found):
            problems.append(wrong_digest(path, split.sha256 or "a file", found))
    if problems:
        raise Refused(problems)
    return fetched


def _count(path: Path) -> int:
    return int(pyarrow.parquet.read_metadata(path).num_rows)


def _no_prompt(pin: HubRowsPin, split: str, index: int, row: Row) -> Problem:
    return Problem(
        field=f"{split} row {index}",
        value=str(row)[:200],
        origin=pin.repository,
        reason=f"it is no question of the layout {pin.layout}",
        fix="Pin the revision that the layout was written for",
    )
