"""What another release of upstream's changes of what the verdicts here rest on, leaf by leaf and function by function.

A verdict is touched when its leaf is gone or new, when its default, or who reads it, is another, and when a function
that reads it computes something else. It says where to look, not what was meant.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from miniverl.compiler import profiles, upstream
from miniverl.compiler import source as sources
from miniverl.compiler.bindings import parse
from miniverl.compiler.explain import READERS
from miniverl.compiler.profiles import Profile
from miniverl.compiler.reads import Read, function_at, functions, modules, reads, reads_of
from miniverl.compiler.rule import Class
from miniverl.engine.problem import Problem, WrongCall

# Where the meaning of a launch is computed: losses, advantages, corrections, order of a step, padding, optimizer.
ALGORITHMS = (
    "verl/trainer/distillation/fsdp/losses.py",
    "verl/trainer/distillation/losses.py",
    "verl/trainer/ppo/core_algos.py",
    "verl/trainer/ppo/padding_utils.py",
    "verl/trainer/ppo/reward.py",
    "verl/trainer/ppo/rollout_corr_helper.py",
    "verl/trainer/ppo/utils.py",
    "verl/trainer/ppo/v1/replay_buffer.py",
    "verl/trainer/ppo/v1/trainer_base.py",
    "verl/trainer/ppo/v1/trainer_sync.py",
    "verl/utils/dataset/rl_dataset.py",
    "verl/utils/torch_functional.py",
    "verl/workers/config/optimizer.py",
    "verl/workers/engine/fsdp/transformer_impl.py",
    "verl/workers/engine_workers.py",
    "verl/workers/utils/losses.py",
    "verl/workers/utils/padding.py",
)
_INERT = frozenset({Class.DISTRIBUTED, Class.INFORMATIONAL})
# Logs, profiles and names of a run: read upstream, and without any meaning for what is computed.
_ASIDE = re.compile(r"(^|\.)(profiler|global_profiler|_target_|logger|trace|prometheus|skip)(\.|$)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Release:
    version: str
    wheel_sha256: str
    leaves: Mapping[str, Any]
    modules: Mapping[str, ast.Module]


@dataclass(frozen=True, kw_only=True, slots=True)
class Touched:
    """A verdict, and what of it is touched. `before` and `after` are defaults; None where there is no leaf."""

    field: str
    classification: str
    change: str  # added, removed, default, readers, read, functions
    before: Any
    after: Any
    where: tuple[str, ...]


def drift(against: str, *, profile: str | None, progress: upstream.Progress) -> dict[str, Any]:
    """The comparison as plain JSON values; `against` is verl==VERSION. Raises WrongCall for anything else."""
    chosen = profiles.called(profile or profiles.DEFAULTS["hydra"])
    name, equals, version = against.partition("==")
    if name != "verl" or not equals:
        raise WrongCall([_problem(against)])
    ours = release(chosen.verl, chosen.config_name, progress)
    theirs = release(version, chosen.config_name, progress)
    return compared(ours, theirs, chosen)


def release(version: str, config_name: str, progress: upstream.Progress) -> Release:
    wheel = upstream.wheel_of(version)
    path = upstream.fetch_wheel(wheel, progress)
    tree = upstream.tree_of(wheel, progress)
    return Release(
        version=version,
        wheel_sha256=wheel.sha256,
        leaves=sources.shipped_leaves(tree, config_name),
        modules=modules(path, {*ALGORITHMS, *_reading_files()}),
    )


def compared(ours: Release, theirs: Release, profile: Profile) -> dict[str, Any]:
    changed = changed_functions(ours.modules, theirs.modules)
    touched = sorted(
        [
            *_leaves(ours.leaves, theirs.leaves, profile),
            *_readers(ours, theirs, profile),
            *_functions(ours, changed, profile),
        ],
        key=lambda one: (one.field, one.change),
    )
    return {
        "added_leaves": sorted(theirs.leaves.keys() - ours.leaves.keys()),
        "against": {"verl": theirs.version, "wheel_sha256": theirs.wheel_sha256},
        "changed_defaults": [
            {"after": theirs.leaves[field], "before": value, "field": field}
            for field, value in sorted(ours.leaves.items())
            if field in theirs.leaves and theirs.leaves[field] != value
        ],
        "changed_functions": changed,
        "pin": {"verl": ours.version, "wheel_sha256": ours.wheel_sha256},
        "profile": profile.name,
        "removed_leaves": sorted(ours.leaves.keys() - theirs.leaves.keys()),
        "touched": [{**asdict(one), "where": list(one.where)} for one in touched],
        "touched_verdicts": len({one.field for one in touched}),
    }


def changed_functions(
    ours: Mapping[str, ast.Module], theirs: Mapping[str, ast.Module]
) -> list[dict[str, str]]:
    """Functions of the algorithms that are gone, new, or written otherwise; sorted by file and name."""
    rows = []
    for file in ALGORITHMS:
        before, after = (functions(held[file]) if file in held else {} for held in (ours, theirs))
        for name in sorted(before.keys() | after.keys()):
            if before.get(name) != after.get(name):
                change = "changed" if name in before and name in after else "added"
                rows.append(
                    {
                        "change": change if name in after else "removed",
                        "file": file,
                        "function": name,
                    }
                )
    return rows


def _leaves(ours: Mapping[str, Any], theirs: Mapping[str, Any], profile: Profile) -> list[Touched]:
    classes = _classes(profile, ours)
    added = _classes(profile, ours, {field: theirs[field] for field in theirs.keys() - ours.keys()})
    rows = [
        _touched(field, added[field], "added", after=theirs[field])
        for field in added
        if added[field] not in _INERT
    ]
    for field, one in classes.items():
        if not _has_meaning(field, one):
            continue
        if field not in theirs:
            rows.append(_touched(field, one, "removed", before=ours[field]))
        elif theirs[field] != ours[field]:
            rows.append(_touched(field, one, "default", ours[field], theirs[field]))
    return rows


def _readers(ours: Release, theirs: Release, profile: Profile) -> list[Touched]:
    """Leaves that others read than before, and leaves that nothing read and something reads now."""
    before, after = (_by_name(one.modules) for one in (ours, theirs))
    sections = {part for field in ours.leaves for part in field.split(".")[:-1]}
    rows = []
    for field, one in _classes(profile, ours.leaves).items():
        if field not in theirs.leaves:
            continue
        was, now = reads_of(field, sections, before), reads_of(field, sections, after)
        was_at, now_at = ({(read.file, read.function) for read in found} for found in (was, now))
        is_read_first = not READERS[field].get("readers") and not was and bool(now)
        if is_read_first or (_has_meaning(field, one) and was_at != now_at):
            places = tuple(sorted(f"{file} {function}" for file, function in was_at ^ now_at))
            change = "read" if is_read_first else "readers"
            rows.append(_touched(field, one, change, where=places))
    return rows


def _functions(
    ours: Release, changed: Collection[Mapping[str, str]], profile: Profile
) -> list[Touched]:
    """Leaves that a changed function reads, by the lines that the rules are written from."""
    changes = {(row["file"], row["function"]) for row in changed}
    rows = []
    for field, one in _classes(profile, ours.leaves).items():
        places = set()
        for reader in READERS[field].get("readers", []):
            file, _, line = reader.rpartition(":")
            if file in ours.modules and line.isdigit():
                place = (file, function_at(ours.modules[file], int(line)))
                places |= {place} & changes
        if places and _has_meaning(field, one):
            where = tuple(sorted(f"{file} {function}" for file, function in places))
            rows.append(_touched(field, one, "functions", where=where))
    return rows


def _has_meaning(field: str, one: Class) -> bool:
    """Whether the leaf can decide what is computed; one that waits for a switch is read by something upstream."""
    if one is Class.INFORMATIONAL:
        return bool(READERS[field].get("readers")) and not _ASIDE.search(field)
    return one is not Class.DISTRIBUTED


def _classes(
    profile: Profile, leaves: Mapping[str, Any], added: Mapping[str, Any] | None = None
) -> dict[str, Class]:
    """The class of each leaf as shipped; of the added leaves, where some are given."""
    context = profiles.nothing_set(profile, leaves, parse([]))
    judged = leaves if added is None else added
    return {
        field: profile.table.judge(field, value, context).classification
        for field, value in sorted(judged.items())
    }


def _by_name(held: Mapping[str, ast.Module]) -> dict[str, list[Read]]:
    found: dict[str, list[Read]] = defaultdict(list)
    for file in sorted(_reading_files() & held.keys()):
        for read in reads(file, held[file]):
            found[read.name].append(read)
    return found


def _reading_files() -> set[str]:
    """The files on the path of one device, as the rules' sources name them."""
    lines = (line for row in READERS.values() for line in row.get("readers", []))
    return {line.rpartition(":")[0] for line in lines}


def _touched(
    field: str,
    one: Class,
    change: str,
    before: Any = None,
    after: Any = None,
    where: tuple[str, ...] = (),
) -> Touched:
    return Touched(
        field=field,
        classification=str(one),
        change=change,
        before=before,
        after=after,
        where=where,
    )


def _problem(against: str) -> Problem:
    return Problem(
        field="--against",
        value=against,
        origin="command line",
        reason="it names no release",
        fix="Give verl==VERSION, such as verl==0.9.1",
    )
