"""Control flow of a script: lists, pipelines, `if`, `case`, loops, functions.

What is known decides. What only running could tell is a branch that is read every way it can go: afterwards
a variable that differs is an unknown, and a way that ends the script is taken not to be gone.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from tree_sitter import Node

from miniverl.compiler.shell_conditions import negated
from miniverl.compiler.shell_expand import Expander
from miniverl.compiler.shell_loops import counted_for, for_each, while_holds
from miniverl.compiler.shell_spans import ScanError
from miniverl.compiler.shell_state import (
    ONLY_RUNNING,
    Function,
    Leaves,
    Scope,
    ScriptEnds,
    merged,
)
from miniverl.compiler.shell_syntax import Redirect, Word
from miniverl.compiler.shell_tree import Script, statements_in
from miniverl.compiler.shell_values import Piece, Text, Truth, Unknown, brief, condensed, undecided
from miniverl.compiler.shell_words import Scanner

Choice = Callable[[], Truth]

SIMPLE = frozenset(
    {
        "command",
        "variable_assignment",
        "variable_assignments",
        "declaration_command",
        "unset_command",
    }
)
# Where a failure ends a script under `set -e`.
_CHECKED = frozenset({*SIMPLE, "compound_statement", "subshell", "redirected_statement"})


@dataclass(frozen=True, slots=True)
class _Arm:
    """One arm of a `case`; `next_arm` is what ends it: `;;`, `;&` or `;;&`."""

    patterns: tuple[Node, ...]
    body: tuple[Node, ...]
    next_arm: str


class Flow(ABC):
    """What a shell does with the statements that hold other statements."""

    scope: Scope
    script: Script
    expander: Expander
    causes: list[Unknown]
    output: list[Piece | None] | None
    checked_levels: int
    turns: int
    rehearsals: int

    @abstractmethod
    def simple(self, node: Node) -> Truth:
        """A command without other commands in it."""

    @abstractmethod
    def note(self, line: int, sentence: str) -> None:
        """Something that the reader should know, once."""

    def source_of(self, node: Node) -> str:
        return self.script.source[node.start_byte : node.end_byte]

    def line_of(self, node: Node) -> int:
        return self.script.line_at(node.start_byte)

    def sequence(self, nodes: Sequence[Node]) -> Truth:
        """Statements one after another."""
        status: Truth = True
        for node in nodes:
            status = self.statement(node)
            stops = "e" in self.scope.options and self.checked_levels == 0
            if status is False and stops and node.type in _CHECKED:
                reason = (
                    f"`{brief(self.source_of(node))}` fails, and `set -e` ends the script there"
                )
                raise ScriptEnds(self.line_of(node), reason)
        return status

    def statement(self, node: Node) -> Truth:
        """One statement of any kind."""
        line = self.line_of(node)
        self.scope.budget.step(line)
        read = _READERS.get(node.type)
        if read is None:
            raise self.script.unreadable(node.start_byte, f"a `{node.type}` as a statement")
        with self.scope.budget.level(line):
            try:
                self.scope.status = read(self, node)
            except ScanError as error:
                raise self.script.unreadable(node.start_byte, error.what) from None
        return self.scope.status

    def branch(self, cause: Unknown, choices: Sequence[Choice]) -> Truth:
        """Every way that a branch can go, where only running could choose one."""
        start, printed = self.scope.copy(), self.output
        live: list[tuple[Truth, Scope, list[Piece | None] | None]] = []
        ended: list[ScriptEnds | Leaves] = []
        self.causes.append(cause)
        for choice in choices:
            self.scope.become(start.copy())
            self.output = None if printed is None else list(printed)
            try:
                status = choice()
                live.append((status, self.scope.copy(), self.output))
            except (ScriptEnds, Leaves) as end:
                ended.append(end)
        self.causes.pop()
        self.output = printed
        if not live:
            self.scope.become(start)
            raise next((one for one in ended if isinstance(one, Leaves)), ended[0])
        for way_out in ended:
            self.note(
                way_out.line,
                f"whether the script goes on here depends on {cause.name}; it is read as if it does",
            )
        scopes = [scope for _, scope, _ in live]
        self.scope.become(merged(scopes, cause) if len(scopes) > 1 else scopes[0])
        if printed is not None:
            ways = [way for _, _, way in live if way is not None]
            printed[:] = ways[0] if all(way == ways[0] for way in ways) else [*printed, None]
        statuses = {status for status, _, _ in live}
        only = statuses.pop() if len(statuses) == 1 else cause
        return only

    def condition(self, nodes: Sequence[Node]) -> Truth:
        """Statements whose failure decides something, so that `set -e` does not count."""
        self.checked_levels += 1
        try:
            return self.sequence(nodes)
        finally:
            self.checked_levels -= 1

    def in_subshell(self, read: Choice) -> Truth:
        """What it sets is lost, and an `exit` in it ends no more than itself."""
        saved = self.scope.copy()
        try:
            return read()
        except (ScriptEnds, Leaves) as end:
            return end.status
        finally:
            self.scope.become(saved)

    def _compound(self, node: Node) -> Truth:
        written = self.source_of(node)
        if not written.startswith("(("):
            return self.sequence(statements_in(node))
        value = self.expander.arithmetic(written[2:-2], self.line_of(node))
        return value if isinstance(value, Unknown) else value != 0

    def _subshell(self, node: Node) -> Truth:
        return self.in_subshell(lambda: self.sequence(statements_in(node)))

    def _negated(self, node: Node) -> Truth:
        return negated(self.condition(statements_in(node)))

    def _list(self, node: Node) -> Truth:
        left, right = statements_in(node)
        is_and = any(child.type == "&&" for child in node.children)
        status = self.condition([left])
        if isinstance(status, Unknown):
            return self.branch(status, [lambda: self.statement(right), lambda: not is_and])
        return self.statement(right) if status is is_and else status

    def _pipeline(self, node: Node) -> Truth:
        """Each part in a subshell of its own; the last one prints."""
        parts = statements_in(node)
        status: Truth = True
        outer = self.output
        for part in parts:
            self.output = outer if part is parts[-1] else None
            status = self.in_subshell(partial(self.statement, part))
        self.output = outer
        return status

    def _redirected(self, node: Node) -> Truth:
        body = node.child_by_field_name("body")
        status: Truth = True
        if body is not None and body.type in SIMPLE:
            status = self.simple(node)
        elif body is not None:
            outer = self.output
            after = Scanner(
                self.script.source, body.end_byte, node.end_byte, self.script.line_at
            ).command()
            self.output = None if prints_elsewhere(after.redirects) else outer
            status = self.statement(body)
            self.output = outer
        for redirect in node.children_by_field_name("redirect"):
            if redirect.type == "heredoc_redirect":
                status = self._after_heredoc(redirect, status)
        return status

    def _after_heredoc(self, heredoc: Node, status: Truth) -> Truth:
        """`command <<EOF | other`, `command <<EOF && other`: the grammar puts the others into the heredoc."""
        if status is False or any(one.type == "||" for one in heredoc.children):
            return status
        for child in statements_in(heredoc):
            if child.type in _READERS:
                status = self.statement(child)
        return status

    def _if(self, node: Node) -> Truth:
        arms, otherwise = _arms_of_if(node)
        return self._first_arm(arms, otherwise)

    def _first_arm(
        self, arms: Sequence[tuple[list[Node], list[Node]]], otherwise: Sequence[Node]
    ) -> Truth:
        if not arms:
            return self.sequence(otherwise)
        (condition, body), *rest = arms
        status = self.condition(condition)
        if isinstance(status, Unknown):
            return self.branch(
                status, [lambda: self.sequence(body), lambda: self._first_arm(rest, otherwise)]
            )
        return self.sequence(body) if status else self._first_arm(rest, otherwise)

    def _case(self, node: Node) -> Truth:
        word_node = node.child_by_field_name("value")
        assert word_node is not None
        value = self.expander.text(self._scanner(word_node, word_node).word())
        arms = [_arm(one) for one in node.named_children if one.type == "case_item"]
        return self._first_fit(value, condensed(self.source_of(word_node)), arms)

    def _first_fit(self, value: Text, written: str, arms: Sequence[_Arm]) -> Truth:
        for position, arm in enumerate(arms):
            rest = arms[position + 1 :]
            fits = self._fits(value, written, arm)
            if isinstance(fits, Unknown):
                return self.branch(
                    fits,
                    [
                        partial(self._arm, value, written, arm, rest),
                        partial(self._first_fit, value, written, rest),
                    ],
                )
            if fits:
                return self._arm(value, written, arm, rest)
        return True

    def _arm(self, value: Text, written: str, arm: _Arm, rest: Sequence[_Arm]) -> Truth:
        status = self.sequence(arm.body)
        if arm.next_arm == ";&" and rest:
            return self._arm(value, written, rest[0], rest[1:])
        return self._first_fit(value, written, rest) if arm.next_arm == ";;&" else status

    def _fits(self, value: Text, written: str, arm: _Arm) -> Truth:
        for node in arm.patterns:
            pattern = self.expander.pattern(self._scanner(node, node).word())
            line = self.line_of(node)
            if pattern is not None and not isinstance(pattern, Unknown):
                if pattern.fits_anything:
                    return True
                if value.known is not None:
                    if pattern.fits(value.known):
                        return True
                    continue
            causes = [*value.unknowns, *([pattern] if isinstance(pattern, Unknown) else [])]
            return undecided(f"case {written}", line, ONLY_RUNNING, causes)
        return False

    def _define(self, node: Node) -> Truth:
        name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
        assert name is not None
        assert body is not None
        self.scope.functions[self.source_of(name)] = Function(body, self.script)
        return True

    def words(self, nodes: Sequence[Node]) -> list[Word]:
        """The words of neighbouring nodes."""
        return list(self._scanner(nodes[0], nodes[-1]).words()) if nodes else []

    def _scanner(self, first: Node, last: Node) -> Scanner:
        return Scanner(self.script.source, first.start_byte, last.end_byte, self.script.line_at)


def prints_elsewhere(redirects: Sequence[Redirect]) -> bool:
    """What the command prints goes to a file or to stderr."""
    return any(
        one.descriptor in ("", "1", "&")
        and one.operator in (">", ">>", ">|", ">&")
        and not (one.operator == ">&" and one.target is not None and one.target.bare == "1")
        for one in redirects
    )


def _arms_of_if(node: Node) -> tuple[list[tuple[list[Node], list[Node]]], list[Node]]:
    """Conditions with their bodies, and the body of `else`."""
    arms: list[tuple[list[Node], list[Node]]] = [([], [])]
    otherwise: list[Node] = []
    position = 0
    for child in node.children:
        if child.type == "elif_clause":
            arms.extend(_arms_of_if(child)[0])
        elif child.type == "else_clause":
            otherwise = statements_in(child)
        elif child.type == "then":
            position = 1
        elif child.is_named and child.type != "comment":
            arms[0][position].append(child)
    return arms, otherwise


def _arm(node: Node) -> _Arm:
    patterns = node.children_by_field_name("value")
    end = next((one.type for one in node.children if one.type in (";;", ";&", ";;&")), ";;")
    body = [one for one in statements_in(node) if one not in patterns]
    return _Arm(tuple(patterns), tuple(body), end)


Reader = Callable[[Flow, Node], Truth]
_READERS: Mapping[str, Reader] = {
    **dict.fromkeys(SIMPLE, lambda flow, node: flow.simple(node)),
    "list": Flow._list,
    "pipeline": Flow._pipeline,
    "negated_command": Flow._negated,
    "subshell": Flow._subshell,
    "compound_statement": Flow._compound,
    "if_statement": Flow._if,
    "case_statement": Flow._case,
    "for_statement": for_each,
    "c_style_for_statement": counted_for,
    "while_statement": while_holds,
    "function_definition": Flow._define,
    "redirected_statement": Flow._redirected,
}
