"""What `compare A B` is given: a record, a folder of records, or the id of a published environment.

The records of a side are grouped by what they measured, and each group is held against the same of the other side.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from miniverl.bench.comparability import comparability
from miniverl.bench.record import load_strict
from miniverl.bench.results import INDEX, digest_of, published_paths, read_index
from miniverl.bench.validate import load
from miniverl.compiler.suggest import did_you_mean
from miniverl.engine.problem import Problem, Problems, Refused, WrongCall

Json = Mapping[str, Any]
Group = Sequence[Json]

_ENVIRONMENT = re.compile(r"[0-9a-f]{12}")
_FIELDS_OF_A_RECORD = {"schema_version", "kind", "measurements"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Matched:
    """`pairs`: groups of the same work. Where there is none, the two that come nearest."""

    pairs: Sequence[tuple[Group, Group]]
    only_a: Sequence[str]  # workloads
    only_b: Sequence[str]


def sides(arguments: Sequence[str], results: Path) -> list[list[Json]]:
    """The records that each argument names, or every problem of all of them."""
    loaded: list[list[Json]] = []
    refusals: list[Problems] = []
    for argument in arguments:
        try:
            loaded.append(_records(argument, results))
        except Refused as error:
            refusals.append(error)
    if refusals:
        raise Refused(problem for error in refusals for problem in error.problems)
    return loaded


def match(a: Sequence[Json], b: Sequence[Json]) -> Matched:
    of_a, of_b = _groups(a), _groups(b)
    shared = [key for key in of_a if key in of_b]
    if shared:
        return Matched(
            pairs=[(of_a[key], of_b[key]) for key in shared],
            only_a=[_workload(group) for key, group in of_a.items() if key not in shared],
            only_b=[_workload(group) for key, group in of_b.items() if key not in shared],
        )
    nearest = next(
        ((x, y) for x in of_a.values() for y in of_b.values() if _workload(x) == _workload(y)),
        (next(iter(of_a.values())), next(iter(of_b.values()))),
    )
    return Matched(pairs=[nearest], only_a=[], only_b=[])


def unmatched(matched: Matched) -> Iterator[str]:
    """What stands on one side only."""
    for side, workloads in (("A", matched.only_a), ("B", matched.only_b)):
        if workloads:
            yield f"only in {side}: {', '.join(workloads)}"


def _records(argument: str, results: Path) -> list[Json]:
    path = Path(argument)
    if path.is_dir():
        found = _all_valid(_record_paths(path))
        if not found:
            raise WrongCall([_problem(argument, "no record is in this folder", "Name another one")])
        return found
    if not path.exists() and _ENVIRONMENT.fullmatch(argument):
        published = published_paths(results, argument)
        if not published:
            known = sorted({entry.environment for entry in read_index(results).values()})
            fix = did_you_mean(argument, known, f"Known: {', '.join(known) or 'none'}")
            reason = f"{results / INDEX} lists no such environment"
            raise WrongCall([_problem(argument, reason, fix)])
        return _all_valid(published)
    return [load(path)]


def _all_valid(paths: Sequence[Path]) -> list[Json]:
    """Each record once: a folder may hold a copy of its latest one."""
    unique: dict[str, Json] = {}
    problems: list[Problem] = []
    for path in paths:
        try:
            record = load(path)
        except Refused as error:
            problems += error.problems
        else:
            unique.setdefault(digest_of(record), record)
    if problems:
        raise Refused(problems)
    return list(unique.values())


def _record_paths(folder: Path) -> list[Path]:
    """Records stand among recipes, reports and indexes."""
    return [path for path in sorted(folder.rglob("*.json")) if _looks_like_a_record(path)]


def _looks_like_a_record(path: Path) -> bool:
    try:
        return load_strict(path).keys() >= _FIELDS_OF_A_RECORD
    except Refused:
        return False


def _groups(records: Sequence[Json]) -> dict[str, list[Json]]:
    groups: dict[str, list[Json]] = {}
    for record in records:
        groups.setdefault(comparability(record)["key_sha256"], []).append(record)
    return groups


def _workload(group: Group) -> str:
    name: str = comparability(group[0])["key"]["workload"]
    return name


def _problem(argument: str, reason: str, fix: str) -> Problem:
    return Problem(field="A, B", value=argument, origin="command line", reason=reason, fix=fix)
