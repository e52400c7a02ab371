"""A config tree of the user's, whose files Hydra finds before upstream's: `--config-path DIR --config-name N`.

Upstream's programs then look into that folder alone, and find their own tree only where the user's config, or
an override, names it as `hydra.searchpath`. Here that tree is always the pinned one.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import yaml  # type: ignore[import-untyped]

from miniverl.engine.problem import Problem, WrongCall

if TYPE_CHECKING:
    from miniverl.compiler.source import Override

_SEARCHPATH = "hydra.searchpath"
_UPSTREAM = re.compile(r"pkg://verl\.trainer\.config/?|file://(.*/)?verl/trainer/config/?")
_PACKAGE = re.compile(r"^#\s*@package\s+(\S+)", re.MULTILINE)
_ADVICE = "name it there: hydra.searchpath=[pkg://verl.trainer.config]"


@dataclass(frozen=True, slots=True)
class UserTree:
    folder: Path  # absolute, links followed

    @classmethod
    def at(cls, folder: Path) -> "UserTree":
        """Raises WrongCall for what is no folder."""
        if not folder.is_dir():
            fix = "Give the folder that your config lies in"
            raise WrongCall(
                [_problem("--config-path", str(folder), "command line", "no such folder", fix)]
            )
        return cls(folder.resolve())

    def finds_upstream(self, overrides: Sequence["Override"]) -> tuple["Override", ...]:
        """The overrides that name upstream's own tree, and nothing else, as the place to search."""
        named = (one for one in overrides if one.key == _SEARCHPATH)
        return tuple(
            one
            for one in named
            if _is_upstream([part.strip(" '\"") for part in _list(one.text.partition("=")[2])])
        )

    def origins(self, read: Sequence[str], config_name: str) -> dict[str, str]:
        """File and line of each leaf and section that the files read state; the user's config comes last."""
        lines: dict[str, str] = {}
        own = f"{config_name}.yaml"
        for name in [*(one for one in read if one != own), *(one for one in read if one == own)]:
            text = (self.folder / name).read_text(encoding="utf-8")
            package = "" if name == own else _package(name, text)
            for field, line in _lines(yaml.compose(text, Loader=yaml.SafeLoader), package):
                lines[field] = f"{name}:{line}"
        return lines

    def notes(self, searchpath: Any, finds: Sequence["Override"], config_name: str) -> list[str]:
        """What upstream would do otherwise: it finds its own tree only where it is told to."""
        if finds or searchpath is not None:
            return []
        said = (
            f"{config_name}: upstream looks for its own tree only where hydra.searchpath names it"
        )
        return [f"{said}; read here as if it did. For upstream, {_ADVICE}"]

    def problems(
        self, searchpath: Any, leaves: Collection[str], shipped: Collection[str], config_name: str
    ) -> Iterator[Problem]:
        """Other trees that the config wants searched; and a config that has little of upstream's."""
        origin = f"{config_name}.yaml"
        if searchpath is not None and not _is_upstream(searchpath):
            reason = "it takes config files from outside of its folder and the pinned tree"
            fix = f"Put those files into the folder; upstream's own tree, {_ADVICE}"
            yield _problem(_SEARCHPATH, searchpath, origin, reason, fix)
        kept = sum(field in leaves for field in shipped)
        if leaves and 2 * kept < len(shipped):
            reason = f"it has {kept} of the {len(shipped)} leaves of upstream's config"
            fix = "Put ppo_trainer first in its defaults list, and _self_ last"
            yield _problem("defaults", None, origin, reason, fix)

    def stumbled(self, errors: str) -> Problem:
        last = next((line for line in errors.splitlines()[::-1] if line.strip()), "")
        reason = (
            f"Hydra cannot compose it: {last or 'it takes more time or memory than a config does'}"
        )
        return _problem("--config-path", self.folder.name, "command line", reason, "Mend its files")


def _list(text: str) -> list[str]:
    return text.strip().removeprefix("[").removesuffix("]").split(",")


def _is_upstream(searchpath: Any) -> bool:
    entries = searchpath if isinstance(searchpath, list) else []
    return bool(entries) and all(_UPSTREAM.fullmatch(str(entry)) for entry in entries)


def _package(name: str, text: str) -> str:
    """Where a file's leaves go: what its header says, else its folder."""
    folder = ".".join(PurePosixPath(name).parent.parts)
    stated = _PACKAGE.search(text)
    if stated is None or stated[1] == "_group_":
        return folder
    return "" if stated[1] == "_global_" else stated[1]


def _lines(node: yaml.Node | None, path: str) -> Iterator[tuple[str, int]]:
    if not isinstance(node, yaml.MappingNode):
        return
    for key, value in node.value:
        field = f"{path}.{key.value}" if path else str(key.value)
        if isinstance(value, yaml.MappingNode) and value.value:
            yield from _lines(value, field)
        else:
            yield field, key.start_mark.line + 1


def _problem(field: str, value: object, origin: str, reason: str, fix: str) -> Problem:
    return Problem(field=field, value=value, origin=origin, reason=reason, fix=fix)
