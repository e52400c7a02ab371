"""Publication: a record that holds is copied to its place in the folder of results, and listed. Nothing is uploaded.

A commit and a push, which a person makes, are what others see.
"""

import fcntl
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from miniverl.bench import privacy
from miniverl.bench.finding import finding
from miniverl.bench.results import (
    INDEX,
    RECORDS,
    Entry,
    Review,
    entry_of,
    index_document,
    read_index,
)
from miniverl.bench.validate import load
from miniverl.compiler.whole import json_text, write_json, write_text
from miniverl.engine.problem import Problem, Problems, Refused

Json = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Published:
    entry: Entry
    path: Path
    is_new: bool  # False: it stood there already, under this review state


def publish(
    paths: Sequence[Path], results: Path, *, review: Review | None, as_is: bool
) -> list[Published]:
    """Copy the records to their places, and list them: all, or none. A record twice is the same as once.

    `review` None: as it is listed already, else community_submitted. Raises Refused for records that are not
    valid or tell what is private, and, unless `as_is`, for those of a dirty tree, or of another card or stack
    than the profile names.
    """
    records: list[Json] = []
    problems: list[Problem] = []
    for path in paths:
        try:
            records.append(load(path))
        except Refused as error:
            problems += error.problems
        else:
            problems += _unpublishable(records[-1], path, as_is)
    if problems:
        raise Refused(problems)
    with _alone(results):
        return [
            _place(record, path.read_bytes().decode("utf-8"), results, review)
            for record, path in zip(records, paths, strict=True)
        ]


def _place(record: Json, text: str, results: Path, review: Review | None) -> Published:
    entries = read_index(results)
    entry = entry_of(record, review or "community_submitted")
    listed, place = entries.get(entry.path), results / entry.path
    if listed is not None and review is None:
        entry = replace(entry, review=listed.review)
    is_new = listed != entry or not place.exists()
    if is_new:
        write_text(place, text)
        write_json(results / INDEX, index_document({**entries, entry.path: entry}))
    return Published(entry=entry, path=place, is_new=is_new)


def _unpublishable(record: Json, path: Path, as_is: bool) -> Iterator[Problem]:
    for code, mistake in privacy.named(record, privacy.own_names()):
        yield finding(code, mistake, str(path))
    fix = "Measure it again as it should be, or state it with --as-is"
    if record.get("source_dirty") and not as_is:
        reason = "the tree had changes that are in no commit: nobody can repeat it"
        yield Problem(field="/source_dirty", value=True, origin=str(path), reason=reason, fix=fix)
    if record.get("class") == "unofficial" and not as_is:
        reason = "another card or stack than the profile names"
        yield Problem(field="/class", value="unofficial", origin=str(path), reason=reason, fix=fix)


def check(results: Path) -> list[Problem]:
    """Every record that is not valid or not in its place, and every line of the index that is not of one."""
    problems: list[Problem] = []
    entries, seen = read_index(results), set()
    for path in sorted((results / RECORDS).rglob("*.json")):
        name = path.relative_to(results).as_posix()
        seen.add(name)
        try:
            record = load(path)
        except Problems as error:
            problems += error.problems
            continue
        problems += _out_of_place(record, name, entries.get(name))
    for name in sorted(entries.keys() - seen):
        problems.append(_problem(name, "listed", "there is no such file", "Publish it again"))
    if entries and (results / INDEX).read_text("utf-8") != json_text(index_document(entries)):
        problems.append(_problem(INDEX, None, "is not canonical JSON", "Publish a record again"))
    return problems


def _out_of_place(record: Json, name: str, listed: Entry | None) -> Iterator[Problem]:
    if listed is None:
        yield _problem(name, "not listed", "no line of the index is of it", "Publish it again")
        return
    expected = entry_of(record, listed.review)
    if listed != expected:
        reason = f"the index does not say what follows from it: expected {expected}"
        yield _problem(name, str(listed), reason, "Publish it again")


@contextmanager
def _alone(results: Path) -> Iterator[None]:
    """Two publications at once: one waits, and neither loses the other's line."""
    results.mkdir(parents=True, exist_ok=True)
    folder = os.open(results, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _problem(field: str, value: object, reason: str, fix: str) -> Problem:
    return Problem(field=field, value=value, origin=INDEX, reason=reason, fix=fix)
