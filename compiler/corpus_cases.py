"""The cases of the corpus: upstream's official launches, and launches derived from them.

Their data stand in corpus_cases.yaml, the official overrides in launches/*.yaml.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from ruamel.yaml import YAML

from miniverl.compiler.source import Launch, launch

FOLDER = files("miniverl.compiler")


@dataclass(frozen=True, kw_only=True, slots=True)
class Readme:
    """Overrides that a text beside the script adds."""

    path: str
    section: str
    sha256: str
    overrides: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """What an official script was read with: variables, and what stands for its time stamp."""

    environment: Mapping[str, str]
    date: str | None
    readme: Readme | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """`overrides` are all of them, the launch's first. `resolved_sha256` None: it does not compose."""

    name: str
    launch: str
    shows: str | None  # None: an official launch as it is
    overrides: tuple[str, ...]
    added: tuple[str, ...]
    expected: str  # accepted, rejected or does_not_compose
    resolved_sha256: str | None
    reading: Reading

    @property
    def source(self) -> Launch:
        return launch(self.launch)


@dataclass(frozen=True, kw_only=True, slots=True)
class Corpus:
    """`resolved_files`: what the profile of resolved files says of cases besides the official ones."""

    cases: tuple[Case, ...]
    further: tuple[Case, ...]
    resolved_files: Mapping[str, str]
    published_subset: Mapping[str, int]

    @property
    def official(self) -> tuple[Case, ...]:
        return tuple(case for case in self.cases if case.shows is None)


def corpus() -> Corpus:
    """The corpus as it is packaged."""
    plain = YAML(typ="safe").load((FOLDER / "corpus_cases.yaml").read_text(encoding="utf-8"))
    readings = {name: _reading(one) for name, one in plain["official"].items()}
    official = (_official(name, one, readings) for name, one in plain["official"].items())
    derived = (_derived(name, one, readings) for name, one in plain["derived"].items())
    further = (
        _derived(name, {**one, "expected": "accepted"}, readings)
        for name, one in plain["further"].items()
    )
    return Corpus(
        cases=(*official, *derived),
        further=tuple(further),
        resolved_files=plain["resolved_files"],
        published_subset=plain["published_subset"],
    )


def _reading(plain: Mapping[str, Any]) -> Reading:
    readme = plain["readme"]
    return Reading(
        environment=plain["environment"],
        date=plain["date"],
        readme=readme and Readme(**{**readme, "overrides": tuple(readme["overrides"])}),
    )


def _official(name: str, plain: Mapping[str, Any], readings: Mapping[str, Reading]) -> Case:
    return Case(
        name=name,
        launch=name,
        shows=None,
        overrides=launch(name).overrides,
        added=(),
        expected="accepted",
        resolved_sha256=plain["resolved_sha256"],
        reading=readings[name],
    )


def _derived(name: str, plain: Mapping[str, Any], readings: Mapping[str, Reading]) -> Case:
    base, added = plain["launch"], tuple(plain["overrides"])
    return Case(
        name=name,
        launch=base,
        shows=plain["shows"],
        overrides=(*launch(base).overrides, *added),
        added=added,
        expected=plain["expected"],
        resolved_sha256=plain["resolved_sha256"],
        reading=readings[base],
    )
