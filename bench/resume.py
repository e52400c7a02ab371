"""The resume check: a run killed and resumed must leave the bytes of a run that was left alone.

Compared are the logs that hold no times, the checkpoints that are kept and what was exported. The first
difference is named by file, byte, and the line or the element of a tensor that the byte lies in.
"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

# In the order of the run, so that the first difference is the one nearest to its cause.
LOGS = ("trajectories.jsonl", "metrics.jsonl", "validation.jsonl", "teacher_targets.jsonl")
_LOGS_OF_ALL = LOGS[:2]  # the others are there where a run validates or has a teacher
EXPORTS = ("adapter", "model", "critic")  # a run leaves one of the former two

_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """`byte` counts from 0; `place` is the line or tensor it lies in, or which side lacks the file."""

    file: str
    byte: int
    place: str

    def __str__(self) -> str:
        return f"{self.file}, byte {self.byte} ({self.place})"


@dataclass(frozen=True, kw_only=True, slots=True)
class ResumeCheck:
    """`differing` are the names of the files that differ, in the run's order."""

    status: Literal["exact_match", "mismatch"]
    differing: tuple[str, ...]
    first_difference: Difference | None


def compare_runs(straight: Path, resumed: Path) -> ResumeCheck:
    """Compare two finished run folders byte for byte."""
    names = compared_files(straight, resumed)
    differences = [
        difference
        for name in names
        if (difference := _difference(name, straight, resumed)) is not None
    ]
    return ResumeCheck(
        status="mismatch" if differences else "exact_match",
        differing=tuple(difference.file for difference in differences),
        first_difference=differences[0] if differences else None,
    )


def compared_files(straight: Path, resumed: Path) -> list[str]:
    """Relative names of every file that either run must share with the other, in the run's order."""
    found: dict[str, None] = {}
    for name in LOGS:
        if name in _LOGS_OF_ALL or (straight / name).exists() or (resumed / name).exists():
            found[name] = None
    checkpoints = {run: _checkpoints(run) for run in (straight, resumed)}
    without = [run for run, names in checkpoints.items() if not names]
    assert not without, f"a finished run has a checkpoint, and {without[0]} has none"
    kept = sorted(set().union(*checkpoints.values()))
    for folder in (*kept, *EXPORTS):
        inside = set(_inside(straight, folder)) | set(_inside(resumed, folder))
        found.update(dict.fromkeys(sorted(inside)))
    return list(found)


def last_checkpoint(run: Path) -> str | None:
    """The newest checkpoint's folder, relative to the run; None where there is none."""
    names = _checkpoints(run)
    return names[-1] if names else None


def _checkpoints(run: Path) -> list[str]:
    """Oldest first."""
    return sorted(f"checkpoints/{folder.name}" for folder in (run / "checkpoints").glob("step-*"))


def _inside(run: Path, folder: str) -> Iterator[str]:
    for path in (run / folder).rglob("*"):
        if path.is_file():
            yield path.relative_to(run).as_posix()


def _difference(name: str, straight: Path, resumed: Path) -> Difference | None:
    for side, run in (("straight", straight), ("resumed", resumed)):
        if not (run / name).exists():
            return Difference(file=name, byte=0, place=f"the {side} run has no such file")
    byte = _first_differing_byte(straight / name, resumed / name)
    if byte is None:
        return None
    return Difference(file=name, byte=byte, place=_place(straight / name, byte))


def _first_differing_byte(one: Path, other: Path) -> int | None:
    with one.open("rb") as left, other.open("rb") as right:
        start = 0
        while True:
            a, b = left.read(_CHUNK_BYTES), right.read(_CHUNK_BYTES)
            if a != b:
                shared = min(len(a), len(b))
                inside = (index for index in range(shared) if a[index] != b[index])
                return start + next(inside, shared)
            if not a:
                return None
            start += len(a)


def _place(path: Path, byte: int) -> str:
    if path.suffix == ".safetensors":
        return _tensor_at(path, byte)
    lines_before = path.read_bytes().count(b"\n", 0, byte)
    return f"line {lines_before + 1}"


def _tensor_at(path: Path, byte: int) -> str:
    """Which element a byte of a safetensors file belongs to: 8 bytes of length, a JSON header, the data."""
    with path.open("rb") as file:
        header_bytes = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(header_bytes))
    offset = byte - 8 - header_bytes
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            if begin <= offset < end:
                size = (end - begin) // math.prod(entry["shape"])
                index = _index((offset - begin) // size, entry["shape"])
                return f"tensor {name}[{', '.join(map(str, index))}]"
    return "the header"


def _index(element: int, shape: Sequence[int]) -> list[int]:
    """Of the n-th element, counted row by row."""
    index = []
    for length in reversed(shape):
        element, place = divmod(element, length)
        index.append(place)
    return index[::-1]
