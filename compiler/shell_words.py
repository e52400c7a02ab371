"""A word of the shell as its parts: what is written, what is quoted, and what is to be expanded.

data.files="['$HOME/a']"   Literal, quoted Literal, quoted Parameter, quoted Literal
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby

from miniverl.compiler.shell_spans import (
    BLANKS,
    PLACEHOLDER,
    WORD_ENDS,
    ScanError,
    after_expansion,
    after_parentheses,
    after_quoted,
    after_single,
    arithmetic_end,
    heredoc_at,
)
from miniverl.compiler.shell_syntax import (
    Arithmetic,
    Assignment,
    Command,
    Literal,
    Parameter,
    Part,
    Redirect,
    Substitution,
    Word,
)

DECLARING = frozenset({"export", "readonly", "local", "declare", "typeset"})
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\[[^]\n]*\])?(\+?)=", re.ASCII)
_ITEM = re.compile(r"\[([^]\n]+)\]=")
_REDIRECT = re.compile(r"(\d*|&(?=>))(<<<|<<-?|>>|>\||<>|[<>]&|[<>])")
_WRITTEN = re.compile(r"[\w./:,+@%-]+", re.ASCII)
_QUOTED = re.compile(r'[^$`"\\]+')
_PARAMETER = re.compile(r"([A-Za-z_]\w*|\d+|[@*#?$!-])", re.ASCII)
_OPERATOR = re.compile(r":?[-=+?]|##?|%%?|/[/#%]?|\^\^?|,,?|:|@(?=[A-Za-z]$)")


class Scanner:
    """Reads words from `source` between two offsets; `line_at` says on which line an offset stands."""

    def __init__(self, source: str, start: int, end: int, line_at: Callable[[int], int]) -> None:
        self._source = source
        self._at = start
        self._end = end
        self._line_at = line_at

    def command(self) -> Command:
        """The simple command that starts here, up to an operator or the end of its line."""
        line = self._line_at(self._at)
        assignments: list[Assignment] = []
        words: list[Word | Assignment] = []
        redirects: list[Redirect] = []
        while self._skip_blanks():
            redirect = self._redirect()
            if redirect is not None:
                redirects.append(redirect)
                continue
            if self._source[self._at] in WORD_ENDS and not self._is_opaque():
                break
            declares = bool(words) and isinstance(words[0], Word) and words[0].bare in DECLARING
            assignment = self.assignment() if not words or declares else None
            if assignment is None:
                words.append(self.word())
            elif words:
                words.append(assignment)
            else:
                assignments.append(assignment)
        return Command(tuple(assignments), tuple(words), tuple(redirects), line)

    def words(self) -> Iterator[Word]:
        """All words up to the end; line ends and comments between them count as blanks."""
        while self._skip_blanks(lines=True):
            if not self.has_word():
                raise ScanError(self._at, f"an unexpected `{self._source[self._at]}`")
            yield self.word()

    def assignment(self) -> Assignment | None:
        """The assignment that starts here, if one does."""
        found = _ASSIGNMENT.match(self._source, self._at, self._end)
        if found is None:
            return None
        line = self._line_at(self._at)
        index = found[2][1:-1] if found[2] else None
        self._at = found.end()
        if not self._source.startswith("(", self._at):
            return Assignment(found[1], index, bool(found[3]), self.word(), None, line)
        end = after_parentheses(self._source, self._at)
        inside = Scanner(self._source, self._at + 1, end - 1, self._line_at)
        self._at = end
        return Assignment(found[1], index, bool(found[3]), None, tuple(inside.words()), line)

    def item(self) -> tuple[str, Word] | None:
        """Key and value of an array's `[key]=value`, if that is what starts here."""
        found = _ITEM.match(self._source, self._at, self._end)
        if found is None:
            return None
        self._at = found.end()
        return found[1], self.word()

    def word(self, ends: frozenset[str] = WORD_ENDS) -> Word:
        """The word that starts here; empty where none does."""
        start = self._at
        parts: list[Part] = []
        while self._at < self._end:
            character = self._source[self._at]
            if character == "<" and self._source[self._at - 1 : self._at] == "=":
                gap = PLACEHOLDER.match(self._source, self._at)
                if gap is not None:
                    parts.append(Literal(gap[0], False))
                    self._at = gap.end()
                    continue
            if character in ends and not self._is_opaque():
                break
            parts.extend(self._parts_at(is_quoted=False))
        return Word(_merged(parts), self._source[start : self._at], self._line_at(start))

    def takes(self, *tokens: str) -> str | None:
        """Goes past the first of the tokens that stands next, blanks and line ends before it too."""
        self._skip_blanks(lines=True)
        for token in tokens:
            if self._source.startswith(token, self._at, self._end):
                self._at += len(token)
                return token
        return None

    def has_word(self) -> bool:
        """A word stands next, not an operator."""
        if not self._skip_blanks(lines=True):
            return False
        return self._source[self._at] not in WORD_ENDS or self._is_opaque()

    def whole(self, *, is_quoted: bool) -> Word:
        """Everything up to the end as one word, blanks included."""
        start = self._at
        parts: list[Part] = []
        while self._at < self._end:
            parts.extend(self._parts_at(is_quoted=is_quoted))
        return Word(_merged(parts), self._source[start : self._end], self._line_at(start))

    def _skip_blanks(self, lines: bool = False) -> bool:
        """Goes past blanks, continued lines and, where `lines` count as blanks, comments."""
        blanks = BLANKS + "\n" if lines else BLANKS
        while self._at < self._end:
            character = self._source[self._at]
            if character in blanks:
                self._at += 1
            elif self._source.startswith("\\\n", self._at):
                self._at += 2
            elif character == "#":
                line_end = self._source.find("\n", self._at)
                self._at = self._end if line_end < 0 else min(line_end, self._end)
            else:
                return True
        return False

    def _is_opaque(self) -> bool:
        """A process substitution starts here: `<(...)`."""
        return self._source[self._at] in "<>" and self._source.startswith("(", self._at + 1)

    def _redirect(self) -> Redirect | None:
        found = _REDIRECT.match(self._source, self._at, self._end)
        if found is None or (self._is_opaque() and not found[1]):
            return None
        heredoc = heredoc_at(self._source, found.start(2))
        if heredoc is not None:
            self._at = heredoc.end
            return Redirect(found[1], "<<", None)
        self._at = found.end()
        self._skip_blanks()
        return Redirect(found[1], found[2], self.word())

    def _parts_at(self, *, is_quoted: bool) -> Iterator[Part]:
        """The parts that start at the next character, which is passed."""
        source, at = self._source, self._at
        character = source[at]
        if character == "\\":
            self._at = at + 2
            following = source[at + 1 : at + 2]
            if following != "\n":
                is_escape = not is_quoted or following in '$`"\\'
                yield Literal(following if is_escape else character + following, True)
        elif character in "$`":
            self._at = after_expansion(source, at, is_quoted=is_quoted)
            yield self._expansion(at, self._at, is_quoted)
        elif is_quoted:
            # A quote inside a quoted word stands in an operand: "${x:-"a b"}".
            self._at = _end_of_run(_QUOTED, source, at, self._end)
            yield Literal("" if character == '"' else source[at : self._at], True)
        elif character == "'":
            self._at = after_single(source, at)
            yield Literal(source[at + 1 : self._at - 1], True)
        elif character == '"':
            self._at = after_quoted(source, at, 0)
            yield Literal("", True)
            inside = Scanner(source, at + 1, self._at - 1, self._line_at)
            yield from inside.whole(is_quoted=True).parts
        elif self._is_opaque():
            self._at = after_parentheses(source, at + 1)
            yield Substitution("", source[at : self._at], self._line_at(at), False)
        else:
            self._at = _end_of_run(_WRITTEN, source, at, self._end)
            yield Literal(source[at : self._at], False)

    def _expansion(self, start: int, end: int, is_quoted: bool) -> Part:
        """The part that `source[start:end]` stands for; it starts with `$` or a backtick."""
        written = self._source[start:end]
        line = self._line_at(start)
        if written.startswith("`"):
            commands = re.sub(r"\\([$`\\])", r"\1", written[1:-1])
            return Substitution(commands, written, line, is_quoted)
        if written.startswith("$'"):
            return Literal(_ansi(written[2:-1]), True)
        if written.startswith("$(") and arithmetic_end(self._source, start + 1) == end:
            return Arithmetic(written[3:-2], is_quoted)
        if written.startswith("$("):
            return Substitution(written[2:-1], written, line, is_quoted)
        if written.startswith("${"):
            return _parameter(written, start, is_quoted)
        if written.startswith('$"'):
            inside = Scanner(self._source, start + 2, end - 1, self._line_at)
            return Literal("".join(_plain(inside.whole(is_quoted=True).parts, start)), True)
        if written == "$":
            return Literal("$", is_quoted)
        return Parameter(written[1:], None, "", "", "", is_quoted, written)


def word_of(source: str, line: int, *, is_quoted: bool) -> Word:
    """A piece of a script as one word, as the operand of an expansion is one."""
    return Scanner(source, 0, len(source), lambda _: line).whole(is_quoted=is_quoted)


def _end_of_run(run: re.Pattern[str], source: str, at: int, end: int) -> int:
    """The offset after the plain characters that start at `at`, or after that one character."""
    found = run.match(source, at, end)
    return found.end() if found else at + 1


def _parameter(written: str, start: int, is_quoted: bool) -> Parameter:
    inside = written[2:-1]
    prefix = inside[0] if len(inside) > 1 and inside[0] in "#!" else ""
    rest = inside[len(prefix) :]
    name = _PARAMETER.match(rest)
    if name is None:
        raise ScanError(start, f"a substitution {written} that bash does not know")
    rest, index = rest[name.end() :], None
    if rest.startswith("["):
        index, bracket, rest = rest[1:].partition("]")
        if not bracket:
            raise ScanError(start, f"a substitution {written} that bash does not know")
    operator = _OPERATOR.match(rest)
    if rest and operator is None and not (prefix == "!" and rest in "@*"):
        raise ScanError(start, f"a substitution {written} that bash does not know")
    sign = operator[0] if operator else rest
    return Parameter(name[0], index, sign, rest[len(sign) :], prefix, is_quoted, written)


def _plain(parts: Sequence[Part], start: int) -> Iterator[str]:
    for part in parts:
        if not isinstance(part, Literal):
            raise ScanError(start, 'an expansion inside $"...", which is not read')
        yield part.text


def _ansi(body: str) -> str:
    """The string that `$'body'` stands for."""
    named = dict(zip("abefnrtv\\'\"?", "\a\b\x1b\f\n\r\t\v\\'\"?", strict=True))
    pattern = r"\\(?:x([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{1,4})|([0-7]{1,3})|(.))"

    def character(found: re.Match[str]) -> str:
        digits = found[1] or found[2]
        if digits:
            return chr(int(digits, 16))
        return chr(int(found[3], 8)) if found[3] else named.get(found[4], found[0])

    return re.sub(pattern, character, body, flags=re.DOTALL)


def _merged(parts: Iterable[Part]) -> tuple[Part, ...]:
    """Neighbouring literals of one kind as one."""
    merged: list[Part] = []
    for is_quoted, run in groupby(parts, _quoting):
        if is_quoted is None:
            merged.extend(run)
        else:
            written = "".join(one.text for one in run if isinstance(one, Literal))
            merged.append(Literal(written, is_quoted))
    return tuple(merged)


def _quoting(part: Part) -> bool | None:
    return part.is_quoted if isinstance(part, Literal) else None
