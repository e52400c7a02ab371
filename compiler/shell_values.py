"""What a word of a script is worth to a reader who runs nothing: known text, with named unknowns inside it.

Unknown   one thing that only running the script could tell
Text      a string of the shell: known pieces and unknowns, in order
Array     an array or a map of the shell
Truth     how a command ends: True, False, or the Unknown that decides it
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from miniverl.engine.problem import Problem, WrongCall


@dataclass(frozen=True, slots=True)
class Unknown:
    """`name` is as the script writes it: `HOME`, `$(date +%s)`, `[ -d data ]`.

    `needs` are the names that make it known when they are given a value.
    """

    name: str
    line: int = field(compare=False)
    reason: str = field(compare=False)
    needs: tuple[str, ...] = field(compare=False)

    @property
    def shown(self) -> str:
        """As it stands in a word."""
        return f"${{{self.name}}}" if self.name.isidentifier() else self.name

    @property
    def fix(self) -> str:
        """What the user can give."""
        given = (
            "--arg VALUE"
            if re.fullmatch(r"\$([1-9]\d*|@)", name)
            else f"--env {quoted(name)}=VALUE"
            for name in self.needs
        )
        return f"Give {' '.join(dict.fromkeys(given))}"


Piece = str | Unknown
Truth = bool | Unknown


@dataclass(frozen=True, slots=True)
class Text:
    """Known pieces are not empty, and no two of them are neighbours."""

    pieces: tuple[Piece, ...] = ()
    line: int = field(default=0, compare=False)

    @property
    def known(self) -> str | None:
        """The string, or None when a piece of it is unknown."""
        if not self.pieces:
            return ""
        only = self.pieces[0]
        return only if len(self.pieces) == 1 and isinstance(only, str) else None

    @property
    def unknowns(self) -> tuple[Unknown, ...]:
        """Each unknown once, in order."""
        return tuple(dict.fromkeys(one for one in self.pieces if isinstance(one, Unknown)))

    @property
    def shown(self) -> str:
        """For people: unknowns as the script writes them."""
        return "".join(one if isinstance(one, str) else one.shown for one in self.pieces)

    @property
    def is_surely_filled(self) -> bool:
        """It has a known character."""
        return any(isinstance(one, str) for one in self.pieces)

    def bound(self, values: Mapping[str, str]) -> str:
        """The string with a value for each unknown, by its name."""
        return "".join(one if isinstance(one, str) else values[one.name] for one in self.pieces)


@dataclass(frozen=True, slots=True)
class Array:
    """Items by index or by key, in the shell's order."""

    items: tuple[tuple[int | str, Text], ...] = ()
    is_keyed: bool = False

    @property
    def values(self) -> tuple[Text, ...]:
        return tuple(text for _, text in self.items)

    def with_item(self, key: int | str, value: Text) -> "Array":
        items = {**dict(self.items), key: value}
        order = items if self.is_keyed else sorted(items, key=lambda one: int(one))
        return Array(tuple((name, items[name]) for name in order), self.is_keyed)

    def with_values(self, values: Iterable[Text]) -> "Array":
        """Appended after the last index; a map takes none without its key."""
        if self.is_keyed:
            return self
        start = int(self.items[-1][0]) + 1 if self.items else 0
        return Array((*self.items, *enumerate(values, start)), False)


Value = Text | Array


def text(value: str, line: int = 0) -> Text:
    """A known string."""
    return Text((value,) if value else (), line)


def unknown_text(unknown: Unknown) -> Text:
    """A string of which nothing is known."""
    return Text((unknown,), unknown.line)


def joined(parts: Iterable[Text | Piece], line: int = 0) -> Text:
    """The parts one after another."""
    pieces: list[Piece] = []
    for piece in _pieces(parts):
        last = pieces[-1] if pieces else None
        if isinstance(piece, str) and isinstance(last, str):
            pieces[-1] = last + piece
        elif piece != "":
            pieces.append(piece)
    return Text(tuple(pieces), line)


def without_start(value: Text, length: int) -> Text:
    """The string without its first characters, which are known."""
    first, *rest = value.pieces
    assert isinstance(first, str)
    return joined([first[length:], *rest], value.line)


def needing(value: Text, name: str) -> Text:
    """The same string, where a value for `name` stands for what no variable's value can settle."""
    return Text(tuple(_needing(one, name) for one in value.pieces), value.line)


def undecided(name: str, line: int, reason: str, causes: Iterable[Unknown] = ()) -> Unknown:
    """An unknown that follows from other ones, or that its own name settles."""
    needs = dict.fromkeys(need for cause in causes for need in cause.needs)
    return Unknown(name, line, reason, tuple(needs) or (name,))


def condensed(source: str) -> str:
    """A piece of a script in one line, as unknowns are named."""
    return " ".join(source.split())


def brief(source: str) -> str:
    """The start of a piece of a script, for messages."""
    one_line = condensed(source[:1000])
    return one_line if len(one_line) <= 80 else f"{one_line[:77]}..."


def quoted(name: str) -> str:
    """A name as one word of a command line."""
    return name if name.isidentifier() else "'" + name.replace("'", "'\\''") + "'"


class Budget:
    """How much a script may make us do: a script that asks for more is refused, wherever it asks."""

    def __init__(self, origin: str) -> None:
        self.origin = origin
        self.steps_left = 20_000
        self.characters_left = 4 << 20
        self.levels_left = 60

    def step(self, line: int) -> None:
        """One command more."""
        self.steps_left -= 1
        if self.steps_left < 0:
            raise too_much(self.origin, line, "it takes more than 20,000 commands", "Unroll it")

    def spend(self, characters: int, line: int) -> None:
        """That many characters of text more."""
        self.characters_left -= characters
        if self.characters_left < 0:
            reason = "it reads or builds more than 4 MiB of text"
            raise too_much(self.origin, line, reason, "Write the values out")

    @contextmanager
    def level(self, line: int) -> Iterator[None]:
        """One level down, for as long as the context lasts."""
        self.levels_left -= 1
        if self.levels_left < 0:
            reason = "it nests commands, functions or words more than 60 deep"
            raise too_much(self.origin, line, reason, "Write it flat")
        try:
            yield
        finally:
            self.levels_left += 1


def too_much(origin: str, line: int, reason: str, fix: str) -> WrongCall:
    """The refusal of a script that goes over a limit."""
    return WrongCall([script_problem(origin, line, "script", None, reason, fix)])


def script_problem(
    origin: str, line: int, field_: str, value: object, reason: str, fix: str
) -> Problem:
    """A problem at a line of the script."""
    return Problem(field=field_, value=value, origin=f"{origin}:{line}", reason=reason, fix=fix)


def _needing(piece: Piece, name: str) -> Piece:
    if isinstance(piece, str) or all(one.isidentifier() for one in piece.needs):
        return piece
    return replace(piece, needs=(name,))


def _pieces(parts: Iterable[Text | Piece]) -> Iterator[Piece]:
    for part in parts:
        if isinstance(part, Text):
            yield from part.pieces
        else:
            yield part
