"""What a word of the shell becomes: expansions, word splitting and quote removal, as bash does them.

No file is ever looked for: `*` and `?` stay as they are written.
"""

import re
from collections.abc import Callable, Iterator, Sequence

from miniverl.compiler.shell_arithmetic import Arithmetic as Expression
from miniverl.compiler.shell_arithmetic import ArithmeticFault, number
from miniverl.compiler.shell_parameters import Chunk, Parameters
from miniverl.compiler.shell_patterns import Pattern, TooMuchWork, braced, pattern
from miniverl.compiler.shell_state import ONLY_RUNNING, Scope, ScriptEnds
from miniverl.compiler.shell_syntax import Arithmetic, Literal, Parameter, Part, Substitution, Word
from miniverl.compiler.shell_values import (
    Array,
    Piece,
    Text,
    Unknown,
    brief,
    condensed,
    joined,
    text,
    too_much,
    undecided,
    unknown_text,
)
from miniverl.compiler.shell_words import word_of

_TILDE = re.compile(r"((?:[A-Za-z_]\w*=)?)~(?=/|$)", re.ASCII)
_MAX_DEPTH_OF_NAMES = 20
WORD_COST = 64  # of the budget, so that many short words are not free


class _Undecided(Exception):
    """A variable that arithmetic needs is unknown."""

    def __init__(self, unknowns: tuple[Unknown, ...]) -> None:
        super().__init__()
        self.unknowns = unknowns


class Expander:
    """`run` gives the output of `$(commands)`."""

    def __init__(self, scope: Scope, run: Callable[[Substitution], Text]) -> None:
        self.scope = scope
        self._run = run
        self._parameters = Parameters(scope, self)

    def text(self, word: Word) -> Text:
        """One string: an assignment's value, a `case` word, a file name."""
        parts = self._with_home(word.parts, is_assignment=False)
        values = [
            joined([Text((" ",)), chunk.value] if chunk.starts_word else [chunk.value])
            for chunk in self._chunks_of(parts, word.line)
        ]
        return self._counted(joined(values, word.line))

    def fields(self, word: Word, *, in_array: bool = False) -> list[Text]:
        """The words that a command or an array gets from this one."""
        try:
            expanded = braced(word.parts)
        except TooMuchWork:
            reason = "a brace expansion stands for too many words"
            raise too_much(self.scope.origin, word.line, reason, "Write them out") from None
        return [one for parts in expanded for one in self._split(parts, word.line, in_array)]

    def key(self, array: Array, index: str, line: int) -> int | str | Unknown:
        """The key that an index written in the script stands for."""
        return self._parameters.key(array, index, line)

    def cut(self, value: Text, separators: str) -> list[Text]:
        """The fields of a known string, as `read` finds them."""
        fields = _cut((value.known or "").strip(" \t\n"), separators)
        return [text(one, value.line) for one in fields if one or len(fields) > 1]

    def chunks(self, word: Word, *, with_home: bool = False) -> list[Chunk]:
        """The word's pieces, before they are split; a `~` at its start is expanded `with_home`."""
        parts = self._with_home(word.parts, is_assignment=False) if with_home else word.parts
        return list(self._chunks_of(parts, word.line))

    def pattern(self, word: Word) -> Pattern | Unknown | None:
        """A glob pattern; Unknown when a piece of it is, None when it is an extended one."""
        pieces: list[tuple[str, bool]] = []
        for chunk in self._chunks_of(word.parts, word.line):
            if chunk.value.unknowns:
                return undecided(
                    condensed(word.source), word.line, ONLY_RUNNING, chunk.value.unknowns
                )
            pieces.append((chunk.value.known or "", chunk.is_quoted))
        return pattern(pieces)

    def arithmetic(self, expression: str, line: int) -> int | Unknown:
        """The number that an expression is; raises ScriptEnds where bash stops at it."""
        name = f"$(({condensed(expression)}))"
        if (given := self.scope.outside.given(name)) is not None:
            return number(given)
        try:
            with self.scope.budget.level(line):
                written = self.text(word_of(expression, line, is_quoted=True))
                if written.unknowns:
                    raise _Undecided(written.unknowns)
                return self._number(written.known or "", line, 0)
        except _Undecided as error:
            return undecided(name, line, ONLY_RUNNING, error.unknowns)
        except ArithmeticFault as error:
            raise ScriptEnds(line, f"{brief(name)}: {error}") from None

    def _number(self, expression: str, line: int, depth: int) -> int:
        if depth > _MAX_DEPTH_OF_NAMES:
            raise ArithmeticFault("names that stand for names without end")
        scope = self.scope

        def read(name: str) -> int:
            value = self._item(name, line)
            if value.unknowns:
                raise _Undecided(value.unknowns)
            return self._number(value.known or "", line, depth + 1)

        def write(name: str, value: int) -> None:
            plain, bracket, index = name.partition("[")
            if not bracket:
                scope.set(plain, text(str(value), line))
                return
            array = scope.lookup(plain)
            array = array if isinstance(array, Array) else Array()
            key = self._parameters.key(array, index[:-1], line)
            if not isinstance(key, Unknown):
                scope.set(plain, array.with_item(key, text(str(value), line)))

        return Expression(expression, read, write).value()

    def _item(self, name: str, line: int) -> Text:
        plain, bracket, index = name.partition("[")
        if not bracket:
            return self.scope.read(name, line)
        found = self._parameters.item(plain, index[:-1], line)
        return Text() if found is None else found

    def _chunks_of(self, parts: Sequence[Part], line: int) -> Iterator[Chunk]:
        for part in parts:
            if isinstance(part, Literal):
                yield Chunk(text(part.text, line), part.is_quoted, is_written=True)
            elif isinstance(part, Arithmetic):
                value = self.arithmetic(part.expression, line)
                number_text = (
                    unknown_text(value) if isinstance(value, Unknown) else text(str(value))
                )
                yield Chunk(number_text, True)
            elif isinstance(part, Substitution):
                yield Chunk(self._output(part), part.is_quoted)
            else:
                yield from self._parameters.chunks(part, line)

    def _output(self, part: Substitution) -> Text:
        name = condensed(part.source)
        given = self.scope.outside.given(name)
        if given is not None:
            return text(given, part.line)
        if part.source.startswith(("<(", ">(")):
            return unknown_text(undecided(name, part.line, ONLY_RUNNING))
        return self._run(part)

    def _split(self, parts: Sequence[Part], line: int, in_array: bool) -> list[Text]:
        separators = self.scope.read("IFS", line).known
        separators = " \t\n" if separators is None else separators
        words: list[list[Text]] = []
        is_open = False  # the last word still grows
        for chunk in self._chunks_of(self._with_home(parts, is_assignment=not in_array), line):
            if chunk.is_quoted or chunk.is_written:
                if not is_open or chunk.starts_word:
                    words.append([])
                words[-1].append(chunk.value)
                is_open = True
                continue
            if chunk.starts_word:
                is_open = False
            for piece in chunk.value.pieces:
                cut: list[Piece] = (
                    [piece] if isinstance(piece, Unknown) else [*_cut(piece, separators)]
                )
                for position, one in enumerate(cut):
                    if position > 0:
                        is_open = False
                    if one == "":
                        continue
                    if not is_open:
                        words.append([])
                    words[-1].append(Text((one,)))
                    is_open = True
        found = [self._counted(joined(word, _line_of(word, line))) for word in words]
        if len(found) == 1 and not found[0].pieces and self._has_list(parts):
            return []  # "$@" without arguments is no word at all
        return found

    def _has_list(self, parts: Sequence[Part]) -> bool:
        return any(
            isinstance(one, Parameter) and not one.prefix and "@" in (one.name, one.index)
            for one in parts
        )

    def _with_home(self, parts: Sequence[Part], *, is_assignment: bool) -> Sequence[Part]:
        """`~/x` at the start of a word, or after the `=` of a shell variable's name."""
        first = parts[0] if parts else None
        if not isinstance(first, Literal) or first.is_quoted:
            return parts
        found = _TILDE.match(first.text)
        is_whole = found is not None and (found.end() < len(first.text) or len(parts) == 1)
        if found is None or not is_whole or (found[1] and not is_assignment):
            return parts
        home = Parameter("HOME", None, "", "", "", True, "~")
        return [
            Literal(found[1], False),
            home,
            Literal(first.text[found.end() :], False),
            *parts[1:],
        ]

    def _counted(self, value: Text) -> Text:
        size = sum(len(one) for one in value.pieces if isinstance(one, str))
        self.scope.budget.spend(size + WORD_COST, value.line)
        return value


def _cut(piece: str, separators: str) -> list[str]:
    """The fields of a string; the first and the last are empty when it starts or ends with a separator."""
    if not separators:
        return [piece]
    blank = "".join(one for one in separators if one in " \t\n")
    other = "".join(one for one in separators if one not in " \t\n")
    blanks = f"[{re.escape(blank)}]" if blank else "(?!)"
    hard = f"{blanks}*[{re.escape(other)}]{blanks}*|" if other else ""
    return re.split(f"{hard}{blanks}+", piece)


def _line_of(word: Sequence[Text], line: int) -> int:
    """An array's item keeps its own line when it is the whole word."""
    filled = [one for one in word if one.pieces]
    return filled[0].line if len(filled) == 1 and filled[0].line else line
