"""What the shell's own commands print, and a few programs whose output follows from their words.

Only `$(...)` sees it; what another program prints stands there as None, which only running could tell.
"""

import posixpath
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from miniverl.compiler.shell_state import ONLY_RUNNING, Call
from miniverl.compiler.shell_values import (
    Piece,
    Text,
    Truth,
    Unknown,
    joined,
    text,
    undecided,
    unknown_text,
)
from miniverl.compiler.shell_words import word_of

if TYPE_CHECKING:
    from miniverl.compiler.shell import Shell

MAX_ITEMS = 1_000
_FORMAT = re.compile(r"%(?:%|([-+ 0#]*)(\d*)(?:\.(\d+))?([sdiq]))|\\([nt\\])")


def echo(shell: "Shell", call: Call) -> Truth:
    said, end = call.arguments, "\n"
    while said and re.fullmatch(r"-[neE]+", said[0].known or ""):
        end = "" if "n" in (said[0].known or "") else end
        said = said[1:]
    print_words(shell, [*spaced(said), end])
    shell.said = joined(spaced(said)).shown
    return True


def printf(shell: "Shell", call: Call) -> Truth:
    arguments = call.arguments
    target = None
    if len(arguments) > 1 and arguments[0].known == "-v":
        target, arguments = arguments[1].known, arguments[2:]
    said = _formatted(arguments, call.written, call.line)
    if target is not None and target.isidentifier():
        shell.scope.set(target, said)
    else:
        print_words(shell, said.pieces)
    return True


def _formatted(arguments: Sequence[Text], written: str, line: int) -> Text:
    """What printf makes of its format and its arguments; it goes round until they are used up."""
    layout = arguments[0].known if arguments else ""
    rest = list(arguments[1:])
    parts: list[Piece | Text] = []
    for _ in range(MAX_ITEMS):
        used = 0
        at = 0
        for found in _FORMAT.finditer(layout or ""):
            parts.append((layout or "")[at : found.start()])
            at = found.end()
            if found[5]:
                parts.append({"n": "\n", "t": "\t", "\\": "\\"}[found[5]])
            elif found[4]:
                used += 1
                parts.append(_field(found, rest.pop(0) if rest else Text()))
            else:
                parts.append("%")
        parts.append((layout or "")[at:])
        if not rest or not used:
            break
    whole = joined(parts, line)
    if layout is None or "%" in re.sub(_FORMAT, "", layout) or "\\" in re.sub(_FORMAT, "", layout):
        return unknown_text(undecided(written, line, ONLY_RUNNING, whole.unknowns))
    return whole


def _field(found: re.Match[str], value: Text) -> Text:
    flags, width, precision, kind = found[1], found[2], found[3], found[4]
    known = value.known
    if known is None:
        return value
    if kind in "di":
        known = str(int(known)) if re.fullmatch(r"[-+]?\d{1,18}", known) else "0"
    elif precision:
        known = known[: int(precision)]
    padded = min(int(width or 0), MAX_ITEMS)
    if "-" in flags:
        return text(known.ljust(padded))
    return text(known.zfill(padded) if "0" in flags and kind != "s" else known.rjust(padded))


def cat(shell: "Shell", call: Call) -> Truth:
    """Prints a heredoc or a here-string; files are never opened."""
    said = standard_input(shell, call)
    if len(call.words) > 1 or said is None:
        print_words(shell, [None])
        return undecided(call.written, call.line, ONLY_RUNNING)
    print_words(shell, said.pieces)
    return True


def standard_input(shell: "Shell", call: Call) -> Text | None:
    """The string that a heredoc or `<<<` hands to the command."""
    for redirect in call.command.redirects:
        if redirect.operator == "<<<" and redirect.target is not None:
            return joined([shell.expander.text(redirect.target), "\n"], call.line)
        if redirect.operator == "<<":
            script = shell.script
            found = next(one for one in script.heredocs if one.start > call.node.start_byte)
            body = script.source[found.start : found.end]
            if found.strips_tabs:
                body = re.sub(r"(?m)^\t+", "", body)
            if found.is_quoted:
                return text(body, call.line)
            # A double quote is a character there, and so is a backslash before it.
            escaped = re.sub(r'\\?"', lambda one: "\\\\" * (len(one[0]) - 1) + '\\"', body)
            return shell.expander.text(word_of(escaped, call.line, is_quoted=True))
    return None


def pwd(shell: "Shell", call: Call) -> Truth:
    print_words(shell, [*shell.scope.working_folder(call.line).pieces, "\n"])
    return True


def basename_or_dirname(shell: "Shell", call: Call) -> Truth:
    """`dirname x`, `basename x [suffix]`."""
    arguments = [one for one in call.arguments if one.known != "--"]
    known = [one.known for one in arguments]
    if not known or any(one is None or one.startswith("-") for one in known):
        print_words(
            shell, [None] if not arguments else [_named(call.written, call.line, arguments), "\n"]
        )
        return True
    path = (known[0] or "").rstrip("/") or "/"
    if call.words[0].known == "dirname":
        said = posixpath.dirname(path) or "."
    else:
        said = posixpath.basename(path) or "/"
        if len(known) > 1 and known[1] and said != known[1]:
            said = said.removesuffix(known[1])
    print_words(shell, [said, "\n"])
    return True


def seq(shell: "Shell", call: Call) -> Truth:
    numbers = [one.known or "" for one in call.arguments]
    if not 1 <= len(numbers) <= 3 or not all(re.fullmatch(r"-?\d{1,9}", one) for one in numbers):
        print_words(shell, [_named(call.written, call.line, call.arguments), "\n"])
        return True
    values = [int(one) for one in numbers]
    first, step, last = {
        1: (1, 1, values[0]),
        2: (values[0], 1, values[-1]),
        3: (values[0], values[len(values) // 2] or 1, values[-1]),
    }[len(values)]
    items = range(first, last + (1 if step > 0 else -1), step)
    if len(items) > MAX_ITEMS:
        print_words(shell, [_named(call.written, call.line, ()), "\n"])
    else:
        print_words(shell, [f"{one}\n" for one in items])
    return True


def _named(written: str, line: int, causes: Sequence[Text]) -> Unknown:
    unknowns = [unknown for one in causes for unknown in one.unknowns]
    return undecided(f"$({written})", line, ONLY_RUNNING, unknowns)


def print_words(shell: "Shell", pieces: Sequence[Piece | Text | None]) -> None:
    """Adds to what `$(...)` gets; None stands for something that only running could tell."""
    if shell.output is not None:
        for one in pieces:
            shell.output.extend(one.pieces if isinstance(one, Text) else [one])


def spaced(words: Sequence[Text]) -> list[Piece | Text]:
    parts: list[Piece | Text] = [part for word in words for part in (" ", word)]
    return parts[1:]
