"""`$x` and `${x...}`: what a parameter is worth, with its operators."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from miniverl.compiler.shell_patterns import TooMuchWork, replaced, trimmed
from miniverl.compiler.shell_spans import after_quoted
from miniverl.compiler.shell_state import ONLY_RUNNING, UNSET, Scope, ScriptEnds
from miniverl.compiler.shell_syntax import Parameter
from miniverl.compiler.shell_values import (
    Array,
    Text,
    Unknown,
    condensed,
    joined,
    needing,
    text,
    too_much,
    undecided,
    unknown_text,
)
from miniverl.compiler.shell_words import word_of

if TYPE_CHECKING:
    from miniverl.compiler.shell_expand import Expander

# Each is another thing every time it is read.
_CHANGING = frozenset({"RANDOM", "SRANDOM", "SECONDS", "EPOCHSECONDS", "EPOCHREALTIME", "BASHPID"})


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a word; `starts_word` after the first item of `"$@"`."""

    value: Text
    is_quoted: bool
    starts_word: bool = False
    is_written: bool = False  # out in the script, so that it is not split


class Parameters:
    """Values of parameters in a scope; operands are expanded by `expander`."""

    def __init__(self, scope: Scope, expander: "Expander") -> None:
        self._scope = scope
        self._expander = expander

    def chunks(self, part: Parameter, line: int) -> list[Chunk]:
        """What the parameter puts into a word."""
        found = self._value(part, line)
        if isinstance(found, Text):
            return [Chunk(found, part.is_quoted)]
        return found

    def _value(self, part: Parameter, line: int) -> Text | list[Chunk]:
        if part.prefix == "#":
            return self._length(part, line)
        if part.prefix == "!":
            return self._indirect(part, line)
        if "@" in (part.name, part.index) or "*" in (part.name, part.index):
            return self._list(part, line)
        if part.index is None:
            found = self._plain(part.name, line)
        else:
            found = self.item(part.name, part.index, line)
        if part.operator in ("", "@"):
            return self._or_unknown(found, part, line)
        return self._operated(part, found, line)

    def item(self, name: str, index: str, line: int) -> Text | None:
        """`${name[index]}`; None when it is unset."""
        value = self._scope.lookup(name)
        if isinstance(value, Text):
            if value.unknowns:
                return value
            value = Array(((0, value),))
        if value is None:
            return self._plain(name, line)
        key = self.key(value, index, line)
        if isinstance(key, Unknown):
            return unknown_text(key)
        return dict(value.items).get(key)

    def key(self, array: Array, index: str, line: int) -> int | str | Unknown:
        """The key that an index written in a script stands for."""
        if array.is_keyed:
            key = self._expander.text(word_of(index, line, is_quoted=False))
            if key.known is None:
                return undecided(condensed(index), line, ONLY_RUNNING, key.unknowns)
            return key.known
        number = self._expander.arithmetic(index, line)
        if isinstance(number, int) and number < 0 and array.items:
            return int(array.items[-1][0]) + 1 + number
        return number

    def _plain(self, name: str, line: int) -> Text | None:
        scope = self._scope
        if name.isdigit() and name != "0":
            position = int(name[:6])
            if position <= len(scope.arguments):
                return scope.arguments[position - 1]
            given = scope.outside.given(f"${name}")
            return None if given is None else text(given, line)
        if name == "#":
            return text(str(len(scope.arguments)), line)
        if name == "?" and isinstance(scope.status, bool):
            return text(str(int(not scope.status)), line)
        if name == "LINENO":
            return text(str(line), line)
        if name == "PWD" and not scope.is_settled(name):
            folder = scope.working_folder(line)
            return folder if folder.known is not None or scope.folder is not None else None
        if name in _CHANGING and not scope.is_settled(name) and scope.lookup(name) is None:
            return unknown_text(undecided(name, line, ONLY_RUNNING))
        if scope.lookup(name) is None:
            return None
        return scope.read(name, line)

    def _or_unknown(self, found: Text | None, part: Parameter, line: int) -> Text:
        if found is not None:
            return found
        if self._scope.is_settled(part.name) and part.name.isidentifier():
            return Text()
        name = part.name if part.name.isidentifier() else f"${part.name}"
        reason = UNSET if part.name.isidentifier() else ONLY_RUNNING
        if part.name.isdigit() and part.name != "0":
            reason = f"no argument {part.name} is given"
        return unknown_text(Unknown(name, line, reason, (name,)))

    def _operated(self, part: Parameter, found: Text | None, line: int) -> Text | list[Chunk]:
        operator = part.operator
        if operator.lstrip(":") in ("-", "=", "+", "?") and operator:
            return self._defaulted(part, found, line)
        value = self._or_unknown(found, part, line)
        if value.known is None:
            name = condensed(part.source)
            return unknown_text(undecided(name, line, ONLY_RUNNING, value.unknowns))
        return self._edited(part, value.known, line)

    def _defaulted(self, part: Parameter, found: Text | None, line: int) -> Text | list[Chunk]:
        """`${x:-operand}`, `${x:=operand}`, `${x:+operand}`, `${x:?message}`, and those without the colon."""
        operator = part.operator
        if found is not None and found.unknowns and ":" in operator and not found.is_surely_filled:
            if operator == ":?":
                return found
            name = condensed(part.source)
            return unknown_text(undecided(name, line, ONLY_RUNNING, found.unknowns))
        is_missing = found is None or (":" in operator and not found.pieces)
        if operator.endswith("+"):
            return Text((), line) if is_missing else self._operand(part, line)
        if not is_missing:
            assert found is not None
            return found
        if operator.endswith("?"):
            return self._required(part, found, line)
        default = self._operand(part, line)
        if part.name.isidentifier():
            whole = joined((one.value for one in default), line)
            defaults = self._scope.outside.defaults
            if not self._scope.is_settled(part.name) or part.name in defaults:
                defaults[part.name] = whole.shown
            if not self._scope.is_settled(part.name):
                default = [replace(one, value=needing(one.value, part.name)) for one in default]
                whole = needing(whole, part.name)
            if operator.endswith("="):
                self._scope.set(part.name, whole)
        return default

    def _operand(self, part: Parameter, line: int) -> list[Chunk]:
        """The operand in place of the parameter: where it is not quoted, its own quotes count."""
        operand = word_of(part.operand, line, is_quoted=part.is_quoted)
        chunks = self._expander.chunks(operand, with_home=not part.is_quoted)
        return [replace(one, is_written=False) for one in chunks]

    def _required(self, part: Parameter, found: Text | None, line: int) -> Text:
        """`${x:?message}` without a value: the script ends, unless the user can give it one."""
        message = word_of(part.operand, line, is_quoted=part.is_quoted)
        said = self._expander.text(message).shown or "it has no value"
        if found is None and not self._scope.is_settled(part.name):
            name = part.name if part.name.isidentifier() else f"${part.name}"
            return unknown_text(Unknown(name, line, f"the script asks for it: {said}", (name,)))
        raise ScriptEnds(line, f"{part.name}: {said}")

    def _edited(self, part: Parameter, value: str, line: int) -> Text:
        """`${x#a}`, `${x/a/b}`, `${x:1:2}`, `${x^^}` of a known string."""
        operator = part.operator
        if operator == ":":
            return self._slice_text(part, value, line)
        if operator[0] in "^,":
            return self._with_case(part, value, line)
        try:
            if operator[0] == "/":
                return self._replaced(part, value, line)
            affix = self._expander.pattern(word_of(part.operand, line, is_quoted=False))
            if affix is None or isinstance(affix, Unknown):
                return self._undecided(part, line, affix)
            return text(trimmed(value, affix, operator), line)
        except TooMuchWork:
            reason = f"{part.source} takes too long to match"
            raise too_much(self._scope.origin, line, reason, "Write the value out") from None

    def _with_case(self, part: Parameter, value: str, line: int) -> Text:
        """`${x^}`, `${x^^}`, `${x,}`, `${x,,}`: of characters that fit the operand, where there is one."""
        changed = self._expander.pattern(word_of(part.operand or "?", line, is_quoted=False))
        if changed is None or isinstance(changed, Unknown):
            return self._undecided(part, line, changed)
        change = str.upper if part.operator[0] == "^" else str.lower
        reached = len(value) if len(part.operator) == 2 else 1
        start = "".join(change(one) if changed.fits(one) else one for one in value[:reached])
        return text(start + value[reached:], line)

    def _replaced(self, part: Parameter, value: str, line: int) -> Text:
        old_source, new_source = _halves(
            part.operand, first=0 if len(part.operator) == 2 and part.operator != "//" else 1
        )
        old = self._expander.pattern(word_of(old_source, line, is_quoted=False))
        new = self._expander.text(word_of(new_source, line, is_quoted=False))
        if old is None or isinstance(old, Unknown) or new.known is None:
            return self._undecided(part, line, old, new.unknowns)
        everywhere, anchor = part.operator == "//", part.operator[1:].replace("/", "")
        return text(replaced(value, old, new.known, everywhere=everywhere, anchor=anchor), line)

    def _undecided(
        self, part: Parameter, line: int, cause: object, more: Sequence[Unknown] = ()
    ) -> Text:
        causes = [*([cause] if isinstance(cause, Unknown) else []), *more]
        return unknown_text(undecided(condensed(part.source), line, ONLY_RUNNING, causes))

    def _slice_text(self, part: Parameter, value: str, line: int) -> Text:
        bounds = self._bounds(part, len(value), line)
        if isinstance(bounds, Unknown):
            return self._undecided(part, line, bounds)
        return text(value[bounds[0] : bounds[1]], line)

    def _bounds(self, part: Parameter, size: int, line: int) -> tuple[int, int] | Unknown:
        """`:start:length` as offsets; a start before zero counts from the end."""
        first, colon, second = part.operand.partition(":")
        start = self._expander.arithmetic(first, line)
        length = self._expander.arithmetic(second, line) if colon else size
        if isinstance(start, Unknown):
            return start
        if isinstance(length, Unknown):
            return length
        start = max(start + size, size if start + size < 0 else 0) if start < 0 else start
        end = start + length if length >= 0 else size + length
        return min(start, size), max(min(end, size), min(start, size))

    def _length(self, part: Parameter, line: int) -> Text:
        if "@" in (part.name, part.index) or "*" in (part.name, part.index):
            items = self._items(part, line)
            if any(one.unknowns and len(items) == 1 for one in items):
                return self._undecided(part, line, items[0].unknowns[0])
            return text(str(len(items)), line)
        found = (
            self._plain(part.name, line)
            if part.index is None
            else self.item(part.name, part.index, line)
        )
        value = self._or_unknown(found, part, line)
        if value.known is None:
            return self._undecided(part, line, value.unknowns[0])
        return text(str(len(value.known)), line)

    def _indirect(self, part: Parameter, line: int) -> Text | list[Chunk]:
        if part.index in ("@", "*"):
            value = self._scope.lookup(part.name)
            keys = [key for key, _ in value.items] if isinstance(value, Array) else []
            return self._shaped(part, [text(str(key), line) for key in keys], line)
        if part.operator in ("@", "*"):
            names = sorted(one for one in self._scope.variables if one.startswith(part.name))
            return self._shaped(part, [text(one, line) for one in names], line)
        target = self._or_unknown(self._plain(part.name, line), part, line)
        found = re.fullmatch(r"([A-Za-z_]\w*|\d+)(?:\[([^]]*)\])?", target.known or "", re.ASCII)
        if found is None:
            return self._undecided(part, line, next(iter(target.unknowns), None))
        inner = Parameter(
            found[1], found[2], part.operator, part.operand, "", part.is_quoted, part.source
        )
        return self._value(inner, line)

    def _list(self, part: Parameter, line: int) -> Text | list[Chunk]:
        """`$@`, `${x[*]}` and their slices and edits."""
        items = self._items(part, line)
        operator = part.operator
        if operator.lstrip(":") in ("-", "=", "+", "?") and operator:
            is_missing = not items or (":" in operator and not any(one.pieces for one in items))
            if is_missing == operator.endswith("+"):
                return [] if is_missing else self._shaped(part, items, line)
            return self._operand(part, line)
        if operator == ":":
            # $0 is the first of $@ here.
            listed = [text("bash"), *items] if part.name in "@*" else items
            bounds = self._bounds(part, len(listed), line)
            if isinstance(bounds, Unknown):
                return self._undecided(part, line, bounds)
            return self._shaped(part, listed[bounds[0] : bounds[1]], line)
        if operator:
            items = [
                self._edited(part, one.known, line) if one.known is not None else one
                for one in items
            ]
        return self._shaped(part, items, line)

    def _items(self, part: Parameter, line: int) -> list[Text]:
        if part.name in ("@", "*"):
            return list(self._scope.arguments)
        value = self._scope.lookup(part.name)
        if isinstance(value, Array):
            return list(value.values)
        if value is None:
            settled = self._scope.is_settled(part.name)
            return [] if settled else [self._or_unknown(None, part, line)]
        return [value]

    def _shaped(self, part: Parameter, items: list[Text], line: int) -> Text | list[Chunk]:
        """The items one by one, or as the one string that `"$*"` is."""
        if not part.is_quoted or "@" in (part.name, part.index, part.operator):
            return [
                Chunk(item, part.is_quoted, starts_word=position > 0)
                for position, item in enumerate(items)
            ]
        separators = self._scope.read("IFS", line).known
        separator = " " if separators is None else separators[:1]
        parts = [one for item in items for one in (separator, item)]
        return joined(parts[1:], line)


def _halves(operand: str, first: int) -> tuple[str, str]:
    """`old` and `new` of `old/new`, at the first slash from `first` on that is not quoted."""
    at = 0
    while at < len(operand):
        if operand[at] == "/" and at >= first:
            return operand[:at], operand[at + 1 :]
        at = max(at + 1, after_quoted(operand, at, 0))
    return operand, ""
