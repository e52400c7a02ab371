"""What does not compose, in words for a person: each fault with its override, its reason and what mends it."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from miniverl.compiler import legacy
from miniverl.compiler.leaf import parents
from miniverl.compiler.suggest import did_you_mean, nearest
from miniverl.engine.problem import Problem

if TYPE_CHECKING:
    from miniverl.compiler.source import Override

_PLACEHOLDER = re.compile(r"<[^<>]*[^\W\d][^<>]*>")  # such as <your model>
_LEADS_OUT = re.compile(r"(^|[/\\'\"\[,\s])\.\.([/\\'\"\],\s]|$)|^[\s'\"\[]*[/~]|://")


def composition_problems(
    answer: Mapping[str, Any],
    overrides: Sequence["Override"],
    origins: Mapping[str, str],
    shipped: Mapping[str, Any],
    trees: Sequence[Path],
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
        if number is None and not field:
            yield _whole(reason, trees)
            continue
        text = values[field] if number is None else overrides[number].text.partition("=")[2]
        yield Problem(
            field=field or "override",
            value=text,
            origin=origins[field] if number is None else str(overrides[number]),
            reason=reason,
            fix=_fix(field, str(text), reason, shipped, trees),
        )


def placeholder_problems(
    leaves: Mapping[str, Any], origins: Mapping[str, str], shipped: Mapping[str, Any]
) -> Iterator[Problem]:
    """Leaves that hold <what to put there>, as published configs and documentation write it."""
    for field, value in leaves.items():
        texts = value if isinstance(value, list) else [value]
        is_open = any(isinstance(text, str) and _PLACEHOLDER.fullmatch(text) for text in texts)
        if is_open and shipped.get(field) != value:
            yield Problem(
                field=field,
                value=value,
                origin=origins[field],
                reason="a placeholder, which stands for a value that nobody has put there",
                fix=f"Give {field} a value",
            )


def _whole(reason: str, trees: Sequence[Path]) -> Problem:
    """A config that does not compose, whatever is overridden."""
    return Problem(
        field="config",
        value=None,
        origin=trees[0].name,
        reason=reason,
        fix="Mend that file: its defaults list may name files below its folder, and upstream's",
    )


def _fix(
    field: str, text: str, reason: str, shipped: Mapping[str, Any], trees: Sequence[Path]
) -> str:
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
        options = _groups(trees).get(field, [])
        return did_you_mean(text, options, f"Take one of {', '.join(options) or 'what is there'}")
    if reason.startswith("Could not") and (successor := legacy.fix(field)):
        return successor
    if reason.startswith("Could not"):
        return did_you_mean(field, fields, f"Write +{field}={text} if upstream reads such a key")
    if "finite" in reason:
        return "Give a finite number"
    return f"Follow Hydra's grammar: {field or 'name'}=value, strings with special characters in quotes"


def out_of_the_tree(overrides: Sequence["Override"], trees: Sequence[Path]) -> Iterator[Problem]:
    """Overrides that would compose files from elsewhere: only the pinned tree is known to the rules."""
    groups = _groups(trees)
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


def _groups(trees: Sequence[Path]) -> dict[str, list[str]]:
    """Config groups and their options."""
    groups: dict[str, list[str]] = {}
    for tree in trees:
        for path in sorted(tree.rglob("*.yaml")):
            groups.setdefault(path.parent.relative_to(tree).as_posix(), []).append(path.stem)
    return groups
