"""A script's statements, read by the grammar of tree-sitter-bash; nothing is run, and nothing is expanded."""

import functools
import re
from bisect import bisect_right
from collections.abc import Iterator

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

from miniverl.compiler.shell_mask import Mask
from miniverl.compiler.shell_spans import OPERATORS, ScanError
from miniverl.compiler.shell_values import Budget, script_problem, too_much
from miniverl.engine.problem import WrongCall

# The grammar's memory and time grow with the square of these; upstream's longest scripts have 56 and 302.
MAX_OPERATORS = 4_000
MAX_WORDS = 60_000
MAX_LEVELS = 150


class Script:
    """One text of commands: the script itself, or a string that it gives to `eval` or to `bash -c`.

    Raises WrongCall where bash would not read it either.
    """

    def __init__(self, source: str, origin: str, first_line: int = 1) -> None:
        self.source = source
        self.origin = origin
        self._first_line = first_line
        self._line_starts = [0, *(one.end() for one in re.finditer("\n", source))]
        try:
            mask = Mask(source)
        except ScanError as error:
            raise self.unreadable(error.offset, error.what) from None
        self.heredocs = mask.heredocs
        self.masked = mask.text
        self.comment_lines = frozenset(map(self.line_at, mask.comments))
        self._check_size(mask.text)
        self.root = _parser().parse(mask.text.encode("ascii")).root_node
        self._check_tree()

    def line_at(self, offset: int) -> int:
        """The line of the file in which that character stands."""
        return self._first_line - 1 + bisect_right(self._line_starts, offset)

    def unreadable(self, offset: int, what: str) -> WrongCall:
        """The refusal of a script that has no meaning in bash."""
        line = self.line_at(offset)
        start = self._line_starts[line - self._first_line]
        text = self.source[start:].partition("\n")[0].strip()
        fix = "Run `bash -n` on the script, which names the same place, and mend it"
        return WrongCall(
            [script_problem(self.origin, line, "script", text[:120], f"there is {what}", fix)]
        )

    def _check_size(self, masked: str) -> None:
        without_comments = re.sub(r"(?m)#A*$", "", masked)
        operators = sum(map(without_comments.count, OPERATORS))
        words = len(without_comments.split())
        if operators > MAX_OPERATORS or words > MAX_WORDS:
            reason = (
                f"it has {operators:,} operators and {words:,} words, and {MAX_OPERATORS:,} and "
                f"{MAX_WORDS:,} are read"
            )
            raise too_much(self.origin, self._first_line, reason, "Give the launch alone")

    def _check_tree(self) -> None:
        for node, level in _nodes(self.root):
            if level > MAX_LEVELS:
                reason = f"it nests statements more than {MAX_LEVELS} deep"
                line = self.line_at(node.start_byte)
                raise too_much(self.origin, line, reason, "Write it flat")
            if node.is_error or node.is_missing:
                what = f"no `{node.type}`" if node.is_missing else "something bash does not read"
                raise self.unreadable(node.start_byte, what)


@functools.lru_cache(maxsize=256)
def parsed(source: str, origin: str, first_line: int) -> Script:
    """A script inside the script, read once however often it runs."""
    return Script(source, origin, first_line)


def statements(script: Script, budget: Budget) -> Iterator[Node]:
    """The statements at the top of a script."""
    budget.spend(len(script.source), script.line_at(0))
    yield from statements_in(script.root)


def statements_in(node: Node) -> list[Node]:
    """Its named children: no keywords, operators and comments."""
    return [one for one in node.named_children if one.type != "comment"]


@functools.cache
def _parser() -> Parser:
    return Parser(Language(tree_sitter_bash.language()))


def _nodes(root: Node) -> Iterator[tuple[Node, int]]:
    """Every node with its level, without recursion; subtrees without errors in them only for their depth."""
    pending = [(root, 0)]
    while pending:
        node, level = pending.pop()
        yield node, level
        if level <= MAX_LEVELS:
            pending.extend((child, level + 1) for child in reversed(node.children))
