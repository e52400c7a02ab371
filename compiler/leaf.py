"""Leaves of a config and the tree they stand in: `a.b.c` names the leaf c of the section b of the section a."""

from collections.abc import Iterator, Mapping
from typing import Any


def flat(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every leaf of a tree by its dotted path: a scalar, a whole list or an empty mapping."""
    if isinstance(tree, dict) and (tree or not path):
        for name, part in tree.items():
            yield from flat(part, f"{path}.{name}" if path else str(name))
    else:
        yield path, tree


def nested(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """`{"a.b": 1}` as `{"a": {"b": 1}}`."""
    tree: dict[str, Any] = {}
    for field, value in leaves.items():
        *sections, name = field.split(".")
        branch = tree
        for section in sections:
            branch = branch.setdefault(section, {})
        branch[name] = value
    return tree


def parents(field: str) -> Iterator[str]:
    """`a.b`, `a` of `a.b.c`."""
    while "." in field:
        field = field.rpartition(".")[0]
        yield field
