"""A launch as upstream would see it: every leaf of the composed config, and where each was set.

Hydra composes in a process of its own (compose.py), with an environment that holds nothing of the user's,
so that the same overrides mean the same config on every machine.
"""

import hashlib
import json
import os
import re
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

from miniverl.compiler import legacy, upstream
from miniverl.compiler.leaf import nested, parents
from miniverl.compiler.suggest import did_you_mean, nearest
from miniverl.compiler.whole import json_text, write_json
from miniverl.engine.problem import CannotHere, Problem, Refused, WrongCall

MANDATORY = "???"  # upstream's mark of a leaf that has no value until somebody sets one
_LEADS_OUT = re.compile(r"(^|[/\\'\"\[,\s])\.\.([/\\'\"\],\s]|$)|^[\s'\"\[]*[/~]|://")
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

    @property
    def open(self) -> frozenset[str]:
        """Leaves whose value only the user can give; a placeholder stands there."""
        return self.script.open if self.script else frozenset()

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
    """The leaves of a config as upstream ships it."""
    return _composed_once(upstream.tree(version, progress), version, config_name, (), "defaults")


def compose(
    config_name: str,
    stated: Sequence[Override],
    *,
    launched: Sequence[Override] = (),
    version: str,
    progress: upstream.Progress = upstream.quiet,
) -> Source:
    """The config that upstream's `main` would see with the overrides `stated` on top of those `launched`.

    Without `launched`, those stated are the launch. Raises Refused with everything that does not compose.
    """
    tree = upstream.tree(version, progress)
    known = [path.stem for path in tree.glob("[!_]*.yaml")]
    if config_name not in known:
        raise WrongCall([_unknown("config name", config_name, known)])
    overrides = (*launched, *stated)
    if hostile := tuple(_out_of_the_tree(overrides, tree)):
        raise Refused(hostile)
    heard = [one for one in overrides if not one.key.startswith("hydra.")]
    child = _ask(tree, config_name, heard)
    shipped = _composed_once(tree, version, config_name, (), "defaults")
    answer = _answer(child)
    leaves, interpolations = answer["leaves"], answer["interpolations"]
    origins = dict(_origins({**shipped, **leaves}, interpolations, heard))
    problems = [
        *_composition_problems(answer, heard, origins, shipped, tree),
        *_missing(leaves, origins, shipped),
    ]
    if problems:
        raise Refused(problems)
    return Source(
        config_name=config_name,
        leaves=leaves,
        origins=origins,
        launched=_composed_once(tree, version, config_name, launched, "launched")
        if launched
        else leaves,
        defaults=shipped,
        description=f"{config_name} of verl {version} with {len(overrides)} overrides",
        sha256=config_sha256(leaves),
        notes=tuple(
            f"{one}: it sets Hydra itself, and nothing here reads it"
            for one in overrides
            if one not in heard
        ),
        stated=None,
        required=(),
        mends_missing="Drop that override",
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
        "tree_sha256": upstream.PINS[version].tree_sha256,
        "hydra": installed_version("hydra-core"),
        "omegaconf": installed_version("omegaconf"),
    }
    stored = _kept(kept)
    if stored is not None and stored["key"] == key:
        return dict(stored["leaves"])
    answer = _answer(_ask(tree, config_name, overrides))
    assert not answer["faults"], answer["faults"]
    known = {"key": key, "leaves": answer["leaves"]}
    with suppress(CannotHere):  # where the cache may not be written, each call composes anew
        write_json(kept, {**known, "sha256": _sha256(json_text(known))})
    return dict(answer["leaves"])


def _kept(path: Path) -> dict[str, Any] | None:
    """What was written there, if it still is that."""
    try:
        stored: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        written = stored.pop("sha256")
    except (OSError, ValueError, LookupError, AttributeError, TypeError):
        return None
    return stored if written == _sha256(json_text(stored)) else None


def _ask(tree: Path, config_name: str, overrides: Sequence[Override]) -> subprocess.Popen[str]:
    """The child that composes, with its request handed over; its environment holds nothing of the user's."""
    request = {
        "tree": str(tree),
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


def _answer(child: subprocess.Popen[str]) -> dict[str, Any]:
    output, errors = child.communicate()
    assert child.returncode == 0, errors
    answer: dict[str, Any] = json.loads(output)
    return answer


def _origins(
    leaves: Mapping[str, Any], interpolations: Mapping[str, str], overrides: Sequence[Override]
) -> Iterator[tuple[str, str]]:
    """Where each leaf was set: the last override of it or above it, else upstream's tree."""
    setters = {override.key: override for override in overrides}
    for field in leaves:
        above = [field, *parents(field)]
        setter = next((setters[path] for path in above if path in setters), None)
        if setter is not None:
            yield field, str(setter)
        elif field in interpolations:
            yield field, f"default {interpolations[field]}"
        else:
            yield field, "default"


def _composition_problems(
    answer: Mapping[str, Any],
    overrides: Sequence[Override],
    origins: Mapping[str, str],
    shipped: Mapping[str, Any],
    tree: Path,
) -> Iterator[Problem]:
    """Faults in the order of the overrides; without the leaves that only point at a faulty one."""
    values = {**answer["leaves"], **answer["interpolations"]}
    causes = [
        fault
        for fault in answer["faults"]
        if fault["override"] is not None
        or not origins.get(fault["field"], "").startswith("default ")
    ]
    last = len(overrides)
    for fault in sorted(
        causes, key=lambda one: last if one["override"] is None else one["override"]
    ):
        number, field, reason = fault["override"], fault["field"], fault["reason"]
        text = values[field] if number is None else overrides[number].text.partition("=")[2]
        yield Problem(
            field=field or "override",
            value=text,
            origin=origins[field] if number is None else str(overrides[number]),
            reason=reason,
            fix=_fix(field, str(text), reason, shipped, tree),
        )


def _fix(field: str, text: str, reason: str, shipped: Mapping[str, Any], tree: Path) -> str:
    """What mends a fault that Hydra or OmegaConf reported in its own words."""
    fields = {path for leaf in shipped for path in (leaf, *parents(leaf))}
    if "sweep" in reason:
        return f"Give one value; a list is {field}=[a,b], a string with commas {field}='a,b'"
    if "does not resolve" in reason:
        missing = reason.partition("key '")[2].partition("'")[0]
        close = nearest(missing, fields) if missing else None
        return f"Did you mean ${{{close}}}?" if close else "Write the value itself"
    if "append" in reason:
        return f"Write {field}={text} without the +"
    if "delete" in reason:
        return did_you_mean(field, fields, "Drop the override: there is nothing to take away")
    if "Available options" in reason or "onfig group" in reason:
        options = _groups(tree).get(field, [])
        return did_you_mean(text, options, f"Take one of {', '.join(options) or 'what is there'}")
    if reason.startswith("Could not") and (successor := legacy.fix(field)):
        return successor
    if reason.startswith("Could not"):
        return did_you_mean(field, fields, f"Write +{field}={text} if upstream reads such a key")
    if "finite" in reason:
        return "Give a finite number"
    return f"Follow Hydra's grammar: {field or 'name'}=value, strings with special characters in quotes"


def _out_of_the_tree(overrides: Sequence[Override], tree: Path) -> Iterator[Problem]:
    """Overrides that would compose files from elsewhere: only the pinned tree is known to the rules."""
    groups = _groups(tree)
    for override in overrides:
        group, _, text = override.text.lstrip("+~").partition("=")
        folder = group.partition("@")[0].strip()
        is_group = "/" in folder or folder in groups
        leads_out = bool(_LEADS_OUT.search(text)) or bool(_LEADS_OUT.search(folder))
        if override.key == "hydra.searchpath" or (is_group and leads_out):
            yield Problem(
                field=override.key,
                value=text,
                origin=str(override),
                reason="it takes config files from outside of the pinned tree",
                fix="Remove it, and state what those files hold as overrides",
            )


def _groups(tree: Path) -> dict[str, list[str]]:
    """Config groups and their options."""
    groups: dict[str, list[str]] = {}
    for path in sorted(tree.rglob("*.yaml")):
        groups.setdefault(path.parent.relative_to(tree).as_posix(), []).append(path.stem)
    return groups


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
