"""The shell's own commands, and the few programs whose outcome follows from their arguments."""

import posixpath
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from miniverl.compiler.shell_declare import declare, export, local, read_line, unset
from miniverl.compiler.shell_printing import (
    basename_or_dirname,
    cat,
    echo,
    print_words,
    printf,
    pwd,
    seq,
    spaced,
    standard_input,
)
from miniverl.compiler.shell_state import ONLY_RUNNING, Call, Leaves, ScriptEnds
from miniverl.compiler.shell_values import (
    Truth,
    Unknown,
    joined,
    text,
    undecided,
    unknown_text,
)

if TYPE_CHECKING:
    from miniverl.compiler.shell import Shell

Builtin = Callable[["Shell", Call], Truth]
MAX_ITEMS = 1_000
# What they do is not read, and a script goes on after them; the quiet ones print nothing.
_QUIET = (
    "chmod",
    "chown",
    "cp",
    "ln",
    "mkdir",
    "mv",
    "rm",
    "rmdir",
    "sleep",
    "sync",
    "touch",
    "wait",
)
_INERT = (
    "alias",
    "apt",
    "apt-get",
    "bg",
    "clear",
    "disown",
    "fg",
    "hash",
    "jobs",
    "kill",
    "module",
    "pip",
    "pip3",
    "pkill",
    "popd",
    "pushd",
    "renice",
    "shopt",
    "times",
    "trap",
    "ulimit",
    "umask",
    "unalias",
)
_FORMAT = re.compile(r"%(?:%|([-+ 0#]*)(\d*)(?:\.(\d+))?([sdiq]))|\\([nt\\])")


def _true(shell: "Shell", call: Call) -> Truth:
    return True


def _inert(shell: "Shell", call: Call) -> Truth:
    print_words(shell, [None])
    return True


def _false(shell: "Shell", call: Call) -> Truth:
    return False


def _cd(shell: "Shell", call: Call) -> Truth:
    targets = [one for one in call.arguments if one.known not in ("--", "-P", "-L", "-e")]
    scope = shell.scope
    if not targets:
        scope.folder = scope.read("HOME", call.line)
    elif targets[0].known == "-":
        scope.folder = unknown_text(undecided("PWD", call.line, ONLY_RUNNING))
    elif (targets[0].known or "").startswith("/"):
        scope.folder = text(posixpath.normpath(targets[0].known or ""), call.line)
    elif targets[0].pieces and isinstance(targets[0].pieces[0], Unknown):
        scope.folder = targets[0]  # most likely $HOME or the like
    else:
        base = scope.working_folder(call.line)
        whole = joined([base, "/", targets[0]], call.line)
        known = whole.known
        scope.folder = text(posixpath.normpath(known), call.line) if known else whole
    return True


def _exit(shell: "Shell", call: Call) -> Truth:
    status = _status(shell, call)
    said = f" after it says {shell.said!r}" if shell.said else ""
    raise ScriptEnds(call.line, f"`{call.written}`{said}", status=status)


def _leave(shell: "Shell", call: Call) -> Truth:
    kind = call.words[0].known or ""
    if not (shell.locals if kind == "return" else shell.turns):
        return False  # bash says that there is nothing to leave, and goes on
    if kind == "return":
        raise Leaves(kind, call.line, status=_status(shell, call))
    levels = (call.words[1].known or "") if len(call.words) > 1 else "1"
    wanted = int(levels) if re.fullmatch(r"[1-9]\d{0,3}", levels) else 1
    raise Leaves(kind, call.line, levels=min(wanted, shell.turns))


def _status(shell: "Shell", call: Call) -> Truth:
    if len(call.words) < 2:
        return shell.scope.status
    known = call.words[1].known
    if known is None:
        return undecided(call.words[1].shown, call.line, ONLY_RUNNING, call.words[1].unknowns)
    return known == "0"


def _shift(shell: "Shell", call: Call) -> Truth:
    count = (call.words[1].known or "1") if len(call.words) > 1 else "1"
    number = int(count) if count.isdigit() else 1
    if number > len(shell.scope.arguments):
        return False
    shell.scope.arguments = shell.scope.arguments[number:]
    return True


def _set(shell: "Shell", call: Call) -> Truth:
    options = set(shell.scope.options)
    arguments = call.arguments
    while arguments:
        known = arguments[0].known or ""
        if known == "--" or known[:1] not in ("-", "+") or known in ("-", "+"):
            arguments = arguments[1:] if known == "--" else arguments
            shell.scope.arguments = tuple(arguments)
            break
        letters, arguments = set(known[1:]), arguments[1:]
        if "o" in letters and arguments:
            names = {"errexit": "e", "allexport": "a", "nounset": "u"}
            letters.add(names.get(arguments[0].known or "", ""))
            arguments = arguments[1:]
        options = options | letters if known[0] == "-" else options - letters
    shell.scope.options = frozenset(options & {"e", "a", "u"})
    return True


def _eval(shell: "Shell", call: Call) -> Truth:
    whole = joined(spaced(call.arguments), call.line)
    if whole.known is None:
        shell.note(call.line, f"`{call.written}` may set anything, and nothing of it is read")
        return undecided(call.written, call.line, ONLY_RUNNING, whole.unknowns)
    return shell.evaluated(whole.known, call.line)


def _source(shell: "Shell", call: Call) -> Truth:
    shell.note(
        call.line,
        f"`{call.written}` reads another file, which is not read here; give what it sets with --env",
    )
    return True


def _test(shell: "Shell", call: Call) -> Truth:
    inside = call.arguments
    if call.words[0].known == "[":
        if not inside or inside[-1].known != "]":
            return False
        inside = inside[:-1]
    return shell.conditions.bracket(inside, call.written, call.line)


def _let(shell: "Shell", call: Call) -> Truth:
    value: int | Unknown = 0
    for word in call.arguments:
        if word.known is None:
            return undecided(call.written, call.line, ONLY_RUNNING, word.unknowns)
        value = shell.expander.arithmetic(word.known, call.line)
    return value if isinstance(value, Unknown) else value != 0


BUILTINS: Mapping[str, Builtin] = {
    **dict.fromkeys(_QUIET, _true),
    **dict.fromkeys(_INERT, _inert),
    ":": _true,
    "true": _true,
    "false": _false,
    "echo": echo,
    "printf": printf,
    "cat": cat,
    "cd": _cd,
    "pwd": pwd,
    "dirname": basename_or_dirname,
    "basename": basename_or_dirname,
    "seq": seq,
    "exit": _exit,
    "return": _leave,
    "break": _leave,
    "continue": _leave,
    "shift": _shift,
    "set": _set,
    "eval": _eval,
    "source": _source,
    ".": _source,
    "[": _test,
    "test": _test,
    "let": _let,
    "export": export,
    "readonly": export,
    "local": local,
    "declare": declare,
    "typeset": declare,
    "unset": unset,
    "read": lambda shell, call: read_line(shell, call, standard_input(shell, call)),
}
