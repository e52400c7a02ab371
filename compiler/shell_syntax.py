"""A word of the shell as its parts: what is written, what is quoted, and what is to be expanded.

data.files="['$HOME/a']"   Literal, quoted Literal, quoted Parameter, quoted Literal
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Literal:
    text: str
    is_quoted: bool


@dataclass(frozen=True, slots=True)
class Parameter:
    """`${name[index]operator operand}`; `prefix` is `#` for a length, `!` for an indirection."""

    name: str
    index: str | None
    operator: str
    operand: str
    prefix: str
    is_quoted: bool
    source: str


@dataclass(frozen=True, slots=True)
class Substitution:
    """`$(commands)`; `source` is as written, with what stands around the commands."""

    commands: str
    source: str
    line: int
    is_quoted: bool


@dataclass(frozen=True, slots=True)
class Arithmetic:
    expression: str
    is_quoted: bool


Part = Literal | Parameter | Substitution | Arithmetic


@dataclass(frozen=True, slots=True)
class Word:
    """`source` is as written; the parts are in order, and none of them is an empty unquoted literal."""

    parts: tuple[Part, ...]
    source: str
    line: int

    @property
    def bare(self) -> str | None:
        """The word when all of it is written out unquoted."""
        if len(self.parts) == 1 and isinstance(self.parts[0], Literal):
            return None if self.parts[0].is_quoted else self.parts[0].text
        return None


@dataclass(frozen=True, slots=True)
class Assignment:
    """`name[index]=value`, `name+=value`, `name=(words)`."""

    name: str
    index: str | None
    appends: bool
    value: Word | None
    items: tuple[Word, ...] | None
    line: int


@dataclass(frozen=True, slots=True)
class Redirect:
    """`operator` without its descriptor: `>`, `<<<`, `>&`, ...; `target` is None for a heredoc."""

    descriptor: str
    operator: str
    target: Word | None


@dataclass(frozen=True, slots=True)
class Command:
    """A simple command as written: assignments, then words, with redirections anywhere."""

    assignments: tuple[Assignment, ...]
    words: tuple[Word | Assignment, ...]
    redirects: tuple[Redirect, ...]
    line: int
