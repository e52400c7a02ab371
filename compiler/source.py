"""A launch as upstream would see it: every leaf of the composed config, and where each was set.

Hydra composes in a process of its own (compose.py), with an environment that holds nothing of the user's,
so that the same overrides mean the same config on every machine.
"""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.metadata import version as installed_version
from importlib.resources import files
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from miniverl.compiler import upstream
from miniverl.compiler.faults import composition_problems, out_of_the_tree, placeholder_problems
from miniverl.compiler.lacks import LACKS
from miniverl.compiler.leaf import nested, parents
from miniverl.compiler.suggest import did_you_mean
from miniverl.compiler.user_tree import UserTree
from miniverl.compiler.whole import json_text, write_json
from miniverl.engine.problem import CannotHere, Problem, Refused, WrongCall

MANDATORY = "???"  # upstream's mark of a leaf that has no value until somebody sets one
LAUNCHES = files("miniverl.compiler") / "launches"


@dataclass(frozen=True, slots=True)
class Override:
    """`key=value` in Hydra's grammar, and the place it was written at, for messages."""

    text: str
    origin: str

    @property
    def key(self) -> str:
        """`a.b` of `++a.b=1` and of `~a.b`; the place a config group goes to, of `group@a.b=name`."""
        name, _, package = self.text.lstrip("+~").partition("=")[0].strip().partition("@")
        return package or name

    def __str__(self) -> str:
        return f"{self.origin}: {self.text}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Script:
    """The script that a launch was read from, by its base name and the digest of its bytes.

    `frozen` are the leaves with an unknown that nothing reads, as the script writes them; `open` those with
    one that something does.
    """

    name: str
    sha256: str
    frozen: Mapping[str, Any]
    open: frozenset[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """A leaf is a scalar, a whole list or an empty mapping.

    `launched` are the leaves without what was stated on top of the launch, `defaults` those without any
    override. `origins` has the leaves of both `leaves` and `defaults`.
    """

    config_name: str
    leaves: Mapping[str, Any]
    origins: Mapping[str, str]
    launched: Mapping[str, Any]
    defaults: Mapping[str, Any]
    description: str
    sha256: str  # over the composed config as canonical JSON; over the bytes of a file
    notes: tuple[str, ...]
    stated: Mapping[str, Any] | None  # what a subset states, as it does; None: the whole config
    required: tuple[Problem, ...]  # what upstream leaves open, and nobody has set
    mends_missing: str  # the fix for a leaf that upstream's tree has and this lacks
    script: Script | None = None
    placeholders: frozenset[str] = frozenset()  # leaves that say <what to put there>

    @property
    def open(self) -> frozenset[str]:
        """Leaves whose value only the user can give; a placeholder stands there."""
        return self.placeholders | (self.script.open if self.script else frozenset())

    @property
    def with_defaults(self) -> "Source":
        """The source with upstream's own values in its open leaves; those that upstream lacks are dropped."""
        kept = {field: value for field, value in self.leaves.items() if field not in self.open}
        shipped = {field: self.defaults[field] for field in self.open if field in self.defaults}
        return replace(self, leaves={**kept, **shipped})


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """A launch script of upstream's, read once by a person: its overrides and the digest of the script."""

    verl: str
    commit: str
    entry_point: str
    config_name: str
    source_path: str
    source_sha256: str
    overrides: tuple[str, ...]


def numbered(texts: Sequence[str], where: str = "override") -> tuple[Override, ...]:
    """The overrides with their numbers, counted from 1, as origins."""
    return tuple(Override(text, f"{where} {number}") for number, text in enumerate(texts, 1))


def launch(name: str) -> Launch:
    """The launch in compiler/launches; raises WrongCall for an unknown name."""
    known = [path.name.removesuffix(".yaml") for path in LAUNCHES.iterdir()]
    if name not in known:
        raise WrongCall([_unknown("launch", name, known)])
    plain = YAML(typ="safe").load((LAUNCHES / f"{name}.yaml").read_text(encoding="utf-8"))
    return Launch(**{**plain, "overrides": tuple(plain["overrides"])})


def defaults(
    config_name: str, *, version: str, progress: upstream.Progress = upstream.quiet
) -> Mapping[str, Any]:
    """The leaves of a config as upstream ships it, with what a later release has on top of an older one's."""
    tree = upstream.tree(version, progress)
    return _shipped(tree, version, config_name)


def _shipped(tree: Path, version: str, config_name: str) -> dict[str, Any]:
    lacking = LACKS.get(version, {})
    return {**lacking, **_composed_once(tree, version, config_name, (), "defaults")}


def compose(
    config_name: str,
    stated: Sequence[Override],
    *,
    launched: Sequence[Override] = (),
    user_tree: UserTree | None = None,
    version: str,
    progress: upstream.Progress = upstream.quiet,
) -> Source:
    """The config that upstream's `main` would see with the overrides `stated` on top of those `launched`.

    Without `launched`, those stated are the launch. The files of a user's tree are found before upstream's.
    Raises Refused with everything that does not compose.
    """
    tree = upstream.tree(version, progress)
    trees = [tree] if user_tree is None else [user_tree.folder, tree]
    known = [path.stem for folder in trees for path in folder.glob("[!_]*.yaml")]
    if config_name not in known:
        raise WrongCall([_unknown("config name", config_name, known)])
    overrides = (*launched, *stated)
    finds = () if user_tree is None else user_tree.finds_upstream(overrides)
    if hostile := tuple(out_of_the_tree([one for one in overrides if one not in finds], trees)):
        raise Refused(hostile)
    heard = [one for one in overrides if not one.key.startswith("hydra.")]
    child = _ask(tree, config_name, heard, user_tree)
    shipped_as = config_name if user_tree is None else "ppo_trainer"
    shipped = _shipped(tree, version, shipped_as)
    lacking = LACKS.get(version, {})
    answer = _answer(child, user_tree)
    composed, interpolations = answer["leaves"], answer["interpolations"]
    leaves = {**lacking, **composed}
    notes = [
        f"{one}: it sets Hydra itself, and nothing here reads it"
        for one in overrides
        if one not in heard and one not in finds
    ]
    lines: Mapping[str, str] = {}
    if user_tree is not None:
        lines = user_tree.origins(answer["read"], config_name) if composed else {}
        notes += user_tree.notes(answer["searchpath"], finds, config_name)
    origins = dict(_origins({**shipped, **leaves}, interpolations, heard, lines))
    problems = [
        *composition_problems(answer, heard, origins, shipped, trees),
        *_missing(leaves, origins, shipped),
    ]
    if user_tree is not None:
        problems += user_tree.problems(answer["searchpath"], composed, shipped, config_name)
    if problems:
        raise Refused(problems)
    placeholders = tuple(placeholder_problems(composed, origins, shipped))
    where = "" if user_tree is None else f" in {user_tree.folder.name}, on the tree"
    return Source(
        config_name=config_name,
        leaves=leaves,
        origins=origins,
        launched={**lacking, **_composed_once(tree, version, config_name, launched, "launched")}
        if launched
        else leaves,
        defaults=shipped,
        description=f"{config_name}{where} of verl {version} with {len(overrides)} overrides",
        sha256=config_sha256(composed),
        notes=tuple(notes),
        stated=composed if lacking else None,
        # A copy of another leaf is as open as that one, and asked for there.
        required=tuple(one for one in placeholders if not one.origin.startswith("default ")),
        placeholders=frozenset(problem.field for problem in placeholders),
        mends_missing="Drop that override" if user_tree is None else "Leave it in its place",
    )


def config_sha256(leaves: Mapping[str, Any]) -> str:
    """Digest over the nested config as JSON: sorted keys, no spaces, numbers as Python writes them."""
    text = json.dumps(nested(leaves), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return _sha256(text)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _composed_once(
    tree: Path, version: str, config_name: str, overrides: Sequence[Override], name: str
) -> Mapping[str, Any]:
    """The leaves with overrides that stay the same from call to call, kept beside the tree."""
    kept = upstream.cache_dir() / "upstream" / f"verl-{version}" / f"{name}.json"
    key = {
        "config_name": config_name,
        "overrides": [override.text for override in overrides],
        "tree_sha256": upstream.tree_sha256(tree),
        "hydra": installed_version("hydra-core"),
        "omegaconf": installed_version("omegaconf"),
    }
    stored = _kept(kept)
    if stored is not None and stored["key"] == key:
        return dict(stored["leaves"])
    leaves = shipped_leaves(tree, config_name, overrides)
    known = {"key": key, "leaves": leaves}
    with suppress(CannotHere):  # where the cache may not be written, each call composes anew
        write_json(kept, {**known, "sha256": _sha256(json_text(known))})
    return leaves


def shipped_leaves(
    tree: Path, config_name: str, overrides: Sequence[Override] = ()
) -> dict[str, Any]:
    """The leaves of a tree of upstream's, whichever release it is of."""
    answer = _answer(_ask(tree, config_name, overrides, None), None)
    assert not answer["faults"], answer["faults"]
    return dict(answer["leaves"])


def _kept(path: Path) -> dict[str, Any] | None:
    """What was written there, if it still is that."""
    try:
        stored: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        written = stored.pop("sha256")
    except (OSError, ValueError, LookupError, AttributeError, TypeError):
        return None
    return stored if written == _sha256(json_text(stored)) else None


def _ask(
    tree: Path, config_name: str, overrides: Sequence[Override], user_tree: UserTree | None
) -> subprocess.Popen[str]:
    """The child that composes, with its request handed over; its environment holds nothing of the user's."""
    request = {
        "tree": str(tree),
        "user_tree": None if user_tree is None else str(user_tree.folder),
        "config_name": config_name,
        "overrides": [override.text for override in overrides],
    }
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", "miniverl.compiler.compose"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        cwd=tree,
        env={"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "LANG": "C.UTF-8"},
    )
    assert child.stdin is not None
    child.stdin.write(json.dumps(request))
    child.stdin.flush()
    return child


def _answer(child: subprocess.Popen[str], user_tree: UserTree | None) -> dict[str, Any]:
    """Raises Refused where it is a user's file that Hydra stumbles over."""
    output, errors = child.communicate()
    if child.returncode != 0 and user_tree is not None:
        raise Refused([user_tree.stumbled(errors)])
    assert child.returncode == 0, errors
    answer: dict[str, Any] = json.loads(output)
    return answer


def _origins(
    leaves: Mapping[str, Any],
    interpolations: Mapping[str, str],
    overrides: Sequence[Override],
    lines: Mapping[str, str],
) -> Iterator[tuple[str, str]]:
    """Where each leaf was set: the last override of it or above it, a line of the user's, else upstream's tree."""
    setters = {override.key: str(override) for override in overrides}
    for field in leaves:
        above = [field, *parents(field)]
        setter = next((setters[path] for path in above if path in setters), None)
        line = next((lines[path] for path in above if path in lines), None)
        if setter or line:
            yield field, str(setter or line)
        elif field in interpolations:
            yield field, f"default {interpolations[field]}"
        else:
            yield field, "default"


def _missing(
    leaves: Mapping[str, Any], origins: Mapping[str, str], shipped: Mapping[str, Any]
) -> Iterator[Problem]:
    for field, value in leaves.items():
        if value == MANDATORY and shipped.get(field) != MANDATORY:
            yield Problem(
                field=field,
                value=value,
                origin=origins[field],
                reason="??? marks a mandatory value that nobody has set",
                fix=f"Give {field} a value",
            )


def _unknown(kind: str, name: str, known: Sequence[str]) -> Problem:
    return Problem(
        field=kind,
        value=name,
        origin="command line",
        reason=f"there is no such {kind}",
        fix=did_you_mean(name, known, f"Known: {', '.join(sorted(known))}"),
    )
