"""`[ ... ]`, `test` and `[[ ... ]]` on known values; what looks at files or at unknowns is undecided."""

import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from miniverl.compiler.shell_expand import Expander
from miniverl.compiler.shell_patterns import TooMuchWork
from miniverl.compiler.shell_state import ONLY_RUNNING, Scope
from miniverl.compiler.shell_syntax import Word
from miniverl.compiler.shell_values import (
    Array,
    Text,
    Truth,
    Unknown,
    condensed,
    joined,
    text,
    undecided,
)
from miniverl.compiler.shell_words import Scanner

TRUTHS = {"true": True, "false": False, "1": True, "0": False, "yes": True, "no": False}
_NUMERIC: dict[str, Callable[[int, int], bool]] = {
    "-eq": lambda left, right: left == right,
    "-ne": lambda left, right: left != right,
    "-lt": lambda left, right: left < right,
    "-le": lambda left, right: left <= right,
    "-gt": lambda left, right: left > right,
    "-ge": lambda left, right: left >= right,
}
_STRINGS: dict[str, Callable[[str, str], bool]] = {
    "=": lambda left, right: left == right,
    "==": lambda left, right: left == right,
    "!=": lambda left, right: left != right,
    "<": lambda left, right: left < right,
    ">": lambda left, right: left > right,
}
_FILES = frozenset({"-ef", "-nt", "-ot"})
_BINARY = frozenset({*_NUMERIC, *_STRINGS, *_FILES, "=~"})
_UNARY = re.compile(r"-[a-zA-Z]$")
_REPEATED_GROUP = re.compile(r"\)[*+{?]")
MAX_MATCHED = 200


def negated(truth: Truth) -> Truth:
    return truth if isinstance(truth, Unknown) else not truth


class Conditions:
    """`source` is the condition as written: its name, when it cannot be decided."""

    def __init__(self, expander: Expander) -> None:
        self._expander = expander
        self._scope: Scope = expander.scope

    def bracket(self, words: Sequence[Text], source: str, line: int) -> Truth:
        """`[ words ]` and `test words`."""
        given = self._given(source)
        if given is not None:
            return given
        return _Bracket(self, list(words), condensed(source), line).value()

    def double(self, source: str, inside: str, line: int) -> Truth:
        """`[[ inside ]]`."""
        given = self._given(source)
        if given is not None:
            return given
        return _Double(self, inside, condensed(source), line).value()

    def unary(self, operator: str, value: Text, name: str, line: int) -> Truth:
        """`-n x`, `-d x`, ..."""
        if operator in ("-z", "-n"):
            if value.known is None and not value.is_surely_filled:
                return undecided(name, line, ONLY_RUNNING, value.unknowns)
            return bool(value.pieces) == (operator == "-n")
        if operator == "-v" and value.known is not None:
            return self._scope.lookup(value.known) is not None
        return undecided(name, line, ONLY_RUNNING)

    def binary(self, left: Text, operator: str, right: Text, name: str, line: int) -> Truth:
        """`x = y` and `1 -lt 2`, both sides whole strings."""
        if operator in _FILES:
            return undecided(name, line, ONLY_RUNNING)
        if left.known is None or right.known is None:
            return undecided(name, line, ONLY_RUNNING, (*left.unknowns, *right.unknowns))
        if operator in _STRINGS:
            return _STRINGS[operator](left.known, right.known)
        try:
            return _NUMERIC[operator](int(left.known), int(right.known))
        except ValueError:
            return False  # bash says so on stderr, and the test fails

    def numeric(self, left: Text, operator: str, right: Text, name: str, line: int) -> Truth:
        """`x -lt y` of `[[ ]]`, where both sides are expressions."""
        unknowns = (*left.unknowns, *right.unknowns)
        if left.known is None or right.known is None:
            return undecided(name, line, ONLY_RUNNING, unknowns)
        numbers = [self._expander.arithmetic(one, line) for one in (left.known, right.known)]
        first, second = numbers
        if isinstance(first, Unknown) or isinstance(second, Unknown):
            causes = [one for one in numbers if isinstance(one, Unknown)]
            return undecided(name, line, ONLY_RUNNING, causes)
        return _NUMERIC[operator](first, second)

    def fits(self, left: Text, word: Word, name: str, line: int) -> Truth:
        """`[[ x == pattern ]]`."""
        pattern = self._expander.pattern(word)
        causes = [*left.unknowns, *([pattern] if isinstance(pattern, Unknown) else [])]
        if left.known is None or pattern is None or isinstance(pattern, Unknown):
            return undecided(name, line, ONLY_RUNNING, causes)
        try:
            return pattern.fits(left.known)
        except TooMuchWork:
            return undecided(name, line, "the pattern takes too long to match")

    def matches(self, left: Text, word: Word, name: str, line: int) -> Truth:
        """`[[ x =~ expression ]]`; expressions that could run long are left undecided."""
        pieces = self._expander.chunks(word)
        right = joined(
            text(re.escape(one.value.known)) if one.is_quoted and one.value.known else one.value
            for one in pieces
        )
        if left.known is None or right.known is None:
            return undecided(name, line, ONLY_RUNNING, (*left.unknowns, *right.unknowns))
        expression = re.sub(r"\[:(\w+):\]", _character_class, right.known)
        repeats = len(re.findall(r"[*+{]", expression))
        if len(left.known) > MAX_MATCHED or repeats > 3 or _REPEATED_GROUP.search(expression):
            return undecided(name, line, "the expression is not matched here")
        try:
            found = re.search(expression, left.known)
        except re.error:
            return undecided(name, line, "the expression is not matched here")
        groups = [found[0], *(one or "" for one in found.groups())] if found else []
        self._scope.set("BASH_REMATCH", Array().with_values(text(one, line) for one in groups))
        return found is not None

    def level(self, line: int) -> AbstractContextManager[None]:
        """One level deeper into a condition."""
        return self._scope.budget.level(line)

    def string(self, word: Word) -> Text:
        return self._expander.text(word)

    def _given(self, source: str) -> bool | None:
        given = self._scope.outside.given(condensed(source))
        return None if given is None else TRUTHS.get(given.lower(), bool(given))


def both(left: Truth, right: Truth, name: str, line: int) -> Truth:
    """`left && right`, both already there."""
    if left is False or right is False:
        return False
    causes = [one for one in (left, right) if isinstance(one, Unknown)]
    return undecided(name, line, ONLY_RUNNING, causes) if causes else True


def either(left: Truth, right: Truth, name: str, line: int) -> Truth:
    """`left || right`, both already there."""
    return negated(both(negated(left), negated(right), name, line))


class _Bracket:
    """The grammar of `[ ... ]`: an expression of words, where `-a` binds closer than `-o`."""

    def __init__(self, conditions: Conditions, words: list[Text], name: str, line: int) -> None:
        self._conditions = conditions
        self._words = words
        self._name = name
        self._line = line
        self._at = 0

    def value(self) -> Truth:
        if not self._words:
            return False
        truth = self._or()
        return truth if self._at >= len(self._words) else False

    def _peek(self, ahead: int = 0) -> str | None:
        at = self._at + ahead
        return self._words[at].known if at < len(self._words) else None

    def _take(self) -> Text:
        self._at += 1
        return self._words[self._at - 1] if self._at <= len(self._words) else Text()

    def _or(self) -> Truth:
        truth = self._and()
        while self._peek() == "-o":
            self._at += 1
            truth = either(truth, self._and(), self._name, self._line)
        return truth

    def _and(self) -> Truth:
        truth = self._not()
        while self._peek() == "-a":
            self._at += 1
            truth = both(truth, self._not(), self._name, self._line)
        return truth

    def _not(self) -> Truth:
        negations = 0
        while self._peek() == "!" and len(self._words) - self._at > 1 and not self._is_binary():
            self._at += 1
            negations += 1
        truth = self._primary()
        return negated(truth) if negations % 2 else truth

    def _is_binary(self) -> bool:
        return self._peek(1) in _BINARY and len(self._words) - self._at >= 3

    def _primary(self) -> Truth:
        if self._is_binary():
            left, operator, right = self._take(), self._take().known or "", self._take()
            return self._conditions.binary(left, operator, right, self._name, self._line)
        if self._peek() == "(" and len(self._words) - self._at > 1:
            self._at += 1
            with self._conditions.level(self._line):
                truth = self._or()
            self._at += 1
            return truth
        operator = self._peek() or ""
        if _UNARY.match(operator) and len(self._words) - self._at > 1:
            self._at += 1
            return self._conditions.unary(operator, self._take(), self._name, self._line)
        return self._conditions.unary("-n", self._take(), self._name, self._line)


class _Double:
    """The grammar of `[[ ... ]]`, whose words are not split."""

    def __init__(self, conditions: Conditions, inside: str, name: str, line: int) -> None:
        self._conditions = conditions
        self._scanner = Scanner(inside, 0, len(inside), lambda _: line)
        self._name = name
        self._line = line

    def value(self) -> Truth:
        return self._or()

    def _or(self) -> Truth:
        truth = self._and()
        while self._scanner.takes("||"):
            truth = either(truth, self._and(), self._name, self._line)
        return truth

    def _and(self) -> Truth:
        truth = self._primary()
        while self._scanner.takes("&&"):
            truth = both(truth, self._primary(), self._name, self._line)
        return truth

    def _primary(self) -> Truth:
        if self._scanner.takes("("):
            with self._conditions.level(self._line):
                truth = self._or()
            self._scanner.takes(")")
            return truth
        first = self._scanner.word()
        if first.bare == "!":
            with self._conditions.level(self._line):
                return negated(self._primary())
        if _UNARY.match(first.bare or "") and self._scanner.has_word():
            value = self._conditions.string(self._scanner.word())
            return self._conditions.unary(first.bare or "", value, self._name, self._line)
        left = self._conditions.string(first)
        operator = self._scanner.takes("<", ">") or (
            self._scanner.word().bare if self._scanner.has_word() else None
        )
        if operator is None:
            return self._conditions.unary("-n", left, self._name, self._line)
        return self._compared(left, operator)

    def _compared(self, left: Text, operator: str) -> Truth:
        self._scanner.has_word()
        right = self._scanner.word(frozenset(" \t\n")) if operator == "=~" else self._scanner.word()
        if operator == "=~":
            return self._conditions.matches(left, right, self._name, self._line)
        if operator in ("=", "==", "!="):
            truth = self._conditions.fits(left, right, self._name, self._line)
            return negated(truth) if operator == "!=" else truth
        value = self._conditions.string(right)
        if operator in _NUMERIC:
            return self._conditions.numeric(left, operator, value, self._name, self._line)
        if operator in _BINARY:
            return self._conditions.binary(left, operator, value, self._name, self._line)
        return undecided(self._name, self._line, f"`{operator}` is not read")


def _character_class(found: re.Match[str]) -> str:
    classes = {"digit": "0-9", "alpha": "a-zA-Z", "alnum": "a-zA-Z0-9", "space": r"\s"}
    return classes.get(found[1], found[0])
