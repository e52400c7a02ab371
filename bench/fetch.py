"""Pinned inputs in the cache: fetched once, whole or not at all, and verified against their pins.

The second call only compares sizes and times. `check` reads every byte again and never downloads.
"""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

from miniverl.bench import cache
from miniverl.bench.entry import place
from miniverl.bench.pin import (
    DerivedPin,
    GeneratedPin,
    GgufPin,
    GitPin,
    HubPin,
    HubRowsPin,
    LocalPin,
    Pin,
    ShapePin,
    TemplatedPin,
    UpstreamPin,
    require,
)
from miniverl.compiler import upstream
from miniverl.compiler.upstream import Progress, quiet
from miniverl.engine.problem import CannotHere, Problem, Problems, Refused


class Source(Protocol):
    """The module of one kind of pin; it alone loads the libraries that the kind needs."""

    def fill(self, pin: Pin, folder: Path, progress: Progress) -> None:
        """Write all files of `pin` into the empty `folder`."""

    def wrong_content(self, pin: Pin, folder: Path) -> list[Problem]:
        """What in `folder` is not as the pin says."""


_AT_ONCE = 4  # most of the time is spent waiting for a server

_SOURCES = {
    GgufPin: "miniverl.bench.gguf",
    GitPin: "miniverl.bench.git_tree",
    DerivedPin: "miniverl.bench.derived",
    ShapePin: "miniverl.bench.shape",
    HubPin: "miniverl.bench.hub",
    GeneratedPin: "miniverl.bench.prompts",
    TemplatedPin: "miniverl.bench.prompts",
    HubRowsPin: "miniverl.bench.hub_rows",
    LocalPin: "miniverl.bench.prompts",
}


def fetch(names: Iterable[str], progress: Progress) -> dict[str, Path]:
    """The folder of every named pin, fetched where it is missing, several at once.

    Raises WrongCall for unknown names, CannotHere where something cannot be had, Refused for wrong bytes; with all
    that went wrong, and what could be had is there.
    """
    wanted = require(names)
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        running = {
            name: threads.submit(_fetched, name, chosen, progress)
            for name, chosen in wanted.items()
        }
    failed = [each.exception() for each in running.values()]
    _raise_all([error for error in failed if error is not None])
    return {name: each.result() for name, each in running.items()}


def _raise_all(errors: Iterable[BaseException]) -> None:
    """One exception with the problems of all: wrong bytes are worse than none."""
    problems: dict[type[Problems], list[Problem]] = {}
    for error in errors:
        if not isinstance(error, Problems):
            raise error
        problems.setdefault(type(error), []).extend(error.problems)
    if problems:
        kind = Refused if Refused in problems else next(iter(problems))
        raise kind(problem for each in problems.values() for problem in each)


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
        source = _source(chosen)
        with cache.arriving(entry) as folder:
            source.fill(chosen, folder, progress)
            problems = source.wrong_content(chosen, folder)
            if problems:
                raise Refused(problems)
    return entry


def _checked(name: str, chosen: Pin) -> list[Problem]:
    entry = place(name, chosen)
    if not entry.exists():
        return [_not_fetched(name, entry)]
    try:
        if isinstance(chosen, UpstreamPin):
            upstream.tree(chosen.version, quiet)
            return []
        with cache.locked(entry):
            damage = cache.damage(entry, trusts_times=False)
            return damage or _source(chosen).wrong_content(chosen, entry)
    except Problems as error:
        return list(error.problems)


def _source(chosen: Pin) -> Source:
    module = _SOURCES[type(chosen)]
    try:
        return cast(Source, import_module(module))
    except ModuleNotFoundError as error:
        problem = Problem(
            field=chosen.title,
            value=error.name,
            origin="installed packages",
            reason=f"fetching it needs {error.name}, which is not installed",
            fix="Run make setup",
        )
        raise CannotHere([problem]) from error


def _not_fetched(name: str, entry: Path) -> Problem:
    return Problem(
        field=name,
        value=None,
        origin=str(entry),
        reason="it has not been fetched",
        fix=f"miniverl fetch {name}",
    )
