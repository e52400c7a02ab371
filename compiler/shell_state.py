"""What a script has set so far, and what it takes from outside: the user's bindings alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tree_sitter import Node

from miniverl.compiler.shell_syntax import Command
from miniverl.compiler.shell_tree import Script
from miniverl.compiler.shell_values import (
    Array,
    Budget,
    Text,
    Truth,
    Unknown,
    Value,
    text,
    undecided,
    unknown_text,
)

UNSET = "nothing in the script sets it, and no --env gives it"
ONLY_RUNNING = "only running the script could tell"
_OWN = {"IFS": " \t\n", "OPTIND": "1"}


class ScriptEnds(Exception):
    """The script, or the subshell, ends in `line`: `exit`, or an error that bash stops at."""

    def __init__(self, line: int, reason: str, *, status: Truth = False) -> None:
        super().__init__(reason)
        self.line = line
        self.reason = reason
        self.status = status


class Leaves(Exception):
    """`break`, `continue` or `return`: the loops or the function that are left."""

    def __init__(self, kind: str, line: int, *, levels: int = 1, status: Truth = True) -> None:
        super().__init__(kind)
        self.kind = kind
        self.line = line
        self.levels = levels
        self.status = status


@dataclass(slots=True)
class Outside:
    """The user's bindings by name, which of them the script read, and the defaults it took instead."""

    environment: Mapping[str, str]
    used: dict[str, str] = field(default_factory=dict)
    defaults: dict[str, str] = field(default_factory=dict)

    def given(self, name: str) -> str | None:
        """What the user gave for that name."""
        value = self.environment.get(name)
        if value is not None:
            self.used[name] = value
        return value


@dataclass(frozen=True, slots=True)
class Function:
    """A function's body, and the script in which it stands."""

    body: Node
    script: Script


@dataclass(frozen=True, slots=True)
class Call:
    """A command about to be done: its words after expansion, and how it is written at `node`."""

    words: list[Text]
    command: Command
    written: str
    node: Node

    @property
    def line(self) -> int:
        return self.command.line

    @property
    def arguments(self) -> list[Text]:
        return self.words[1:]


@dataclass(slots=True)
class Locals:
    """What a function's `local` hides: values to come back, and names that were not there."""

    values: dict[str, Value | None] = field(default_factory=dict)
    absent: set[str] = field(default_factory=set)


@dataclass(slots=True)
class Scope:
    """Variables are values, or None once the script has unset them."""

    origin: str
    outside: Outside
    budget: Budget
    arguments: tuple[Text, ...]
    variables: dict[str, Value | None] = field(default_factory=dict)
    exported: frozenset[str] = frozenset()
    functions: dict[str, Function] = field(default_factory=dict)
    folder: Text | None = None
    options: frozenset[str] = frozenset()
    status: Truth = True  # of the last command

    def copy(self) -> "Scope":
        """Independent of this one from here on."""
        return replace(self, variables=dict(self.variables), functions=dict(self.functions))

    def become(self, other: "Scope") -> None:
        """Goes on as the other one."""
        self.arguments = other.arguments
        self.variables = other.variables
        self.exported = other.exported
        self.functions = other.functions
        self.folder = other.folder
        self.options = other.options

    def is_settled(self, name: str) -> bool:
        """The script itself has set or unset it."""
        return name in self.variables

    def lookup(self, name: str) -> Value | None:
        """Its value; None when it is unset, or nothing says what it is."""
        if name in self.variables:
            return self.variables[name]
        if name in self.outside.environment:
            given = self.outside.given(name)
            return None if given is None else text(given)
        return text(_OWN[name]) if name in _OWN else None

    def read(self, name: str, line: int) -> Text:
        """Its value as a string; the Unknown of that name when nothing says what it is."""
        value = self.lookup(name)
        if isinstance(value, Array):
            items = dict(value.items)
            return items.get("0" if value.is_keyed else 0, Text())
        if value is not None:
            return value
        if self.is_settled(name):
            return Text()
        return unknown_text(Unknown(name, line, UNSET, (name,)))

    def set(self, name: str, value: Value) -> None:
        self.variables[name] = value
        if "a" in self.options:
            self.exported |= {name}

    def hide(self, name: str, hidden: Locals) -> None:
        """`local name`: remembers what it was, the first time."""
        if name in hidden.values or name in hidden.absent:
            return
        if name in self.variables:
            hidden.values[name] = self.variables[name]
        else:
            hidden.absent.add(name)

    def reveal(self, hidden: Locals) -> None:
        """The function is left."""
        for name in hidden.absent:
            self.variables.pop(name, None)
        self.variables.update(hidden.values)

    def working_folder(self, line: int) -> Text:
        """Where the script stands."""
        return self.read("PWD", line) if self.folder is None else self.folder

    def for_child(self, assigned: Mapping[str, Value | None], arguments: Sequence[Text]) -> "Scope":
        """What another shell that this one starts can see."""
        seen = {name: value for name, value in self.variables.items() if name in self.exported}
        return Scope(
            self.origin,
            self.outside,
            self.budget,
            tuple(arguments),
            {**seen, **assigned},
            self.exported | frozenset(assigned),
            folder=self.folder,
        )


def merged(scopes: Sequence[Scope], cause: Unknown) -> Scope:
    """One scope for what comes after a branch that only running could choose."""
    first, *others = scopes
    both = first.copy()
    for other in others:
        for name in dict.fromkeys((*both.variables, *other.variables)):
            ours = both.variables[name] if name in both.variables else both.lookup(name)
            theirs = other.variables[name] if name in other.variables else other.lookup(name)
            if ours != theirs or (name in both.variables) != (name in other.variables):
                both.variables[name] = unknown_text(
                    undecided(name, cause.line, f"it depends on {cause.name}", (cause,))
                )
        both.exported |= other.exported
        both.functions = {**other.functions, **both.functions}
        both.options &= other.options
        if both.arguments != other.arguments:
            unknown = undecided("$@", cause.line, f"they depend on {cause.name}", (cause,))
            both.arguments = (unknown_text(unknown),)
        if both.folder != other.folder:
            unknown = undecided("PWD", cause.line, f"it depends on {cause.name}", (cause,))
            both.folder = unknown_text(unknown)
    return both
