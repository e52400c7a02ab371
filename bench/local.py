"""A workload's data from the user's own Parquet: taken into the cache, named by content, and bound in its place.

Nothing tells afterwards where a file was. The same rows have the same name on every machine, so that records of
them compare.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from miniverl.bench import cache
from miniverl.bench.comparability import sha256_of
from miniverl.bench.entry import place
from miniverl.bench.pin import LOCAL, LOCAL_DOCUMENT, DataPin, LocalPin, Split, find
from miniverl.bench.workload import Workload, require_fit
from miniverl.compiler.suggest import did_you_mean
from miniverl.compiler.whole import write_json
from miniverl.engine.digest import rows_sha256
from miniverl.engine.problem import Problem, WrongCall

_SPLITS = ("train", "validation")
_NAMES = (*_SPLITS, "reward")


def read(texts: Sequence[str]) -> dict[str, str | None]:
    """What NAME=VALUE texts bind, as a workload states it; files have become pins in the cache.

    Raises WrongCall with every text that binds nothing.
    """
    problems: list[Problem] = []
    stated: dict[str, str | None] = {}
    tables: dict[str, pyarrow.Table] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if name not in _NAMES or not equals or not value:
            fix = did_you_mean(name, _NAMES, f"Known: {', '.join(_NAMES)}")
            problems.append(_problem("--bind", text, "it binds nothing", fix))
        elif name in stated or name in tables:
            problems.append(_problem(name, value, "it is bound twice", "Bind it once"))
        elif name == "reward" or (name == "validation" and value == "none") or _is_pinned(value):
            stated[name] = None if value == "none" else value
        else:
            try:
                tables[name] = _table(name, Path(value))
            except WrongCall as error:
                problems += error.problems
    if problems:
        raise WrongCall(problems)
    if tables:
        pin = _adopted(tables)
        stated |= {name: f"{pin}/{name}" for name in tables}
    return stated


def bound(chosen: Workload, stated: Mapping[str, str | None]) -> Workload:
    """`chosen` with these bindings in place of its own; raises WrongCall where they do not fit."""
    if not stated:
        return chosen
    changes: dict[str, Any] = dict(stated)
    changed = replace(chosen, bindings=replace(chosen.bindings, **changes))
    require_fit(changed, "--bind")
    return changed


def _is_pinned(value: str) -> bool:
    name, _, split = value.partition("/")
    chosen = find(name)
    return isinstance(chosen, DataPin) and split in chosen.splits


def _table(name: str, path: Path) -> pyarrow.Table:
    fix = "Give a Parquet file with the columns data_source, prompt and reward_model"
    if not path.is_file():
        raise WrongCall([_problem(name, str(path), "no such file", fix)])
    try:
        table = pyarrow.parquet.read_table(path)
    except (pyarrow.ArrowException, OSError) as error:
        said = str(error).partition("\n")[0]
        raise WrongCall([_problem(name, str(path), f"not Parquet: {said}", fix)]) from error
    if not table.num_rows:
        raise WrongCall([_problem(name, str(path), "it has no rows", fix)])
    return table


def _adopted(tables: Mapping[str, pyarrow.Table]) -> str:
    """The name of the pin that holds these rows; what was read is written, whatever becomes of the files."""
    splits = {
        name: Split(rows=table.num_rows, sha256=rows_sha256(table.to_pylist()))
        for name, table in tables.items()
    }
    content = sha256_of({name: split.sha256 for name, split in splits.items()})
    name, chosen = f"{LOCAL}{content[:12]}", LocalPin(kind="local", splits=splits)
    entry = place(name, chosen)
    with cache.locked(entry):
        if not entry.exists():
            with cache.arriving(entry) as folder:
                for split, table in tables.items():
                    pyarrow.parquet.write_table(table, folder / f"{split}.parquet")
                document = {
                    key: {"rows": one.rows, "sha256": one.sha256} for key, one in splits.items()
                }
                write_json(folder / LOCAL_DOCUMENT, {"kind": "local", "splits": document})
    return name


def _problem(field: str, value: str, reason: str, fix: str) -> Problem:
    return Problem(field=field, value=value, origin="--bind", reason=reason, fix=fix)
