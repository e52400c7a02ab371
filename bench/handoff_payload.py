"""What the files of a bundle hold, read without running any of it: tensors, rows, JSON.

A safetensors file is 8 bytes of header length, a JSON header, and the tensors' bytes without a gap
(https://github.com/huggingface/safetensors#format).
"""

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from pyarrow import ArrowException, parquet

from miniverl.engine.problem import Problem
from miniverl.engine.strict import strict_json

_MOST_HEADER_BYTES = 16 << 20
_MOST_JSON_BYTES = 64 << 20
_MOST_RANK = 8
_ITEM_BYTES: Mapping[str, int] = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1,
}  # fmt: skip
_CHUNK = 1 << 22


def problems(root: Path) -> list[Problem]:
    """Everything that is wrong inside the files, which are known to be the ones that were written."""
    told = []
    for path in sorted(root.rglob("*")):
        reasons: Iterator[str] = iter(())
        if path.suffix == ".safetensors":
            reasons = _tensor_reasons(path)
        elif path.suffix == ".json":
            reasons = _json_reasons(path)
        elif path.suffix == ".parquet":
            reasons = _row_reasons(path)
        told += [_problem(path.relative_to(root).as_posix(), reason) for reason in reasons]
    return told


def num_tensors(path: Path) -> int:
    """Of a file that has no problems."""
    return len(_header(path)[0])


def _tensor_reasons(path: Path) -> Iterator[str]:
    try:
        header, start = _header(path)
    except ValueError as error:
        yield str(error)
        return
    size = path.stat().st_size - start
    ends = {0: ""}
    for name, tensor in header.items():
        reason = _shape_reason(tensor, size)
        if reason is not None:
            yield f"tensor {name[:200]}: {reason}"
            return
        begin, end = tensor["data_offsets"]
        if begin != end:
            ends[begin] = ends.get(begin, "") + name
    spans = sorted(tuple(tensor["data_offsets"]) for tensor in header.values())
    place = 0
    for begin, end in spans:
        if begin != place:
            yield "its tensors overlap, or leave a gap"
            return
        place = end
    if place != size:
        yield f"its tensors end at byte {place} of {size}"
        return
    for name, tensor in header.items():
        if not _is_finite(path, start, tensor):
            yield f"tensor {name[:200]} is not finite"


def _header(path: Path) -> tuple[dict[str, Any], int]:
    """The tensors by name, and where their bytes begin. Raises ValueError for a header that is none."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > size - 8:
            raise ValueError("its header reaches beyond the end of the file")
        if length > _MOST_HEADER_BYTES:
            raise ValueError(f"its header has {length} bytes, and {_MOST_HEADER_BYTES} are read")
        try:
            header = strict_json(file.read(length).decode("utf-8"))
        except (UnicodeDecodeError, ValueError) as error:
            raise ValueError(f"its header is no JSON: {error}") from None
    tensors = isinstance(header, dict) and header.keys() - {"__metadata__"}
    if not tensors:
        raise ValueError("its header names no tensor")
    header.pop("__metadata__", None)
    return header, 8 + length


def _shape_reason(tensor: Any, size: int) -> str | None:
    if not isinstance(tensor, dict) or tensor.keys() != {"dtype", "shape", "data_offsets"}:
        return "expected dtype, shape and data_offsets"
    shape, offsets = tensor["shape"], tensor["data_offsets"]
    if tensor["dtype"] not in _ITEM_BYTES:
        return f"there is no dtype {tensor['dtype']!r}"
    if not isinstance(shape, list) or len(shape) > _MOST_RANK or not all(map(_is_count, shape)):
        return "its shape is no list of lengths"
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_is_count, offsets)):
        return "its data_offsets are no two places"
    if not offsets[0] <= offsets[1] <= size:
        return "it reaches beyond the end of the file"
    if math.prod(shape) * _ITEM_BYTES[tensor["dtype"]] != offsets[1] - offsets[0]:
        return "its shape and dtype take another number of bytes than it has"
    return None


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_finite(path: Path, start: int, tensor: Mapping[str, Any]) -> bool:
    """A floating-point number with every bit of its exponent set is an infinity or no number."""
    kinds = {"F64": ("<u8", 0x7FF << 52), "F32": ("<u4", 0xFF << 23), "F16": ("<u2", 0x1F << 10)}
    kinds["BF16"] = ("<u2", 0xFF << 7)
    if tensor["dtype"] not in kinds:
        return True
    kind, exponent = kinds[tensor["dtype"]]
    begin, end = tensor["data_offsets"]
    with path.open("rb") as file:
        file.seek(start + begin)
        left = end - begin
        while left:
            block = np.frombuffer(file.read(min(left, _CHUNK)), dtype=kind)
            if ((block & np.array(exponent, kind)) == exponent).any():
                return False
            left -= block.nbytes
    return True


def _json_reasons(path: Path) -> Iterator[str]:
    if path.stat().st_size > _MOST_JSON_BYTES:
        yield f"it has more than {_MOST_JSON_BYTES} bytes"
        return
    try:
        # A tokenizer's file may hold what strict readers refuse; nothing is taken from it here.
        is_ours = path.parent.name not in ("model", "critic") and "tokenizer" not in path.name
        (strict_json if is_ours else json.loads)(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        yield f"it is no JSON: {error}"


def _row_reasons(path: Path) -> Iterator[str]:
    try:
        if parquet.read_metadata(path).num_rows < 1:
            yield "it has no rows"
    except (ArrowException, OSError) as error:
        yield f"it is no Parquet: {str(error).partition(chr(10))[0]}"


def _problem(name: str, reason: str) -> Problem:
    fix = "Do not use it; have the bundle written or sent again"
    return Problem(field=name, value=None, origin="bundle", reason=reason, fix=fix)
