"""A launch script as the command that it would start: upstream's program, and its overrides for Hydra.

The script is read and never run. What only running it could tell stands as a named unknown in the overrides
that carry it; the user's bindings (`--env`) and arguments (`--arg`) are all that comes from outside.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from miniverl.compiler.launch_commands import MAINS
from miniverl.compiler.launch_hearing import Heard, Hearing
from miniverl.compiler.launch_kinds import GIVE, other_kind
from miniverl.compiler.launch_warnings import gaps, warnings_of
from miniverl.compiler.shell import Shell
from miniverl.compiler.shell_state import Outside, Scope, ScriptEnds
from miniverl.compiler.shell_tree import Script
from miniverl.compiler.shell_values import Budget, Text, Unknown, script_problem
from miniverl.compiler.shell_values import text as known
from miniverl.compiler.suggest import did_you_mean
from miniverl.engine.problem import Problem, WrongCall

MAX_BYTES = 1 << 20
MAX_OVERRIDES = 10_000
TRAINING = "verl.trainer.main_ppo"
_PRINTS_ONLY = ("help", "hydra_help", "version", "cfg", "info", "shell_completion")


@dataclass(frozen=True, slots=True)
class Override:
    """`key=value` as Hydra would get it, where it is written, and the unknowns inside it."""

    value: Text

    @property
    def text(self) -> str:
        """For people: unknowns stand in it as the script writes them. Hydra gets what `bound` gives."""
        return self.value.shown

    @property
    def line(self) -> int:
        return self.value.line

    @property
    def unknowns(self) -> tuple[Unknown, ...]:
        return self.value.unknowns

    def bound(self, values: Mapping[str, str]) -> str:
        """The override with a value for each unknown, by its name."""
        return self.value.bound(values)


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """`config_name` is upstream's own where the command names none; a path or folder is None there.

    `defaults_used` are the variables that the user could have set, with the value that the script takes
    instead. `sha256` is over the file's bytes.
    """

    origin: str
    line: int
    entry_point: str
    config_name: str | None
    config_path: str | None
    config_dir: str | None
    overrides: tuple[Override, ...]
    warnings: tuple[str, ...]
    unknowns: tuple[Unknown, ...]
    bindings_used: Mapping[str, str]
    defaults_used: Mapping[str, str]
    sha256: str


def script_text(path: Path) -> str:
    """A script's text with its line ends as they are; raises WrongCall for what cannot be a script."""
    try:
        size = path.stat().st_size
        raw = path.read_bytes() if size <= MAX_BYTES else b""
    except OSError as error:
        reason = f"it cannot be read: {error.strerror}"
        raise _no_script(str(path), reason, "Give the path of a launch script") from None
    if size > MAX_BYTES:
        raise _too_large(str(path), size)
    return _decoded(raw, str(path))


def read_launch(
    text: str,
    origin: str,
    *,
    environment: Mapping[str, str],
    number: int | None = None,
    arguments: Sequence[str] = (),
) -> Launch:
    """The launch that a script makes; its launch `number`, counted from 1, where it makes several.

    Raises WrongCall for a file that is no launch script, for one whose launch cannot be singled out, and for
    one that goes over the limits.
    """
    raw = text.encode("utf-8", "surrogateescape")
    if len(raw) > MAX_BYTES:
        raise _too_large(origin, len(raw))
    kind = other_kind(text, origin)
    if kind is not None:
        raise WrongCall([kind])
    script = Script(_unix(text), origin)
    outside = Outside(environment)
    hearing = Hearing()
    notes: list[str] = []
    scope = Scope(origin, outside, Budget(origin), tuple(map(known, arguments)))
    end = None
    try:
        Shell(scope, hearing, notes).read(script)
    except ScriptEnds as stopped:
        end = stopped
    heard = _chosen(hearing, number, origin, end)
    return _launch(heard, hearing, script, scope, notes, raw)


def _launch(
    heard: Heard,
    hearing: Hearing,
    script: Script,
    scope: Scope,
    notes: Sequence[str],
    raw: bytes,
) -> Launch:
    overrides = tuple(Override(gaps(one, scope.outside.given)) for one in heard.arguments.overrides)
    problems = list(_problems(heard, script.origin))
    if problems:
        raise WrongCall(problems)
    options = {name: value.known or "" for name, value in heard.arguments.options.items()}
    config_name = options.get("config_name")
    unknowns = dict.fromkeys(unknown for one in overrides for unknown in one.unknowns)
    entry = heard.entry
    return Launch(
        origin=script.origin,
        line=heard.line,
        entry_point=entry,
        config_name=re.sub(r"\.ya?ml$", "", config_name) if config_name else MAINS.get(entry),
        config_path=_config_path(options.get("config_path"), entry),
        config_dir=options.get("config_dir"),
        overrides=overrides,
        warnings=(
            *warnings_of(heard, hearing, script, [one.value for one in overrides]),
            *notes,
            *_carriage_returns(raw, script.origin),
            *_unread(scope),
        ),
        unknowns=tuple(unknowns),
        bindings_used=dict(scope.outside.used),
        defaults_used=dict(scope.outside.defaults),
        sha256=hashlib.sha256(raw).hexdigest(),
    )


def _chosen(hearing: Hearing, number: int | None, origin: str, end: ScriptEnds | None) -> Heard:
    """The launch that was asked for; the only training where none was."""
    launches = hearing.launches
    if not launches:
        raise WrongCall([_nothing(hearing, origin, end)])
    if number is not None:
        if 1 <= number <= len(launches):
            return launches[number - 1]
        reason = f"the script makes {len(launches)} launches"
        fix = f"Give a number from 1 to {len(launches)}"
        raise WrongCall(
            [Problem(field="--launch", value=number, origin=origin, reason=reason, fix=fix)]
        )
    training = [one for one in launches if one.entry == TRAINING]
    candidates = training or launches
    if len(candidates) == 1:
        return candidates[0]
    everywhere = set.intersection(*(set(one.arguments.overrides) for one in launches))
    listed = "; ".join(
        f"{launches.index(one) + 1}: line {one.line}, {one.summary(everywhere)}"
        for one in candidates[:20]
    )
    reason = f"the script makes {len(launches)} launches ({listed})"
    fix = "Say which one with --launch NUMBER"
    raise WrongCall([script_problem(origin, candidates[0].line, "--launch", None, reason, fix)])


def _nothing(hearing: Hearing, origin: str, end: ScriptEnds | None) -> Problem:
    """Why a script makes no launch."""
    if end is not None:
        reason = f"the script ends before it launches anything: {end.reason}"
        fix = "Give what it asks for with --env NAME=VALUE or --arg VALUE"
        return script_problem(origin, end.line, "script", None, reason, fix)
    if hearing.files:
        path = hearing.files[0]
        reason = f"it launches nothing itself and runs another script, {path.shown}"
        return script_problem(origin, path.line, "script", None, reason, "Give that script")
    if hearing.others:
        entry = hearing.others[0]
        reason = f"it starts {entry.shown}, which is none of upstream's programs that Hydra starts"
        return script_problem(origin, entry.line, "script", None, reason, GIVE)
    reason = "it starts none of upstream's programs"
    return Problem(field="script", value=None, origin=origin, reason=reason, fix=GIVE)


def _problems(heard: Heard, origin: str) -> Iterator[Problem]:
    """What makes a command line none that Hydra would take, or that trains."""
    given = heard.arguments
    for word in given.strange:
        reason = "Hydra has no such option"
        fix = "Write it as key=value, or leave it out"
        yield script_problem(origin, word.line, "option", word.shown, reason, fix)
    for name in sorted({*given.flags, *given.options} & set(_PRINTS_ONLY)):
        reason = "with it, the program prints something and ends"
        yield script_problem(origin, heard.line, f"--{name}", None, reason, "Leave it out")
    if "multirun" in given.flags:
        reason = "it stands for several launches"
        yield script_problem(origin, heard.line, "--multirun", None, reason, "Leave it out")
    for name, value in given.options.items():
        for unknown in value.unknowns:
            field = f"--{name.replace('_', '-')}"
            yield script_problem(
                origin, value.line, field, value.shown, unknown.reason, unknown.fix
            )
    for unknown in heard.entry_unknowns:
        yield script_problem(
            origin, heard.line, "program", heard.entry, unknown.reason, unknown.fix
        )
    if len(given.overrides) > MAX_OVERRIDES:
        reason = f"it has {len(given.overrides):,} overrides, and {MAX_OVERRIDES:,} are read"
        yield script_problem(origin, heard.line, "overrides", None, reason, "Give fewer")


def _config_path(path: str | None, entry: str) -> str | None:
    """None for upstream's own folder, which its programs name `config` relative to themselves."""
    return None if path is None or (path in ("config", "./config") and entry in MAINS) else path


def _unread(scope: Scope) -> list[str]:
    """Bindings that the script never asks for."""
    outside = scope.outside
    known = [*outside.used, *outside.defaults]
    return [
        f"--env {name}: the script sets it itself"
        if scope.is_settled(name)
        else f"--env {name}: the script does not read it. "
        + did_you_mean(name, known, "Leave it out")
        for name in outside.environment
        if name not in outside.used
    ]


def _carriage_returns(raw: bytes, origin: str) -> list[str]:
    if b"\r\n" not in raw:
        return []
    return [
        f"{origin}: its lines end as on Windows, which bash does not take; read as if they did not"
    ]


def _unix(text: str) -> str:
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


def _decoded(raw: bytes, origin: str) -> str:
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise _no_script(origin, "it is UTF-16 text", "Save it as UTF-8")
    if b"\0" in raw:
        raise _no_script(origin, "it is no text", GIVE)
    return raw.decode("utf-8", "surrogateescape")


def _too_large(origin: str, size: int) -> WrongCall:
    reason = f"it has {size:,} bytes, and a script may have {MAX_BYTES:,}"
    return _no_script(origin, reason, "Give the launch alone")


def _no_script(origin: str, reason: str, fix: str) -> WrongCall:
    problem = Problem(field="script", value=None, origin=origin, reason=reason, fix=fix)
    return WrongCall([problem])
