"""What a person should know about a launch that was read: what wins, what is cut off, what is left open."""

import re
from collections.abc import Callable, Iterator, Sequence

from miniverl.compiler.launch_commands import LAUNCHERS
from miniverl.compiler.launch_hearing import Heard, Hearing, Stray
from miniverl.compiler.shell_tree import Script
from miniverl.compiler.shell_values import Text, Unknown, joined

# `<your model>`: not every value in angle brackets is a gap, as tokens like <think> are written so too.
_GAP = re.compile(
    r"<(?=[^<>]*(?:your|path|dir|model|data|file|name|project|fill|insert|replace|todo|xxx))"
    r"[A-Za-z][^<>|]*>",
    re.IGNORECASE,
)


def gaps(override: Text, given: Callable[[str], str | None]) -> Text:
    """The override with an unknown for each `<placeholder>` in its value."""
    pieces: list[str | Unknown] = []
    for piece in override.pieces:
        if isinstance(piece, Unknown):
            pieces.append(piece)
            continue
        at = 0
        for found in _GAP.finditer(piece):
            pieces.append(piece[at : found.start()])
            reason = "it is a gap that the script leaves to its reader"
            value = given(found[0])
            gap = Unknown(found[0], override.line, reason, (found[0],))
            pieces.append(gap if value is None else value)
            at = found.end()
        pieces.append(piece[at:])
    return joined(pieces, override.line)


def warnings_of(
    heard: Heard, hearing: Hearing, script: Script, overrides: Sequence[Text]
) -> Iterator[str]:
    """Sentences with their places, in the order of the script where they have one."""
    origin = script.origin
    yield from _duplicates(overrides, origin)
    for word in overrides:
        key, equals, value = word.shown.partition("=")
        if word.shown.isspace():
            yield (
                f"{origin}:{word.line}: a backslash with a blank behind it does not continue the line; "
                "the blank is an argument of its own"
            )
        elif equals and not value:
            yield f"{origin}:{word.line}: {key} is set to nothing"
    for stray in hearing.strays:
        if stray.after is heard:
            yield f"{origin}:{stray.text.line}: {_cut_off(stray, script)}"
    for cause in dict.fromkeys(heard.causes):
        yield (
            f"{origin}:{heard.line}: only running could tell whether this launch is reached: "
            f"it depends on {cause.name}"
        )
    for wrapper in heard.wrappers:
        if wrapper in LAUNCHERS and heard.entry.endswith("main_ppo"):
            yield (
                f"{origin}:{heard.line}: {wrapper} starts one process per device, each with this launch; "
                "upstream's program starts its own workers and is meant to be started once"
            )
    for line, name in hearing.elsewhere:
        if name in ("ssh", "docker", "podman", "kubectl"):
            yield f"{origin}:{line}: {name} runs this elsewhere, with variables that are not known here"
    others = [one for one in hearing.launches if one is not heard]
    if others:
        listed = ", ".join(f"{one.entry} in line {one.line}" for one in others[:5])
        yield f"{origin}: the script also launches {listed}; that is not read here"


def _duplicates(overrides: Sequence[Text], origin: str) -> Iterator[str]:
    last = {_key(word): word for word in overrides}
    for word in overrides:
        later = last[_key(word)]
        if later is not word and "=" in word.shown:
            place = f" in line {later.line}" if later.line else ""
            yield f"{origin}:{word.line}: {word.shown} does not count: {later.shown}{place} comes later"


def _key(override: Text) -> str:
    return override.shown.lstrip("+~").partition("=")[0].strip()


def _cut_off(stray: Stray, script: Script) -> str:
    if stray.taker is not None:
        return f"{stray.text.shown} goes to {stray.taker}, not to the launch"
    return f"{stray.text.shown} is no part of the launch: {_reason(script, stray.text.line)}"


def _reason(script: Script, line: int) -> str:
    """What ends the command in the line before."""
    lines = script.source.split("\n")
    if line - 1 in script.comment_lines:
        return f"the comment in line {line - 1} ends it"
    before = lines[line - 2] if line >= 2 else ""
    if not before.strip():
        return f"the blank line {line - 1} ends it"
    if before.rstrip().endswith("\\") and before != before.rstrip():
        return f"the blank behind the backslash in line {line - 1} ends it"
    return f"line {line - 1} does not end with a backslash"
