"""Reads a shell script by what its statements mean, without running any of it.

A branch that only running could choose is read both ways, and what differs afterwards is a named unknown.
Commands of other programs are told to a listener, and have no effect.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from tree_sitter import Node

from miniverl.compiler.shell_builtins import BUILTINS
from miniverl.compiler.shell_conditions import Conditions
from miniverl.compiler.shell_expand import Expander
from miniverl.compiler.shell_flow import Flow, prints_elsewhere
from miniverl.compiler.shell_spans import after_test
from miniverl.compiler.shell_state import (
    ONLY_RUNNING,
    Call,
    Function,
    Leaves,
    Locals,
    Scope,
    ScriptEnds,
)
from miniverl.compiler.shell_syntax import Assignment, Command, Substitution, Word
from miniverl.compiler.shell_tree import Script, parsed, statements
from miniverl.compiler.shell_values import (
    Array,
    Piece,
    Text,
    Truth,
    Unknown,
    Value,
    condensed,
    joined,
    undecided,
    unknown_text,
)
from miniverl.compiler.shell_words import Scanner

# The grammar takes them for commands where no statement is open.
_RESERVED = frozenset({"then", "elif", "else", "fi", "do", "done", "esac", "}"})
Assigned = Mapping[str, Value | None]


class Listener(Protocol):
    """Hears of every command that is not the shell's own, and says how it ends."""

    def command(
        self, shell: "Shell", words: Sequence[Text], assigned: Assigned, line: int
    ) -> Truth: ...


class Shell(Flow):
    """One shell reading one script; subshells and `bash -c` are others that share its listener."""

    def __init__(self, scope: Scope, listener: Listener, notes: list[str]) -> None:
        self.scope = scope
        self.listener = listener
        self.notes = notes
        self.expander = Expander(scope, self._substituted)
        self.conditions = Conditions(self.expander)
        self.causes: list[Unknown] = []  # the undecided branches around the current statement
        self.output: list[Piece | None] | None = None  # what the commands print, inside $(...)
        self.locals: list[Locals] = []
        self.rehearsals = 0  # inside the first reading of a loop, which nobody hears
        self.said = ""  # what `echo` printed last
        self.turns = 0  # of loops around the current statement, in this function
        self.checked_levels = 0  # inside a condition, where `set -e` does not count

    def read(self, script: Script) -> Truth:
        """All statements of a script."""
        self.script = script
        return self.sequence(list(statements(script, self.scope.budget)))

    def nested(
        self, source: str, line: int, assigned: Assigned, arguments: Sequence[Text]
    ) -> Truth:
        """Another shell that this one starts: `bash -c source`."""
        other = Shell(self.scope.for_child(assigned, arguments), self.listener, self.notes)
        other.causes = list(self.causes)
        with self.scope.budget.level(line):
            try:
                return other.read(parsed(source, self.scope.origin, line))
            except ScriptEnds as end:
                return end.status

    def evaluated(self, source: str, line: int) -> Truth:
        """`eval source`: read in this shell."""
        outer = self.script
        try:
            with self.scope.budget.level(line):
                return self.read(parsed(source, self.scope.origin, line))
        finally:
            self.script = outer

    def note(self, line: int, sentence: str) -> None:
        """Something that the reader should know, once."""
        said = f"{self.scope.origin}:{line}: {sentence}"
        if said not in self.notes:
            self.notes.append(said)

    def simple(self, node: Node) -> Truth:
        """A command without other commands in it."""
        written = self.source_of(node)
        line = self.script.line_at(node.start_byte)
        if written.startswith("[[") and written[2:3].isspace():
            test = written[: after_test(written, 0)]
            return self.conditions.double(test, test[2:-2], line)
        self.scope.budget.spend(len(written), line)
        command = self._scanned(node)
        first = command.words[0] if command.words else None
        if isinstance(first, Word) and first.bare in _RESERVED:
            raise self.script.unreadable(node.start_byte, f"a `{first.bare}` where none belongs")
        words = [field for word in command.words for field in self._fields(word)]
        if not words:
            return self._assigned(command)
        return self._called(command, words, condensed(written), node)

    def assign(self, assignment: Assignment) -> None:
        """Sets a variable or an array's item."""
        name, line = assignment.name, assignment.line
        is_new = not assignment.appends and not self.scope.is_settled(name)
        current = None if is_new else self.scope.lookup(name)
        if assignment.items is not None:
            self.scope.set(name, self._array(assignment, current))
            return
        assert assignment.value is not None
        value = self.expander.text(assignment.value)
        if assignment.index is None and not isinstance(current, Array):
            if assignment.appends:
                value = joined([self.scope.read(name, line), value], line)
            self.scope.set(name, value)
            return
        array = current if isinstance(current, Array) else Array()
        key = self.expander.key(array, assignment.index or "0", line)
        if isinstance(key, Unknown):
            self.scope.set(name, unknown_text(key))
            return
        if assignment.appends:
            value = joined([dict(array.items).get(key, Text()), value], line)
        self.scope.set(name, array.with_item(key, value))

    def _array(self, assignment: Assignment, current: Value | None) -> Value:
        start = Array()
        if isinstance(current, Text) and assignment.appends:
            start = Array(((0, current),))
        elif isinstance(current, Array):
            start = current if assignment.appends else Array((), current.is_keyed)
        for word in assignment.items or ():
            item = Scanner(word.source, 0, len(word.source), _line(word.line)).item()
            if item is None:
                start = start.with_values(self.expander.fields(word, in_array=True))
                continue
            key = self.expander.key(start, item[0], word.line)
            if isinstance(key, Unknown):
                return unknown_text(key)
            start = start.with_item(key, self.expander.text(item[1]))
        return start

    def _fields(self, word: Word | Assignment) -> list[Text]:
        if isinstance(word, Word):
            return self.expander.fields(word)
        return []  # `export NAME=value`: the builtin reads it from the command

    def _scanned(self, node: Node) -> Command:
        scanner = Scanner(self.script.source, node.start_byte, node.end_byte, self.script.line_at)
        return scanner.command()

    def _assigned(self, command: Command) -> Truth:
        """A command of assignments alone ends as its last `$(...)` does."""
        self.scope.status = True
        for assignment in command.assignments:
            self.assign(assignment)
        return self.scope.status

    def _called(self, command: Command, words: list[Text], written: str, node: Node) -> Truth:
        name = words[0].known
        outer_output = self.output
        if prints_elsewhere(command.redirects):
            self.output = None
        try:
            if name in self.scope.functions:
                with self._assigned_for_now(command):
                    return self._function(self.scope.functions[name or ""], words[1:], command.line)
            builtin = BUILTINS.get(name or "")
            if builtin is not None:
                with self._assigned_for_now(command):
                    return builtin(self, Call(words, command, written, node))
            return self._external(command, words, written)
        finally:
            self.output = outer_output

    def _external(self, command: Command, words: list[Text], written: str) -> Truth:
        with self._assigned_for_now(command) as assigned:
            pass
        if self.output is not None:
            self.output.append(None)
        if self.rehearsals:
            return undecided(written, command.line, ONLY_RUNNING)
        return self.listener.command(self, words, assigned, command.line)

    def _assigned_for_now(self, command: Command) -> "_Temporary":
        return _Temporary(self, command.assignments)

    def _function(self, function: Function, arguments: list[Text], line: int) -> Truth:
        outer, outer_script, outer_turns = self.scope.arguments, self.script, self.turns
        self.scope.arguments, self.script, self.turns = tuple(arguments), function.script, 0
        self.locals.append(Locals())
        try:
            with self.scope.budget.level(line):
                return self.statement(function.body)
        except Leaves as leaving:
            if leaving.kind != "return":
                raise
            return leaving.status
        finally:
            self.scope.arguments, self.script, self.turns = outer, outer_script, outer_turns
            self.scope.reveal(self.locals.pop())

    def _substituted(self, part: Substitution) -> Text:
        """What `$(commands)` prints."""
        outer, outer_script = self.output, self.script
        output: list[Piece | None] = []
        self.output = output
        script = parsed(part.commands, self.scope.origin, part.line)
        try:
            with self.scope.budget.level(part.line):
                self.scope.status = self.in_subshell(lambda: self.read(script))
        finally:
            self.output, self.script = outer, outer_script
        return _printed(output, condensed(part.source), part.line)


class _Temporary:
    """`NAME=value command`: set while the command runs."""

    def __init__(self, shell: Shell, assignments: Sequence[Assignment]) -> None:
        self._shell = shell
        self._assignments = assignments
        self._saved: dict[str, Value | None] = {}

    def __enter__(self) -> Assigned:
        scope = self._shell.scope
        names = [one.name for one in self._assignments]
        self._saved = {name: scope.variables[name] for name in names if scope.is_settled(name)}
        for assignment in self._assignments:
            self._shell.assign(assignment)
        return {name: scope.variables[name] for name in names}

    def __exit__(self, *_: object) -> None:
        for assignment in self._assignments:
            self._shell.scope.variables.pop(assignment.name, None)
        self._shell.scope.variables.update(self._saved)


def _printed(output: list[Piece | None], name: str, line: int) -> Text:
    """The output without its last line ends; one unknown when a program printed some of it."""
    known = [one for one in output if one is not None]
    if len(known) < len(output):
        return unknown_text(Unknown(name, line, ONLY_RUNNING, (name,)))
    pieces = list(joined(known).pieces)
    if pieces and isinstance(pieces[-1], str):
        pieces[-1] = pieces[-1].rstrip("\n")
    return joined(pieces, line)


def _line(line: int) -> Callable[[int], int]:
    """The line of every offset of a word."""
    return lambda offset: line
