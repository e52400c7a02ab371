"""The rows of a data file, as plain JSON-like mappings. Loads no torch, so the compiler can digest them."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from miniverl.engine.digest import without_nulls
from miniverl.engine.problem import Problem, WrongCall


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Every row of a Parquet file, in order, without null members (see engine/digest.py).

    Raises WrongCall when there is no such file or it is not Parquet.
    """
    if not path.is_file():
        raise WrongCall([_problem(path, "no such file")])
    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise WrongCall([_problem(path, f"cannot be read as Parquet: {error}")]) from error
    return [without_nulls(row) for row in table.to_pylist()]


def _problem(path: Path, reason: str) -> Problem:
    return Problem(
        field="data file",
        value=str(path),
        origin="bindings",
        reason=reason,
        fix="Bind a Parquet file with the columns data_source, prompt and reward_model",
    )
