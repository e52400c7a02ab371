"""Which config files the process that composes may read: those of the trees it was given, and Hydra's own.

Hydra follows what a defaults list names, `..` and links too. An audit hook sees every file that is opened,
whatever named it, so that a user's tree cannot bring in a file from outside of it, nor one that is too large.
"""

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from hydra.errors import HydraException

LARGEST_BYTES = 4 * 2**20
MOST_VALUES = 20_000  # upstream's whole tree has 855 leaves
_SUFFIXES = (".yaml", ".yml")


class Bounds:
    """`read` are the files of the user's tree that were opened, in their order, each once."""

    def __init__(self, user_tree: Path | None, trusted: Iterable[Path]) -> None:
        self._user_tree = None if user_tree is None else user_tree.resolve()
        self._trusted = [folder.resolve() for folder in trusted]
        self._faults: dict[Path, str | None] = {}
        self.read: list[Path] = []

    def hold(self) -> None:
        """From now on until the process ends."""
        sys.addaudithook(self._heard)

    def _heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open" or not str(arguments[0]).endswith(_SUFFIXES):
            return
        path = Path(os.path.realpath(arguments[0]))
        if path not in self._faults:
            self._faults[path] = None  # judging it opens it
            self._faults[path] = self._fault(path)
        if fault := self._faults[path]:
            raise HydraException(fault)

    def _fault(self, path: Path) -> str | None:
        if any(path.is_relative_to(folder) for folder in self._trusted):
            return None
        if self._user_tree is None or not path.is_relative_to(self._user_tree):
            return f"the config file {path.name} lies outside of the config tree"
        self.read.append(path)
        if (size := path.stat().st_size) > LARGEST_BYTES:
            return f"{path.name} has {size} bytes, and no config more than {LARGEST_BYTES}"
        root = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
        if root is not None and _num_values(root, {}) > MOST_VALUES:
            return f"{path.name} stands for more than {MOST_VALUES} values"
        return None


def _num_values(node: yaml.Node, known: dict[int, int]) -> int:
    """How many nodes it is when every alias is written out; one that holds itself is never done."""
    if id(node) not in known:
        known[id(node)] = MOST_VALUES + 1
        known[id(node)] = 1 + sum(_num_values(part, known) for part in _parts(node))
    return known[id(node)]


def _parts(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.SequenceNode):
        return list(node.value)
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return []
