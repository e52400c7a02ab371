"""The script with everything masked that is not a statement: quotes, expansions, heredocs, odd characters.

The grammar (shell_tree.py) reads the masked script, which is as long as the script, and has to know
statements only; the words (shell_words.py) are read from the script itself, at the same offsets.
"""

import re
from dataclasses import dataclass

from miniverl.compiler.shell_spans import (
    PLACEHOLDER,
    TEST,
    WORD_ENDS,
    HeredocStart,
    after_parentheses,
    after_quoted,
    after_test,
    arithmetic_end,
    body_end,
    heredoc_at,
)

_PLAIN = re.compile(r"[A-Za-z0-9_./-]+|\+?=(?=\()", re.ASCII)
_RESERVED = re.compile(r"[{}!](?=[ \t\n;&|()<>]|$)")


@dataclass(frozen=True, slots=True)
class Heredoc:
    """The lines from `start` to `end`; when the delimiter is quoted, nothing in them is expanded."""

    start: int
    end: int
    is_quoted: bool
    strips_tabs: bool


class Mask:
    """`text` is the masked script; `comments` are the offsets where one starts."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.heredocs: list[Heredoc] = []
        self.comments: list[int] = []
        self._out = list(source)
        self._waiting: list[HeredocStart] = []
        at, starts_word = 0, True
        while at < len(source):
            at, starts_word = self._masked_at(at, starts_word)
        self.text = "".join(self._out)

    def _masked_at(self, at: int, starts_word: bool) -> tuple[int, bool]:
        """Masks what starts at `at`; where to go on, and whether a word can start there."""
        source, character = self.source, self.source[at]
        if not starts_word and (plain := _PLAIN.match(source, at)):
            return plain.end(), False
        if character == "\n":
            return self._after_bodies(at + 1), True
        if source.startswith("\\\n", at):
            return at + 2, starts_word
        if character == "#" and starts_word:
            return self._after_comment(at), True
        if character == "<" and (heredoc := heredoc_at(source, at)):
            self._waiting.append(heredoc)
            return heredoc.end, False
        if source.startswith("<<<", at):
            return at + 3, True
        if starts_word and character == "(" and (end := arithmetic_end(source, at)):
            # `for ((a; b; c))` needs its semicolons.
            inside = source[at + 2 : end - 2]
            self._out[at + 2 : end - 2] = [one if one in ";\n" else "A" for one in inside]
            return end, True
        end = _after_opaque(source, at, starts_word)
        if end > at:
            self._hide(at, end)
            return end, False
        if character in WORD_ENDS:
            return at + 1, True
        if starts_word and (reserved := _RESERVED.match(source, at)):
            return reserved.end(), False
        plain = _PLAIN.match(source, at)
        if plain is None:
            self._hide(at, at + 1)
        return plain.end() if plain else at + 1, False

    def _hide(self, start: int, end: int) -> None:
        self._out[start:end] = "A" * (end - start)

    def _after_comment(self, at: int) -> int:
        self.comments.append(at)
        end = self.source.find("\n", at)
        end = len(self.source) if end < 0 else end
        self._hide(at + 1, end)
        return end

    def _after_bodies(self, at: int) -> int:
        """Masks the bodies of the heredocs named in the line that ends before `at`."""
        for heredoc in self._waiting:
            start = at
            end, at = body_end(self.source, start, heredoc)
            self.heredocs.append(Heredoc(start, end, heredoc.is_quoted, heredoc.strips_tabs))
            body = self.source[start:end]
            self._out[start:end] = ["\n" if one == "\n" else "." for one in body]
        self._waiting.clear()
        return at


def _after_opaque(source: str, at: int, starts_word: bool) -> int:
    """The offset after what the grammar need not see; `at` when nothing starts there."""
    character = source[at]
    if starts_word and TEST.match(source, at):
        return after_test(source, at)
    if character in "<>" and source.startswith("(", at + 1):
        return after_parentheses(source, at + 1)
    if character == "<" and source[at - 1 : at] == "=" and (gap := PLACEHOLDER.match(source, at)):
        return gap.end()
    return after_quoted(source, at, 0)
