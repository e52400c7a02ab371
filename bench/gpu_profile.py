"""A GPU profile: what a card is called, what its data sheet promises, and what is run on it.

bench/gpus/*.yaml are the profiles. Figures are those of the data sheet that `source` names: dense products on tensor
cores with float32 sums where the type has them, float32 outside. They stand beside what a probe measures, and decide
nothing; memory is what the driver tells, which is less than what is sold where error correction takes its part.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from miniverl.bench.document import build, load
from miniverl.engine.problem import Problem, WrongCall

GIB = 1 << 30


@dataclass(frozen=True, kw_only=True, slots=True)
class Peaks:
    """Teraflops of matrix products by type; None: the card has no such products."""

    float32: float
    float16: float
    bfloat16: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class DataSheet:
    source: str
    memory_gb_per_second: float
    peak_teraflops: Peaks


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What a launch may hold of the card's memory: the rest is CUDA's context, its libraries and a desktop."""

    reserved_gib: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """None where it holds of no card in particular."""

    name: str
    title: str  # with its article, to stand in a sentence
    device: Literal["cpu", "cuda"]
    device_name_pattern: str | None  # of the whole name
    memory_gib: float | None
    compute_capability: str | None
    minimum_cuda: str | None  # the first one that compiles for the card
    minimum_driver: str | None  # the first one that brings that CUDA
    data_sheet: DataSheet | None
    limits: Limits | None
    stack: str | None  # what to install for it: a folder of containers; None: any
    threads: int
    workloads: tuple[str, ...]  # measured where none is named

    @property
    def memory_bytes(self) -> int | None:
        return None if self.memory_gib is None else int(self.memory_gib * GIB)


@cache
def profiles() -> Mapping[str, Profile]:
    """Every profile by its name; those that name a card come before the one that takes any."""
    read = []
    for path in (files("miniverl.bench") / "gpus").iterdir():
        profile = parse(load(path), path.name)
        assert path.name == f"{profile.name}.yaml", f"{path.name} calls itself {profile.name}"
        read.append(profile)
    read.sort(key=lambda profile: (profile.memory_gib is None, profile.name))
    return {profile.name: profile for profile in read}


def parse(plain: object, origin: str) -> Profile:
    """A profile's document; raises WrongCall with every problem in it."""
    profile = build(Profile, plain, "gpu", origin)
    problems = [
        Problem(field=field, value=value, origin=origin, reason=reason, fix="Correct the document")
        for field, value, reason in (*_ill_formed(profile), *_apart(profile))
    ]
    if problems:
        raise WrongCall(problems)
    return profile


Wrong = tuple[str, Any, str]


def _ill_formed(profile: Profile) -> Iterator[Wrong]:
    """Numbers that are none of a card, versions that are none, a pattern that does not compile."""
    numbers: dict[str, float | None] = {
        "memory_gib": profile.memory_gib,
        "threads": profile.threads,
    }
    if profile.data_sheet is not None:
        peaks = profile.data_sheet.peak_teraflops
        numbers["data_sheet.memory_gb_per_second"] = profile.data_sheet.memory_gb_per_second
        for dtype in ("float32", "float16", "bfloat16"):
            numbers[f"data_sheet.peak_teraflops.{dtype}"] = getattr(peaks, dtype)
    if profile.limits is not None:
        numbers["limits.reserved_gib"] = profile.limits.reserved_gib
    for field, number in numbers.items():
        if number is not None and number <= 0:
            yield f"gpu.{field}", number, "expected a positive number"
    for field in ("compute_capability", "minimum_cuda", "minimum_driver"):
        text = getattr(profile, field)
        if text is not None and not re.fullmatch(r"\d+(\.\d+)+", text):
            yield f"gpu.{field}", text, "expected a version such as 8.9"
    try:
        re.compile(profile.device_name_pattern or "")
    except re.error as error:
        yield "gpu.device_name_pattern", profile.device_name_pattern, f"not a pattern: {error}"


def _apart(profile: Profile) -> Iterator[Wrong]:
    """What does not go together."""
    of_card = (
        "memory_gib",
        "compute_capability",
        "minimum_cuda",
        "minimum_driver",
        "data_sheet",
        "limits",
    )
    stated = {field for field in of_card if getattr(profile, field) is not None}
    if stated and len(stated) < len(of_card):
        for field in of_card:
            if field not in stated:
                yield f"gpu.{field}", None, "stated for a card, as the others are"
    if (profile.device_name_pattern is None) != (profile.device == "cpu"):
        reason = "stated if and only if the device is cuda"
        yield "gpu.device_name_pattern", profile.device_name_pattern, reason
    limits, memory_gib = profile.limits, profile.memory_gib
    if limits is not None and memory_gib is not None and limits.reserved_gib >= memory_gib:
        reason = f"the card has {memory_gib:g} GiB, and CUDA's context needs some of it"
        yield "gpu.limits.reserved_gib", limits.reserved_gib, reason
    if not profile.workloads:
        yield "gpu.workloads", [], "expected at least one"
