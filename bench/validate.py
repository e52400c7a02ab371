"""Whether a record is one, in layers: JSON, schema, semantics, identity, privacy.

Each layer trusts what the layers before it have shown. finding.py has the codes of what they find.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from miniverl.bench import determinism
from miniverl.bench.derive import derived
from miniverl.bench.finding import Coded, Finding, Mistake, coded, finding, pointer
from miniverl.bench.privacy import private
from miniverl.bench.record import load_strict, schema_problems, seal_mistakes
from miniverl.bench.validate_identity import identity_mistakes
from miniverl.bench.validate_launch import launch_mistakes
from miniverl.bench.validate_v1 import migration_mistakes, mistakes_v1
from miniverl.engine.problem import Refused

Json = Mapping[str, Any]

_PLACEHOLDER = re.compile(r"@[A-Z][A-Z0-9_]*@|\$\{[^}]*\}")
_QUOTED = {"env", "ext", "message", "reason"}
_LARGEST = 1e100


def load(path: Path) -> dict[str, Any]:
    """The valid record in `path`; raises WrongCall (no such file) or Refused (every finding)."""
    record = load_strict(path)
    problems = validate(record, str(path))
    if problems:
        raise Refused(problems)
    return record


def validate(record: Json, origin: str = "record") -> Sequence[Finding]:
    """Every finding of the record. Empty: the record is valid."""
    problems = schema_problems(record, origin)
    if problems:
        return problems
    return [finding(code, mistake, origin) for code, mistake in _mistakes(record)]


def _mistakes(record: Json) -> Iterator[Coded]:
    beyond = list(coded("beyond_precision", _immeasurable(record)))
    if beyond:  # nothing can be computed from them
        yield from beyond
        return
    yield from coded("placeholder", _placeholders(record))
    yield from coded("no_such_time", _time(record))
    if record["schema_version"] == 1:
        yield from mistakes_v1(record)
    elif "migrated_from" in record:
        yield from migration_mistakes(record)
        yield from coded("seal_broken", seal_mistakes(record))
    else:
        yield from coded("derived_differs", differences(record, derived(record)))
        yield from launch_mistakes(record)
        yield from coded("contradiction", _status(record))
        yield from coded("contradiction", _resume(record))
        yield from coded("contradiction", determinism.mistakes(record))
        yield from identity_mistakes(record)
        yield from coded("seal_broken", seal_mistakes(record))
    yield from private(record)


def differences(found: Any, expected: Any, *path: str | int) -> Iterator[Mistake]:
    """Where `found` is not what follows. Fields of `found` that are not derived are left alone."""
    if isinstance(expected, list) and isinstance(found, list) and len(found) == len(expected):
        for index, (one, other) in enumerate(zip(found, expected, strict=True)):
            yield from differences(one, other, *path, index)
    elif isinstance(expected, Mapping) and isinstance(found, Mapping):
        for name, value in expected.items():
            if name in found:
                yield from differences(found[name], value, *path, name)
            else:
                yield Mistake(pointer(*path, name), None, _expected(value), value)
        if path and path[-1] in _WHOLLY_DERIVED:
            for name in sorted(found.keys() - expected.keys()):
                yield Mistake(pointer(*path, name), found[name], "does not follow from the record")
    elif isinstance(found, bool) != isinstance(expected, bool) or found != expected:
        yield Mistake(pointer(*path), found, _expected(expected), expected)


# Mappings without a field that was measured: what does not follow has no place in them.
_WHOLLY_DERIVED = {
    "checkpoint_hashes",
    "env",
    "inputs",
    "metrics_mean",
    "steady_state_median_seconds",
    "steady_state_median_throughput",
    "total_seconds",
    "total_tokens",
    "training_metrics",
    "treatment",
    "validation_metrics",
    "validation_metrics_mean",
}


def _expected(value: Any) -> str:
    return f"does not follow from the record: expected {value!r}"


def _placeholders(value: Any, *path: str | int) -> Iterator[Mistake]:
    """Text that some template left unfilled. What people and programs said may speak of one."""
    if isinstance(value, Mapping):
        for name, each in value.items():
            if name not in _QUOTED:
                yield from _placeholders(each, *path, name)
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from _placeholders(each, *path, index)
    elif isinstance(value, str) and (unfilled := _PLACEHOLDER.search(value)):
        yield Mistake(pointer(*path), value, f"holds the unresolved placeholder {unfilled[0]}")


def _immeasurable(value: Any, *path: str | int) -> Iterator[Mistake]:
    """Numbers whose squares are beyond double precision."""
    if isinstance(value, Mapping):
        for name, each in value.items():
            yield from _immeasurable(each, *path, name)
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from _immeasurable(each, *path, index)
    elif isinstance(value, int | float) and abs(value) > _LARGEST:
        yield Mistake(pointer(*path), value, f"beyond {_LARGEST:.0e}, which nothing measured is")


def _time(record: Json) -> Iterator[Mistake]:
    try:
        datetime.strptime(record["measured_at"], "%Y-%m-%dT%H:%M:%SZ")
    except ValueError:
        yield Mistake("/measured_at", record["measured_at"], "no such day or time")


def _status(record: Json) -> Iterator[Mistake]:
    """A status has its reasons, and `measured` has everything that was planned."""
    is_measured = record["status"] == "measured"
    for name in ("reason_code", "reason"):
        if is_measured == (record[name] is not None):
            rule = "a measured record has none" if is_measured else "says nothing of the status"
            yield Mistake(f"/{name}", record[name], rule)
    if not is_measured:
        return
    straight = [each for each in record["launches"] if each["role"] == "straight"]
    asked = record["workload"]["launches"]
    if len(straight) != asked:
        found = f"{len(straight)} straight launches"
        yield Mistake(
            "/launches", found, f"the workload asked for {asked}, and the status is measured"
        )
    for index, launch in enumerate(record["launches"]):
        for name, wanted in (("is_finished", True), ("exit_code", 0)):
            if launch["role"] != "interrupted" and launch[name] != wanted:
                field = pointer("launches", index, name)
                yield Mistake(field, launch[name], "the record's status is measured", wanted)
    for name, kept in record["resource_contract"].items():
        if kept is False:
            field = pointer("resource_contract", name)
            yield Mistake(field, False, "the record's status is measured, not contract_exceeded")


def _resume(record: Json) -> Iterator[Mistake]:
    """The verdict of the resume check and what it was drawn from."""
    resume = record["resume"]
    status, first = resume["status"], resume["first_difference"]
    differing = resume["differing_files"]
    if (status == "mismatch") != bool(differing):
        yield Mistake("/resume/differing_files", differing, f"the resume status is {status}")
    if (first is not None) != bool(differing) or (first and first["file"] not in differing):
        yield Mistake("/resume/first_difference", first, "is not among the differing files")
    if (status == "not_checked") != (resume["reason"] is not None):
        yield Mistake("/resume/reason", resume["reason"], f"the resume status is {status}")
    roles = {launch["role"] for launch in record["launches"]}
    if status != "not_checked" and not {"straight", "interrupted", "resumed"} <= roles:
        yield Mistake(
            "/resume/status", status, "a launch that this takes is not among the launches"
        )
    if record["status"] == "measured":
        is_checked = status != "not_checked"
        if is_checked != record["workload"]["checks_resume"]:
            planned = record["workload"]["checks_resume"]
            yield Mistake("/resume/status", status, f"the workload says checks_resume {planned}")
