"""Committed prompt rows, split by split, and the Parquet files that upstream and the engine read."""

import json
from collections import defaultdict
from importlib.resources import files
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from miniverl.bench.cache import wrong_digest
from miniverl.bench.pin import GeneratedPin, RowsPin, TemplatedPin
from miniverl.compiler.upstream import Progress
from miniverl.engine.digest import rows_sha256
from miniverl.engine.problem import Problem, Refused

Row = dict[str, Any]


def fill(pin: GeneratedPin | TemplatedPin, folder: Path, progress: Progress) -> None:
    """Write one Parquet file per split of `pin`; raises Refused when the committed rows were changed."""
    source = Path(str(files("miniverl.bench") / "data" / pin.file))
    by_split = _by_split(source.read_text("utf-8"))
    problems = []
    for name, split in pin.splits.items():
        found = rows_sha256(by_split[name])
        if found != split.sha256:
            problems.append(_changed_rows(source, name, split.sha256, found))
    if problems:
        raise Refused(problems)
    for name in pin.splits:
        table = pyarrow.Table.from_pylist(by_split[name])
        pyarrow.parquet.write_table(table, folder / f"{name}.parquet")
    size = source.stat().st_size
    progress(pin.title, size, size)


def wrong_content(pin: RowsPin, folder: Path) -> list[Problem]:
    """Each split whose Parquet file does not hold the pinned rows."""
    problems = []
    for name, split in pin.splits.items():
        path = folder / f"{name}.parquet"
        found = rows_sha256(pyarrow.parquet.read_table(path).to_pylist())
        if found != split.sha256:
            problems.append(wrong_digest(path, split.sha256, found))
    return problems


def _by_split(text: str) -> dict[str, list[Row]]:
    rows: defaultdict[str, list[Row]] = defaultdict(list)
    for line in text.splitlines():
        row = json.loads(line)
        rows[row["extra_info"]["split"]].append(row)
    return rows


def _changed_rows(source: Path, split: str, expected: str, found: str) -> Problem:
    return Problem(
        field=f"{source.name} {split}",
        value=found,
        origin=str(source),
        reason=f"the committed rows are not the pinned ones: expected {expected}, found {found}",
        fix="Restore the file; after a wanted change, write the new digest into its pin",
    )
