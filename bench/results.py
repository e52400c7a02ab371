"""The folder of published records: where a record stands in it, and the index that lists them.

    results/index.json
    results/records/<gpu>/<workload>/<environment-id>/<measured at>-<digest>.json

Everything in the index follows from the records, but for the review state, which somebody decided.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

from miniverl.bench import show
from miniverl.bench.comparability import comparability, sha256_of
from miniverl.bench.record import load_strict
from miniverl.bench.version1 import version1
from miniverl.engine.problem import Problem, Refused

Json = Mapping[str, Any]
Review = Literal["maintainer_measured", "community_submitted", "reference"]

REVIEWS: tuple[Review, ...] = get_args(Review)
INDEX = "index.json"
RECORDS = "records"

_INDEX_VERSION = 1
_DIGITS = 12
_DEVICE = ("device", "device_model", "device_count", "device_memory_gib", "threads")


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """What the index says of one record. `path` is relative to the folder of results."""

    path: str
    record_sha256: str
    review: Review
    environment: str
    environment_title: str
    gpu: str
    workload: str
    record_class: str
    source_dirty: bool | None
    status: str
    measured_at: str
    launches: int


def entry_of(record: Json, review: Review) -> Entry:
    gpu, workload, environment = gpu_of(record), workload_of(record), environment_id(record)
    digest, time = digest_of(record), re.sub(r"[-:]", "", record["measured_at"])
    return Entry(
        path=f"{RECORDS}/{gpu}/{workload}/{environment}/{time}-{digest[:8]}.json",
        record_sha256=digest,
        review=review,
        environment=environment,
        environment_title=show.place(record),
        gpu=gpu,
        workload=workload,
        record_class=record.get("class", "migrated"),
        source_dirty=record.get("source_dirty"),
        status=record["status"],
        measured_at=record["measured_at"],
        launches=num_launches(record),
    )


def environment_id(record: Json) -> str:
    """Twelve digits of the sha256 over the device and the treatment (comparability.py) in RFC 8785 bytes.

    Equal: the same card or processor, threads, driver, CUDA, packages, kernel, container and code.
    """
    known = comparability(record)
    device = {name: known["key"][name] for name in _DEVICE if name in known["key"]}
    return sha256_of({"device": device, "treatment": known["treatment"]})[:_DIGITS]


def digest_of(record: Json) -> str:
    """A version 1 record carries none, so it is computed."""
    sha256: str = record.get("record_sha256") or sha256_of(record)
    return sha256


def gpu_of(record: Json) -> str:
    """The card as part of a path, or cpu."""
    gpu = record["hardware"]["gpu"]
    return "cpu" if gpu is None else re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-")


def workload_of(record: Json) -> str:
    original = version1(record)
    name: str = record["workload"]["name"] if original is None else original["kind"]
    return name


def num_launches(record: Json) -> int:
    """Straight ones: what a verdict counts."""
    if version1(record) is not None:
        return 1
    return sum(launch["role"] == "straight" for launch in record["launches"])


def read_index(results: Path) -> dict[str, Entry]:
    """The entries by path; empty where there is no index yet. Raises Refused for one that is none."""
    path = results / INDEX
    if not path.exists():
        return {}
    plain = load_strict(path)
    names = {each.name for each in fields(Entry)}
    rows = plain.get("records")
    is_known = plain.get("schema_version") == _INDEX_VERSION and isinstance(rows, list)
    if not is_known or not all(isinstance(r, dict) and r.keys() == names for r in rows or ()):
        problem = Problem(
            field=INDEX,
            value=str(path),
            origin=str(path),
            reason="is no index of records of this version",
            fix="Restore it, or move it away and publish the records again",
        )
        raise Refused([problem])
    assert isinstance(rows, list)
    entries = [Entry(**row) for row in rows]
    return {entry.path: entry for entry in entries}


def index_document(entries: Mapping[str, Entry]) -> dict[str, Any]:
    rows = [asdict(entries[path]) for path in sorted(entries)]
    return {"schema_version": _INDEX_VERSION, "records": rows}


def published_paths(results: Path, environment: str) -> list[Path]:
    """The records of an environment, by the index."""
    entries = read_index(results).values()
    return [results / entry.path for entry in entries if entry.environment == environment]
