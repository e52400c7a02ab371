"""Hears the commands of a script, and keeps those that start a program which reads overrides."""

import re
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from miniverl.compiler.launch_commands import (
    MAINS,
    OVERRIDE,
    Arguments,
    Python,
    ShellFile,
    ShellText,
    arguments,
    program,
)
from miniverl.compiler.shell import Assigned, Shell
from miniverl.compiler.shell_state import ONLY_RUNNING
from miniverl.compiler.shell_values import Text, Truth, Unknown, joined, undecided

_HYDRA_MODULE = re.compile(r"(?:verl|recipe)\.")


@dataclass(frozen=True, slots=True)
class Heard:
    """A launch: `causes` are the undecided branches that it stands in."""

    entry: str
    entry_unknowns: tuple[Unknown, ...]
    arguments: Arguments
    line: int
    causes: tuple[Unknown, ...]
    wrappers: tuple[str, ...]

    def summary(self, without: AbstractSet[Text]) -> str:
        """The program, and the first overrides that the other launches do not have."""
        own = [one.shown for one in self.arguments.overrides if one not in without]
        rest = f" and {len(own) - 2} more" if len(own) > 2 else ""
        return f"{self.entry} {' '.join(own[:2])}{rest}".strip()


@dataclass(frozen=True, slots=True)
class Stray:
    """An override that is a command of its own, or an argument of `tee`."""

    text: Text
    after: Heard | None
    taker: str | None


class Hearing:
    """The launches of a script, in order, and what else could have been meant as one."""

    def __init__(self) -> None:
        self.launches: list[Heard] = []
        self.strays: list[Stray] = []
        self.files: list[Text] = []
        self.others: list[Text] = []
        self.elsewhere: list[tuple[int, str]] = []

    def command(self, shell: Shell, words: Sequence[Text], assigned: Assigned, line: int) -> Truth:
        last = self.launches[-1] if self.launches else None
        if OVERRIDE.match(words[0].shown):
            self.strays.append(Stray(words[0], last, None))
            return True
        if words[0].known == "tee":
            taken = [one for one in words[1:] if OVERRIDE.match(one.shown)]
            self.strays.extend(Stray(one, last, "tee") for one in taken)
            return True
        found = program(words, shell.scope.folder)
        if isinstance(found, Python):
            self._python(shell, found, line)
        elif isinstance(found, ShellFile):
            self.files.append(found.path)
        elif isinstance(found, ShellText):
            self.elsewhere.extend((line, one) for one in found.wrappers)
            if found.source.known is not None:
                seen = {**assigned, **found.assigned}
                return shell.nested(found.source.known, line, seen, found.arguments)
        written = joined([part for word in words for part in (" ", word)][1:]).shown
        return undecided(written, line, ONLY_RUNNING)

    def _python(self, shell: Shell, found: Python, line: int) -> None:
        entry = found.entry.shown
        given = arguments(found.arguments)
        reads_overrides = any(OVERRIDE.match(one.shown) for one in given.overrides)
        is_launch = entry in MAINS or (
            reads_overrides
            and not given.strange
            and (
                bool(_HYDRA_MODULE.match(entry))
                or entry.endswith(".py")
                or bool(found.entry.unknowns)
            )
        )
        if not is_launch:
            self.others.append(found.entry)
            return
        causes = tuple(shell.causes)
        unknowns = found.entry.unknowns if entry not in MAINS else ()
        self.launches.append(Heard(entry, unknowns, given, line, causes, found.wrappers))
