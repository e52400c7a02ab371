"""Seeded weights of an exact architecture, as a safetensors file: the same bytes on every machine, by numpy alone.

Every tensor has a stream of its own, of a bit generator whose output is fixed, and numbers come out of it by one
product and one rounding.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from miniverl.compiler.upstream import Progress
from miniverl.engine.footprint import ModelShape, model_shape

_NAMES = {"bfloat16": "BF16", "float32": "F32"}  # in a safetensors header
_BYTES = {"bfloat16": 2, "float32": 4}
_MIDDLE = 32767.5  # of a draw of 16 bits

Sizes = tuple[int, ...]


def write_weights(
    path: Path, config: Mapping[str, Any], seed: int, progress: Progress, title: str
) -> None:
    """A safetensors file, tensor by tensor, so that no more than one is in memory."""
    dtype: str = config["dtype"]
    tensors = sorted(tensor_sizes(model_shape(config, title)).items())
    header, size = _header(tensors, dtype)
    limit = float(config["initializer_range"]) * 3**0.5  # of a uniform with that deviation
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        done = 0
        for name, sizes in tensors:
            done += _write(file, name, sizes, dtype, seed, limit)
            progress(title, done, size)


def tensor_sizes(shape: ModelShape) -> dict[str, Sizes]:
    """Name -> size of every tensor of a Llama, Qwen2 or Qwen3, as transformers names them."""
    sizes: dict[str, Sizes] = {
        "model.embed_tokens.weight": (shape.vocabulary, shape.hidden),
        "model.norm.weight": (shape.hidden,),
    }
    if not shape.has_tied_head:
        sizes["lm_head.weight"] = (shape.vocabulary, shape.hidden)
    for layer in range(shape.num_layers):
        for name, size in _layer_sizes(shape):
            sizes[f"model.layers.{layer}.{name}"] = size
    return sizes


def _layer_sizes(shape: ModelShape) -> Iterator[tuple[str, Sizes]]:
    biased = {
        **dict.fromkeys(("q_proj", "k_proj", "v_proj"), shape.has_query_key_value_bias),
        **dict.fromkeys(("gate_proj", "up_proj", "down_proj"), shape.has_mlp_bias),
        "o_proj": shape.has_output_bias,
    }
    for leaf, (inputs, outputs) in shape.linears().items():
        part = "mlp" if leaf in ("gate_proj", "up_proj", "down_proj") else "self_attn"
        yield f"{part}.{leaf}.weight", (outputs, inputs)
        if biased[leaf]:
            yield f"{part}.{leaf}.bias", (outputs,)
    for norm in ("input_layernorm", "post_attention_layernorm"):
        yield f"{norm}.weight", (shape.hidden,)
    if shape.has_query_key_norm:
        for norm in ("q_norm", "k_norm"):
            yield f"self_attn.{norm}.weight", (shape.head_size,)


def _header(tensors: list[tuple[str, Sizes]], dtype: str) -> tuple[bytes, int]:
    """And the bytes of all tensors; the data begins at a multiple of 8."""
    stated: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    start = 0
    for name, sizes in tensors:
        end = start + int(np.prod(sizes)) * _BYTES[dtype]
        stated[name] = {"dtype": _NAMES[dtype], "shape": list(sizes), "data_offsets": [start, end]}
        start = end
    text = json.dumps(stated, separators=(",", ":")).encode()
    return text + b" " * (-len(text) % 8), start


def _write(file: BinaryIO, name: str, sizes: Sizes, dtype: str, seed: int, limit: float) -> int:
    """Norms are one and biases zero, as an untrained model has them; all else is drawn."""
    count = int(np.prod(sizes))
    if name.endswith("norm.weight"):
        values = np.ones(count, np.float32)
    elif name.endswith(".bias"):
        values = np.zeros(count, np.float32)
    else:
        values = _drawn(f"{seed} {name}", count, limit)
    content = values.astype("<f4").tobytes() if dtype == "float32" else _bfloat16(values)
    file.write(content)
    return len(content)


def _drawn(stream: str, count: int, limit: float) -> "np.ndarray[Any, np.dtype[np.float32]]":
    """Uniform in [-limit, limit], in steps of 16 bits."""
    key = int.from_bytes(hashlib.sha256(stream.encode()).digest()[:16], "little")
    words = np.random.Philox(key=key).random_raw(-(-count // 4)).astype("<u8")
    draws = words.view("<u2")[:count].astype(np.float32)
    return (draws - np.float32(_MIDDLE)) * np.float32(limit / _MIDDLE)


def _bfloat16(values: "np.ndarray[Any, np.dtype[np.float32]]") -> bytes:
    """The upper half of each float32, rounded to the nearest, ties to even."""
    bits = values.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return rounded.astype("<u2").tobytes()
