"""The shell's own commands that set or unset variables: `export`, `declare`, `local`, `read`, `unset`."""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from miniverl.compiler.shell_state import ONLY_RUNNING, Call
from miniverl.compiler.shell_syntax import Assignment, Word
from miniverl.compiler.shell_values import (
    Array,
    Text,
    Truth,
    text,
    undecided,
    unknown_text,
    without_start,
)

if TYPE_CHECKING:
    from miniverl.compiler.shell import Shell

_NAMED = re.compile(r"([A-Za-z_]\w*)(?:=|$)", re.ASCII)


def export(shell: "Shell", call: Call) -> Truth:
    """`export` and `readonly`."""
    return _declared(shell, call, is_local=False, exports=call.words[0].known == "export")


def declare(shell: "Shell", call: Call) -> Truth:
    """`declare` and `typeset`, local to the function they stand in."""
    return _declared(shell, call, is_local=bool(shell.locals), exports=False)


def local(shell: "Shell", call: Call) -> Truth:
    return _declared(shell, call, is_local=bool(shell.locals), exports=False)


def unset(shell: "Shell", call: Call) -> Truth:
    """Names become unset, and an item of an array goes."""
    for word in call.arguments:
        name = word.known
        if name is None or name.startswith("-"):
            continue
        plain, bracket, index = name.partition("[")
        value = shell.scope.lookup(plain)
        if bracket and isinstance(value, Array):
            key = shell.expander.key(value, index.rstrip("]"), call.line)
            kept = tuple(one for one in value.items if one[0] != key)
            shell.scope.set(plain, Array(kept, value.is_keyed))
        elif plain.isidentifier():
            shell.scope.variables[plain] = None
    return True


def read_line(shell: "Shell", call: Call, said: Text | None) -> Truth:
    """`read names` from a heredoc or a here-string; from anywhere else the names are unknown."""
    names = [one.known for one in call.arguments if one.known and one.known.isidentifier()]
    flags = "".join(one.known[1:] for one in call.arguments if one.known and one.known[0] == "-")
    line_text = None if said is None or said.known is None else said.known.partition("\n")[0]
    separators = shell.scope.read("IFS", call.line).known
    if line_text is None or separators is None:
        causes = () if said is None else said.unknowns
        for name in names or ["REPLY"]:
            unknown = undecided(name or "", call.line, ONLY_RUNNING, causes)
            shell.scope.set(name or "", unknown_text(unknown))
        return undecided(call.written, call.line, ONLY_RUNNING, causes)
    fields = shell.expander.cut(text(line_text, call.line), separators)
    if "a" in flags and names:
        shell.scope.set(names[0] or "", Array().with_values(fields))
        return True
    for position, name in enumerate(names):
        is_last = position == len(names) - 1
        rest = fields[position:]
        found = rest[0].known or "" if rest else ""
        if is_last and len(rest) > 1:
            found = line_text[line_text.index(found) :].strip()
        shell.scope.set(name or "", text(found, call.line))
    return True


def _declared(shell: "Shell", call: Call, *, is_local: bool, exports: bool) -> Truth:
    flags = ""
    for one in call.command.words[1:]:
        assignments = [one] if isinstance(one, Assignment) else list(_spelled(shell, one))
        for assignment in assignments:
            if isinstance(assignment, str):
                flags += assignment
                continue
            _set(shell, assignment, flags, is_local=is_local and "g" not in flags)
            if exports or "x" in flags:
                shell.scope.exported |= {assignment.name}
    return True


def _set(shell: "Shell", assignment: Assignment, flags: str, *, is_local: bool) -> None:
    scope, name = shell.scope, assignment.name
    if is_local:
        scope.hide(name, shell.locals[-1])
    has_value = assignment.value is not None or assignment.items is not None
    if "A" in flags or "a" in flags:
        if not isinstance(scope.lookup(name), Array) or (is_local and has_value):
            scope.variables[name] = Array((), "A" in flags)
    elif is_local and not has_value:
        scope.variables[name] = None
    if has_value:
        shell.assign(assignment)


def _spelled(shell: "Shell", word: Word) -> Iterator[Assignment | str]:
    """The options, names and `name=value` strings that a word expands to."""
    for field in shell.expander.fields(word):
        start = field.pieces[0] if field.pieces and isinstance(field.pieces[0], str) else ""
        if start.startswith("-"):
            yield start[1:]
            continue
        found = _NAMED.match(start)
        if found is None:
            continue
        if not found[0].endswith("="):
            yield Assignment(found[1], None, False, None, None, word.line)
            continue
        shell.scope.set(found[1], without_start(field, found.end()))
        yield Assignment(found[1], None, False, None, None, word.line)
