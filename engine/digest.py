"""Content digests: what pins and recipes name data and weights by.

Files of one content differ in bytes (Parquet and safetensors headers carry library versions and orders),
so the digest is over the content: rows as canonical JSON, tensors by name, dtype, shape and bytes.
Loads neither torch nor pyarrow.
"""

import hashlib
import json
import mmap
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import rfc8785

from miniverl.engine.problem import Problem, WrongCall


def rows_sha256(rows: Iterable[Mapping[str, Any]]) -> str:
    """SHA-256 over, for each row in order, its RFC 8785 bytes and a newline.

    Members that are null count as absent: Parquet gives every row all fields of a struct, and fills up with
    nulls. Raises WrongCall naming the rows that have no canonical JSON (dates, bytes, NaN, integers beyond 2^53).
    """
    digest = hashlib.sha256()
    problems = []
    for number, row in enumerate(rows):
        try:
            digest.update(rfc8785.dumps(without_nulls(row)) + b"\n")
        except rfc8785.CanonicalizationError as error:
            problems.append(_row_problem(number, row, error))
    if problems:
        raise WrongCall(problems)
    return digest.hexdigest()


def weights_sha256(folder: Path) -> str:
    """SHA-256 over the sorted lines "name dtype shape sha256-of-its-bytes" of every tensor in *.safetensors.

    `dtype` and `shape` as the safetensors header writes them: F32, [576, 1536]. How tensors are spread over
    files does not matter. Raises WrongCall for a folder without weights, a broken file, a tensor found twice.
    """
    lines: dict[str, str] = {}
    problems = []
    paths = sorted(folder.glob("*.safetensors"))
    if not paths:
        problems.append(_file_problem(folder, "no *.safetensors file in this folder"))
    for path in paths:
        try:
            found = _tensor_lines(path)
        except (ValueError, KeyError, TypeError) as error:
            problems.append(_file_problem(path, f"not a safetensors file: {error}"))
            continue
        for name in sorted(found.keys() & lines.keys()):
            problems.append(_file_problem(path, f"tensor {name} is in an earlier file too"))
        lines |= found
    if problems:
        raise WrongCall(problems)
    return hashlib.sha256("".join(sorted(lines.values())).encode()).hexdigest()


def other_weights(folder: Path, sha256: str) -> str | None:
    """Why the folder's weights are not those that a recipe names by `sha256`; None where they are."""
    found = weights_sha256(folder)
    if found == sha256:
        return None
    return f"its weights have the digest {found}, and the recipe was compiled for {sha256}"


def without_nulls(value: Any) -> Any:
    """`value` with every null member of every mapping left out; nulls in lists stay."""
    if isinstance(value, Mapping):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [without_nulls(item) for item in value]
    return value


def _tensor_lines(path: Path) -> dict[str, str]:
    """A digest line for each tensor of the file: 8 bytes of header length, JSON header, tensor bytes."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        start = 8 + int.from_bytes(mapped[:8], "little")
        if start > len(mapped):
            raise ValueError("its header reaches beyond the end of the file")
        header = json.loads(mapped[8:start])
        if not isinstance(header, dict):
            raise TypeError("its header is no mapping")
        lines = {}
        with memoryview(mapped) as view:
            for name, tensor in header.items():
                if name == "__metadata__":
                    continue
                begin, end = tensor["data_offsets"]
                if not 0 <= begin <= end <= len(mapped) - start:
                    raise ValueError(f"tensor {name} reaches beyond the end of the file")
                digest = hashlib.sha256(view[start + begin : start + end]).hexdigest()
                lines[name] = f"{name} {tensor['dtype']} {tensor['shape']} {digest}\n"
        return lines


def _row_problem(number: int, row: Mapping[str, Any], error: Exception) -> Problem:
    return Problem(
        field=f"row {number}",
        value=dict(row),
        origin="data rows",
        reason=f"has no canonical JSON: {error}",
        fix="Store strings, lists, mappings, booleans and numbers up to 2^53 only",
    )


def _file_problem(path: Path, reason: str) -> Problem:
    return Problem(
        field="model",
        value=str(path),
        origin="weights",
        reason=reason,
        fix="Give a folder with a model's whole safetensors files",
    )
