"""Where a pin stands in the cache, and how a record names it; nothing here fetches or loads a library."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from miniverl.bench import cache
from miniverl.bench.comparability import sha256_of
from miniverl.bench.measure import NOT_SUPPORTED
from miniverl.bench.pin import (
    DerivedPin,
    GeneratedPin,
    GgufPin,
    GitPin,
    HubPin,
    HubRowsPin,
    LocalPin,
    Pin,
    RowsPin,
    ShapePin,
    TemplatedPin,
    UpstreamPin,
    pin,
)
from miniverl.compiler import upstream

FETCHED = "fetched.json"  # of a dataset on the Hub: the file that each split was made from


def place(name: str, chosen: Pin) -> Path:
    """Where `chosen` stands in the cache, whether it is there or not."""
    match chosen:
        case UpstreamPin():
            return upstream.cache_dir() / "upstream" / name
        case GitPin():
            return upstream.cache_dir() / "sources" / f"{name}-{chosen.commit[:12]}"
        case HubPin():
            return upstream.cache_dir() / "models" / f"{name}-{chosen.revision[:12]}"
        case GgufPin() | DerivedPin() | ShapePin():
            return upstream.cache_dir() / "models" / f"{name}-{content_sha256(chosen)[:12]}"
        case GeneratedPin() | TemplatedPin():
            return upstream.cache_dir() / "data" / f"{name}-{content_sha256(chosen)[:12]}"
        case HubRowsPin():
            return upstream.cache_dir() / "data" / f"{name}-{chosen.revision[:12]}"
        case LocalPin():
            return upstream.cache_dir() / "data" / name


def content_sha256(chosen: GgufPin | DerivedPin | ShapePin | RowsPin) -> str:
    """One digest over all that a pin says of its content."""
    match chosen:
        case GgufPin() | DerivedPin() | ShapePin():
            return sha256_of({"weights": chosen.weights_sha256, "files": dict(chosen.files)})
        case GeneratedPin() | TemplatedPin() | LocalPin():
            return sha256_of({name: split.sha256 for name, split in chosen.splits.items()})


def input_of(name: str) -> dict[str, Any]:
    """How a record's `inputs` name a pin that was fetched."""
    chosen = pin(name)
    stated: dict[str, Any] = {"pin": name, "licence": chosen.licence, "source": source_of(chosen)}
    stated |= {"pin_state": "known", "digest_of": "content"}
    match chosen:
        case UpstreamPin():
            release = upstream.PINS[chosen.version]
            stated |= {"kind": "upstream", "sha256": release.tree_sha256}
            return stated | {"bytes": release.wheel.bytes, "rows": NOT_SUPPORTED}
        case GgufPin() | DerivedPin() | ShapePin():
            stated |= {"kind": "model", "sha256": content_sha256(chosen), "rows": NOT_SUPPORTED}
        case GeneratedPin() | TemplatedPin() | LocalPin():
            rows = sum(split.rows for split in chosen.splits.values())
            stated |= {"kind": "data", "sha256": content_sha256(chosen), "rows": rows}
            stated |= {"pin_state": "bound"} if isinstance(chosen, LocalPin) else {}
        case HubRowsPin():
            rows = sum(split.rows for split in chosen.splits.values())
            is_known = all(split.sha256 for split in chosen.splits.values())
            stated |= {"kind": "data", "sha256": _fetched_sha256(name, chosen), "rows": rows}
            stated |= {"pin_state": "known" if is_known else "first_fetch", "digest_of": "file"}
        case GitPin():
            files = {path: file["sha256"] for path, file in _manifest(name, chosen).items()}
            stated |= {"kind": "upstream", "sha256": sha256_of(files), "rows": NOT_SUPPORTED}
        case HubPin():
            files = {path: file["sha256"] for path, file in _manifest(name, chosen).items()}
            is_known = files.keys() == chosen.files.keys()
            stated |= {"kind": "model", "sha256": sha256_of(files), "rows": NOT_SUPPORTED}
            stated |= {"pin_state": "known" if is_known else "first_fetch", "digest_of": "file"}
    return stated | {"bytes": sum(file["bytes"] for file in _manifest(name, chosen).values())}


def files_sha256(files: Mapping[str, str]) -> str:
    """One digest over those of a dataset's files, by split."""
    return sha256_of(dict(files))


def _fetched_sha256(name: str, chosen: HubRowsPin) -> str:
    """What was fetched: `chosen` need not name it."""
    fetched = json.loads((place(name, chosen) / FETCHED).read_text("utf-8"))
    return files_sha256({split: file["sha256"] for split, file in fetched.items()})


def source_of(chosen: Pin) -> str:
    """Where it came from, in a word or two."""
    match chosen:
        case UpstreamPin():
            return f"verl {chosen.version}"
        case GgufPin():
            return f"{chosen.wheel.name} {chosen.wheel.version}"
        case DerivedPin():
            head = "" if chosen.head_seed is None else f", head of seed {chosen.head_seed}"
            return f"{chosen.base}, {chosen.layers} layers{head}"
        case GitPin():
            return f"{chosen.repository}@{chosen.commit}"
        case ShapePin():
            return f"weights of seed {chosen.seed}, tokenizer of {chosen.tokenizer}"
        case HubPin() | HubRowsPin():
            return f"{chosen.repository}@{chosen.revision}"
        case LocalPin():
            return "local"
        case GeneratedPin():
            return f"{chosen.generator.distribution} {chosen.generator.version}"
        case TemplatedPin():
            return f"{len(chosen.templates)} templates of miniverl's own, {len(chosen.numbers)} pairs of numbers"


def _manifest(name: str, chosen: Pin) -> dict[str, dict[str, Any]]:
    return cache.manifest(place(name, chosen))
