"""The official scripts read again from a checkout of verl: the same overrides as the corpus has, or what differs."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from miniverl.compiler import scripts
from miniverl.compiler.corpus_cases import Case, Readme
from miniverl.compiler.scripts import Given
from miniverl.engine.problem import Problem, Problems, WrongCall


@dataclass(frozen=True, kw_only=True, slots=True)
class Reread:
    """`differences` are sentences; `is_same_file` says whether the script has the bytes that the corpus names."""

    case: str
    is_same_file: bool
    differences: tuple[str, ...]


def reread(cases: Sequence[Case], checkout: Path) -> tuple[Reread, ...]:
    """Each official case against its script in the checkout; raises WrongCall for what is no checkout."""
    absent = [case for case in cases if not (checkout / case.source.source_path).is_file()]
    if absent:
        raise WrongCall([_absent(case, checkout) for case in absent])
    return tuple(_reread(case, checkout) for case in cases)


def plain(read: Sequence[Reread]) -> list[dict[str, Any]]:
    return [
        {
            "differences": list(one.differences),
            "is_same_file": one.is_same_file,
            "name": one.case,
        }
        for one in read
    ]


def _reread(case: Case, checkout: Path) -> Reread:
    path = checkout / case.source.source_path
    readme = case.reading.readme
    is_same = _sha256(path) == case.source.source_sha256
    if readme is not None:
        text = checkout / readme.path
        is_same = is_same and text.is_file() and _sha256(text) == readme.sha256
    return Reread(
        case=case.name, is_same_file=is_same, differences=tuple(_differences(case, checkout))
    )


def _differences(case: Case, checkout: Path) -> Iterator[str]:
    readme = case.reading.readme
    try:
        found = _overrides(case, checkout / case.source.source_path)
    except Problems as error:
        yield from map(str, error.problems)
        return
    expected = list(case.overrides)
    if readme is not None:
        yield from _missing_from(readme, checkout)
        expected = expected[: len(expected) - len(readme.overrides)]
    for number, (ours, theirs) in enumerate(zip_longest(expected, found), 1):
        if ours != theirs:
            yield f"override {number} is {theirs or 'not there'}, and {ours or 'none'} in the corpus"


def _overrides(case: Case, path: Path) -> list[str]:
    """What the script hands over, with the corpus's date in the place of a time stamp."""
    given = Given(environment=case.reading.environment, arguments=(), number=None)
    launch = scripts.read(path, given)
    date = case.reading.date
    values = {
        unknown.name: date if date and unknown.name.startswith("$(date") else unknown.shown
        for unknown in launch.unknowns
    }
    return [one.bound(values) for one in launch.overrides]


def _missing_from(readme: Readme, checkout: Path) -> Iterator[str]:
    """Each override of the section stands in it as it is."""
    path = checkout / readme.path
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    _, heading, below = text.partition(f"{readme.section}\n")
    if not heading:
        yield f"{readme.path} has no section {readme.section!r}"
        return
    level = readme.section.partition(" ")[0]
    section = below.partition(f"\n{level} ")[0]
    for override in readme.overrides:
        if override not in section:
            yield f"{override} is not in {readme.section!r} of {readme.path}"


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _absent(case: Case, checkout: Path) -> Problem:
    return Problem(
        field="--upstream",
        value=str(checkout),
        origin="command line",
        reason=f"it has no {case.source.source_path}, which the case {case.name} is read from",
        fix=f"Give a checkout of verl {case.source.verl}, examples included",
    )
