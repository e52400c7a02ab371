"""The rows of a data file, as plain JSON-like mappings. Loads no torch, so the compiler can digest them."""

from pathlib import Path
from typing import Any

from miniverl.engine.digest import without_nulls
from miniverl.engine.problem import Problem, WrongCall
from miniverl.engine.strict import strict_json


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Every row of a Parquet file, or of one of JSON lines (.jsonl), in order, without null members (see engine/digest.py).

    Raises WrongCall when there is no such file or it is not what its name says.
    """
    if not path.is_file():
        raise WrongCall([_problem(path, "no such file")])
    rows = _of_lines(path) if path.suffix == ".jsonl" else _of_parquet(path)
    return [without_nulls(row) for row in rows]


def _of_lines(path: Path) -> list[Any]:
    try:
        rows = [strict_json(line) for line in path.read_text("utf-8").splitlines()]
    except ValueError as error:
        raise WrongCall([_problem(path, f"cannot be read as JSON lines: {error}")]) from error
    if not all(isinstance(row, dict) for row in rows):
        raise WrongCall([_problem(path, "cannot be read as JSON lines: a line is no object")])
    return rows


def _of_parquet(path: Path) -> list[Any]:
    import pyarrow as pa  # here only: JSON lines are read where it is not installed
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise WrongCall([_problem(path, f"cannot be read as Parquet: {error}")]) from error
    rows: list[Any] = table.to_pylist()
    return rows


def _problem(path: Path, reason: str) -> Problem:
    return Problem(
        field="data file",
        value=str(path),
        origin="bindings",
        reason=reason,
        fix="Bind a Parquet file with the columns data_source, prompt and reward_model",
    )
