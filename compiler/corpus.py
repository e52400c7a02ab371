"""The corpus compiled: for each case what becomes of its leaves, and what earlier profiles say of it.

The manifest holds all of it, and no path, no time and no machine: it is the same wherever it is computed.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import rfc8785

from miniverl.compiler import corpus_page, files, profiles, upstream
from miniverl.compiler import source as sources
from miniverl.compiler.bindings import parse
from miniverl.compiler.corpus_cases import FOLDER, Case, Corpus
from miniverl.compiler.lower import Compiled, compile_source
from miniverl.compiler.mapping import Document
from miniverl.compiler.profiles import Profile
from miniverl.compiler.report import problem_row
from miniverl.compiler.rule import REJECTING, Class
from miniverl.compiler.source import Source
from miniverl.compiler.whole import json_text
from miniverl.engine.problem import Problem, Refused

SCHEMA_VERSION = 1
RESOLVED = profiles.DEFAULTS["resolved"]
SUBSET = profiles.DEFAULTS["subset"]
_MANIFEST = Path(str(FOLDER / "corpus_manifest.json")).resolve()
_LOWERED = frozenset({Class.LOWERED, Class.DISTRIBUTED})

Write = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """A case, composed and judged by native Hydra's profile; `source` and `compiled` None: it does not compose."""

    case: Case
    source: Source | None
    compiled: Compiled | None
    problems: tuple[Problem, ...]

    @property
    def status(self) -> str:
        return "does_not_compose" if self.compiled is None else self.compiled.status

    @property
    def is_as_expected(self) -> bool:
        digest = None if self.source is None else self.source.sha256
        return (self.status, digest) == (self.case.expected, self.case.resolved_sha256)


def outcomes(
    cases: Sequence[Case],
    *,
    write: Write = lambda line: None,
    progress: upstream.Progress = upstream.quiet,
) -> tuple[Outcome, ...]:
    """The cases compiled one after the other; `write` gets a line for each."""
    done = []
    for case in cases:
        done.append(_outcome(case, progress))
        write(f"{case.name}: {done[-1].status.replace('_', ' ')}")
    return tuple(done)


def manifest(whole: Corpus, done: Sequence[Outcome], further: Sequence[Outcome]) -> dict[str, Any]:
    """Everything about the corpus as plain JSON values."""
    profile = profiles.named(None)
    return {
        "cases": [_row(one) for one in done],
        "counts": counts(done),
        "earlier": {
            RESOLVED: _by_resolved_files(whole, [*done, *further]),
            SUBSET: {
                "ours": _by_subset(done),
                "published": dict(whole.published_subset),
                "rule": "of each official launch the leaves that it states are judged as a subset states them; an "
                "occurrence is a stated leaf of a case that is rejected, or lowered to one device",
            },
        },
        "profile": profile.name,
        "schema_version": SCHEMA_VERSION,
        "verl": {"commit": profile.pin.commit, "tag": profile.pin.tag},
    }


def counts(done: Sequence[Outcome]) -> dict[str, int]:
    by_status = Counter(one.status for one in done)
    return {
        "cases": len(done),
        "composed": len(done) - by_status["does_not_compose"],
        "accepted": by_status["accepted"],
        "semantic_rejections": by_status["rejected"] + by_status["needs_user_input"],
        "composition_rejections": by_status["does_not_compose"],
    }


def checkout() -> Path | None:
    """Where this code lies in the repository; None where it was installed as a package."""
    root = _MANIFEST.parents[1]
    return root if (root / "pyproject.toml").is_file() else None


def files_of(plain: Mapping[str, Any]) -> dict[Path, str]:
    """What is stored of a manifest: itself, and in a checkout the page of the docs."""
    stored = {_MANIFEST: json_text(plain)}
    root = checkout()
    if root is not None:
        stored[root / "docs" / "compatibility.md"] = corpus_page.page(plain)
    return stored


def _outcome(case: Case, progress: upstream.Progress) -> Outcome:
    profile = profiles.named(None)
    try:
        source = sources.compose(
            case.source.config_name,
            sources.numbered(case.overrides),
            version=profile.verl,
            progress=progress,
        )
    except Refused as refused:
        return Outcome(case=case, source=None, compiled=None, problems=tuple(refused.problems))
    compiled = compile_source(source, parse([]), profile)
    return Outcome(case=case, source=source, compiled=compiled, problems=compiled.problems)


def _row(one: Outcome) -> dict[str, Any]:
    case, launch = one.case, one.case.source
    readme = case.reading.readme
    return {
        "added_overrides": list(case.added),
        "config_name": launch.config_name,
        "date": case.reading.date,
        "environment": dict(case.reading.environment),
        "is_as_expected": one.is_as_expected,
        "launch": case.launch,
        "name": case.name,
        "overrides": list(case.overrides),
        "problems": [problem_row(problem) for problem in one.problems],
        "readme": readme and {**asdict(readme), "overrides": list(readme.overrides)},
        "shows": case.shows,
        "source_path": launch.source_path,
        "source_sha256": launch.source_sha256,
        "status": one.status,
        **(_judged(one.source, one.compiled) if one.source and one.compiled else _NOT_JUDGED),
    }


_NOT_JUDGED: Mapping[str, Any] = {
    "classes": {},
    "findings_sha256": None,
    "leaves": None,
    "missing_bindings": [],
    "resolved_sha256": None,
    "stated": [],
    "warnings": [],
}


def _judged(source: Source, compiled: Compiled) -> dict[str, Any]:
    """The digest is over every row of the report, the rows themselves are those of what the launch states."""
    rows = compiled.report["field_classification"]
    classes = Counter(str(one.classification) for one in compiled.findings)
    return {
        "classes": dict(sorted(classes.items())),
        "findings_sha256": hashlib.sha256(rfc8785.dumps(rows)).hexdigest(),
        "leaves": len(source.leaves),
        "missing_bindings": list(compiled.execution.get("missing", ())),
        "resolved_sha256": source.sha256,
        "stated": [
            {
                "class": row["classification"],
                "field": row["upstream_field"],
                "local_target": row["local_target"],
                "reason": row["reason"],
            }
            for row in rows
            if _is_stated(row["upstream_field"], source)
        ],
        "warnings": list(compiled.warnings),
    }


def _is_stated(field: str, source: Source) -> bool:
    return source.origins[field].startswith("override ")


def _by_resolved_files(whole: Corpus, done: Sequence[Outcome]) -> dict[str, Any]:
    """The same configs as files, under the profile that keeps rejecting what it never took."""
    profile = profiles.called(RESOLVED)
    asked = [one for one in done if one.case.shows is None or one.case.name in whole.resolved_files]
    statuses = {
        one.case.name: compile_source(one.source, parse([]), profile).status
        for one in asked
        if one.source is not None
    }
    expected = {name: whole.resolved_files.get(name, "accepted") for name in statuses}
    return {
        "accepted": sum(status == "accepted" for status in statuses.values()),
        "cases": len(statuses),
        "is_as_expected": statuses == expected,
        "rejected": sum(status != "accepted" for status in statuses.values()),
        "statuses": statuses,
    }


def _by_subset(done: Sequence[Outcome]) -> dict[str, int]:
    profile = profiles.called(SUBSET)
    official = [one for one in done if one.case.shows is None]
    judged = [
        compile_source(_as_subset(one.source, one.case, profile), parse([]), profile)
        for one in official
        if one.source is not None
    ]
    classes = Counter(row for one in judged for row in _occurrences(one))
    return {
        "cases": len(judged),
        "executable": sum(one.execution["status"] == "executable" for one in judged),
        "lowered": classes["lowered"],
        "rejected": sum(one.status == "rejected" for one in judged),
        "sources": len({one.case.source.source_path for one in official}),
        "unimplemented": classes["unimplemented"],
    }


def _as_subset(source: Source, case: Case, profile: Profile) -> Source:
    """What the launch states, in the form of a file that states no more."""
    stated = {field: value for field, value in source.leaves.items() if _is_stated(field, source)}
    document = Document(
        name=f"{case.name}.yaml",
        leaves=stated,
        lines={field: number for number, field in enumerate(stated, 1)},
        sha256=sources.config_sha256(stated),
    )
    return files.subset(document, source.defaults, profile)


def _occurrences(compiled: Compiled) -> Iterator[str]:
    for finding in compiled.findings:
        if finding.classification in REJECTING:
            yield "unimplemented"
        elif finding.classification in _LOWERED:
            yield "lowered"
