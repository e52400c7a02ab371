"""Content digests: moved by content, by nothing else."""

import hashlib
import json
import struct
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file

from miniverl.engine.digest import rows_sha256, weights_sha256
from miniverl.engine.problem import WrongCall
from miniverl.engine.rows import read_rows


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def test_rows_are_hashed_as_canonical_json_lines():
    rows = [{"b": 1.0, "a": ["x", {"d": True, "c": "\u00e9"}]}, {"a": -7}]
    expected = b'{"a":["x",{"c":"\xc3\xa9","d":true}],"b":1}\n{"a":-7}\n'
    assert rows_sha256(rows) == sha256(expected)


def test_the_order_of_rows_counts_and_the_order_of_members_does_not():
    first, second = {"a": 1, "b": 2}, {"a": 3, "b": 4}
    assert rows_sha256([first, second]) == rows_sha256([{"b": 2, "a": 1}, second])
    assert rows_sha256([first, second]) != rows_sha256([second, first])


def test_rows_keep_their_digest_through_parquet_whatever_fields_each_has(tmp_path):
    rows = [
        {"prompt": [{"role": "user", "content": "1?"}], "extra_info": {"index": 0}},
        {"prompt": [{"role": "user", "content": "2?"}], "extra_info": {"split": "train"}},
        {"prompt": [], "extra_info": {}},
    ]
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    assert pq.read_table(path).to_pylist()[0]["extra_info"] == {"index": 0, "split": None}
    assert read_rows(path) == rows
    assert rows_sha256(read_rows(path)) == rows_sha256(rows)


def test_rows_in_json_lines_are_those_of_parquet_and_a_bad_line_is_named(tmp_path):
    rows = [{"prompt": [{"role": "user", "content": "1?"}], "extra_info": {"index": 0, "of": None}}]
    lines, table = tmp_path / "rows.jsonl", tmp_path / "rows.parquet"
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows))
    pq.write_table(pa.Table.from_pylist(rows), table)
    assert rows_sha256(read_rows(lines)) == rows_sha256(read_rows(table))
    for text in ('{"a": 1, "a": 2}\n', "[1]\n", "{"):
        lines.write_text(text)
        with pytest.raises(WrongCall, match="cannot be read as JSON lines"):
            read_rows(lines)


def test_rows_without_canonical_json_are_all_named():
    rows = [{"a": 1}, {"a": float("nan")}, {"a": b"bytes"}, {"a": 2**60}]
    with pytest.raises(WrongCall) as raised:
        rows_sha256(rows)
    assert [problem.field for problem in raised.value.problems] == ["row 1", "row 2", "row 3"]


def test_a_file_that_is_missing_or_not_parquet_is_named(tmp_path):
    with pytest.raises(WrongCall, match="no such file"):
        read_rows(tmp_path / "none.parquet")
    text = tmp_path / "text.parquet"
    text.write_text("not Parquet at all")
    with pytest.raises(WrongCall, match="cannot be read as Parquet"):
        read_rows(text)


def test_a_damaged_parquet_file_is_named(tmp_path):
    path = tmp_path / "damaged.parquet"
    pq.write_table(pa.table({"prompt": ["one", "two"]}), path)
    content = bytearray(path.read_bytes())
    content[4:24] = bytes(20)
    path.write_bytes(content)
    with pytest.raises(WrongCall, match=r"damaged\.parquet.* cannot be read as Parquet"):
        read_rows(path)


WEIGHTS = {
    "b": torch.arange(6, dtype=torch.float32).reshape(2, 3),
    "a": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    "empty": torch.zeros(0, 4),
    "scalar": torch.tensor(7),
}


def lines(weights: dict[str, torch.Tensor]) -> bytes:
    names = {torch.float32: "F32", torch.bfloat16: "BF16", torch.int64: "I64"}
    return "".join(
        f"{name} {names[tensor.dtype]} {list(tensor.shape)} "
        f"{sha256(tensor.flatten().view(torch.uint8).numpy().tobytes())}\n"
        for name, tensor in sorted(weights.items())
    ).encode()


def test_weights_are_hashed_by_name_dtype_shape_and_bytes(tmp_path):
    save_file(WEIGHTS, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert weights_sha256(tmp_path) == sha256(lines(WEIGHTS))


def test_how_tensors_are_spread_over_files_does_not_matter(tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    whole.mkdir()
    parts.mkdir()
    save_file(WEIGHTS, whole / "model.safetensors")
    for number, name in enumerate(WEIGHTS):
        save_file({name: WEIGHTS[name]}, parts / f"model-{number}.safetensors")
    assert weights_sha256(parts) == weights_sha256(whole)


@pytest.mark.parametrize(
    "changed",
    [
        {"a": torch.tensor([1.5, -2.5], dtype=torch.bfloat16)},
        {"a": torch.tensor([[1.5, -2.0]], dtype=torch.bfloat16)},
        {"a": torch.tensor([1.5, -2.0], dtype=torch.float32)},
        {"c": torch.zeros(1)},
    ],
)
def test_any_change_of_a_tensor_changes_the_digest(tmp_path, changed):
    save_file(WEIGHTS | changed, tmp_path / "model.safetensors")
    assert weights_sha256(tmp_path) != sha256(lines(WEIGHTS))


def broken(folder: Path, content: bytes) -> Path:
    (folder / "model.safetensors").write_bytes(content)
    return folder


HEADER = json.dumps({"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"short",
        struct.pack("<Q", 1 << 40) + b"{}",
        struct.pack("<Q", 8) + b"not JSON",
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", len(HEADER)) + HEADER + bytes(15),
        struct.pack("<Q", 9) + b'{"a": {}}',
    ],
)
def test_a_broken_file_is_named(tmp_path, content):
    with pytest.raises(WrongCall, match="not a safetensors file"):
        weights_sha256(broken(tmp_path, content))


def test_a_folder_without_weights_is_named(tmp_path):
    with pytest.raises(WrongCall, match=r"no \*\.safetensors file"):
        weights_sha256(tmp_path)


def test_a_tensor_in_two_files_is_named(tmp_path):
    save_file({"a": torch.zeros(1)}, tmp_path / "1.safetensors")
    save_file({"a": torch.zeros(1)}, tmp_path / "2.safetensors")
    with pytest.raises(WrongCall, match="tensor a is in an earlier file too"):
        weights_sha256(tmp_path)
