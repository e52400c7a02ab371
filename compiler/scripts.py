"""A launch script as a source: its overrides composed, with a token for each thing that only running could tell.

The tokens show which leaves an unknown reaches. Where it reaches nothing but what is read by nothing here, it
stays open as `<NAME>`; where it reaches more, the user has to give its value.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from miniverl.compiler import files, upstream
from miniverl.compiler import source as sources
from miniverl.compiler.launch import TRAINING, Launch, read_launch, script_text
from miniverl.compiler.launch import Override as Written
from miniverl.compiler.rule import Class
from miniverl.compiler.shell_values import Unknown
from miniverl.compiler.source import Override, Script, Source
from miniverl.engine.problem import Problem, Refused, WrongCall

SUFFIXES = (".sh", ".bash")
_INERT = frozenset({Class.INFORMATIONAL, Class.DISTRIBUTED})
# Upstream's folder holds the names of project and run, which scripts stamp with a date; a run here is put
# where it is told to be.
_FOLDER = "trainer.default_local_dir"
_OTHERS: Mapping[str, str] = {
    "verl.trainer.sft_trainer": "it fine-tunes on given responses, with the loss of a language model",
    "verl.trainer.sft_trainer_ray": "it fine-tunes on given responses, with the loss of a language model",
    "verl.trainer.main_eval": "it scores responses of an earlier run, and trains nothing",
    "verl.trainer.main_generation_server": "it samples responses, and trains nothing",
    "verl.experimental.fully_async_policy.fully_async_main": "it samples while it trains, so that samples "
    "come from older weights than those that are updated",
    "verl.experimental.one_step_off_policy.main_ppo": "it samples one step ahead, so that samples come from "
    "older weights than those that are updated",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Given:
    """What a script is read with: values of variables, its arguments, and which launch of several."""

    environment: Mapping[str, str]
    arguments: Sequence[str]
    number: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Draft:
    """A composed launch with tokens in it; `left_out` are overrides that do not compose with a token."""

    launch: Launch
    source: Source
    tokens: Mapping[str, Unknown]
    left_out: tuple[Written, ...]


def is_script(source: str) -> bool:
    """By its suffix; any other file that is no config is one too, or is told what it is."""
    if source.startswith(("hydra:", "launch:", "workload:")):
        return False
    path = Path(source)
    return path.suffix in SUFFIXES or (not files.is_file(source) and path.is_file())


def environment(texts: Sequence[str]) -> dict[str, str]:
    """Values by name of `NAME=value` texts; a name is an unknown as reports show it, `$(date +%s)` too.

    Raises WrongCall with every mistake in them.
    """
    values: dict[str, str] = {}
    problems = []
    for text in texts:
        first, _, _ = text.partition("=")
        name, equals, value = text.partition("=") if first.isidentifier() else text.rpartition("=")
        if not equals or not name:
            reason, fix = "a value is given as NAME=value", "Write --env NAME=value"
            problems.append(_problem("--env", text, "command line", reason, fix))
        elif name in values:
            reason, fix = f"{name} is given twice", "Keep one of them"
            problems.append(_problem("--env", text, "command line", reason, fix))
        values[name] = value
    if problems:
        raise WrongCall(problems)
    return values


def read(path: Path, given: Given) -> Launch:
    """The script's launch of upstream's reinforcement learning; raises WrongCall for any other."""
    launch = read_launch(
        script_text(path),
        path.name,
        environment=given.environment,
        number=given.number,
        arguments=given.arguments,
    )
    problems = list(_not_compiled(launch))
    if problems:
        raise WrongCall(problems)
    return launch


def compose(
    launch: Launch, stated: Sequence[Override], *, version: str, progress: upstream.Progress
) -> Draft:
    """The launch's config with the overrides `stated` on top; raises Refused for what does not compose."""
    tokens = dict(_tokens(launch, stated))
    counted = [one for one in launch.overrides if not _is_replaced(one, launch, stated)]
    left_out = [one for one in counted if _open_key(one)]
    while True:
        launched = [_composable(one, launch, tokens) for one in counted if one not in left_out]
        try:
            source = _composed(launch, launched, stated, version, progress)
        except Refused as refused:
            places = {problem.origin for problem in refused.problems}
            open_ones = [
                one
                for one in counted
                if one.unknowns
                and one not in left_out
                and str(_composable(one, launch, tokens)) in places
            ]
            if not open_ones:
                problems = [_untokened(problem, tokens) for problem in refused.problems]
                unknowns = (unknown for one in left_out for unknown in one.unknowns)
                raise Refused([*problems, *_asked(unknowns, left_out, launch)]) from None
            left_out.extend(open_ones)
        else:
            return Draft(launch=launch, source=source, tokens=tokens, left_out=tuple(left_out))


def settled(draft: Draft, classes: Mapping[str, Class]) -> Source:
    """The source with each unknown frozen or asked for, by the classes of the leaves that it reaches."""
    source, launch, tokens = draft.source, draft.launch, draft.tokens
    reached = {
        token: [field for field, value in source.leaves.items() if token in f"{field} {value}"]
        for token in tokens
    }
    asked = [
        token
        for token, fields in reached.items()
        if any(token in field or not _is_inert(field, classes) for field in fields)
    ]
    marks = {token: _mark(unknown) for token, unknown in tokens.items()}
    shown = {token: unknown.shown for token, unknown in tokens.items()}
    open_fields = {field for token in asked for field in reached[token]}
    frozen = {field for fields in reached.values() for field in fields} - open_fields
    leaves = {_with(field, marks): _with(value, marks) for field, value in source.leaves.items()}
    needed = [
        *(unknown for one in draft.left_out for unknown in one.unknowns),
        *(tokens[token] for token in asked),
    ]
    needing = [
        one for one in launch.overrides if one in draft.left_out or _sets_any(one, open_fields)
    ]
    return replace(
        source,
        leaves=leaves,
        origins={
            _with(field, marks): _with(origin, shown) for field, origin in source.origins.items()
        },
        launched={
            _with(field, marks): _with(value, marks) for field, value in source.launched.items()
        },
        description=f"{launch.origin} line {launch.line}: {source.description}",
        stated=None
        if source.stated is None
        else {_with(field, marks): _with(value, marks) for field, value in source.stated.items()},
        sha256=sources.config_sha256(leaves),
        notes=(*launch.warnings, *(_with(note, shown) for note in source.notes)),
        required=(*source.required, *_asked(needed, needing, launch)),
        script=Script(
            name=launch.origin,
            sha256=launch.sha256,
            frozen={field: _with(source.leaves[field], shown) for field in sorted(frozen)},
            open=frozenset(_with(field, marks) for field in open_fields),
        ),
    )


def _is_inert(field: str, classes: Mapping[str, Class]) -> bool:
    return field == _FOLDER or classes[field] in _INERT


def _composed(
    launch: Launch,
    launched: Sequence[Override],
    stated: Sequence[Override],
    version: str,
    progress: upstream.Progress,
) -> Source:
    """A script may hold secrets: unlike the launches kept here, what it composes to is never cached."""
    assert launch.config_name is not None
    name = launch.config_name
    whole = sources.compose(name, [*launched, *stated], version=version, progress=progress)
    if not stated:
        return whole
    try:
        alone = sources.compose(name, launched, version=version, progress=progress)
    except Refused:
        return whole  # what is stated on top mends the script, which means nothing without it
    return replace(whole, launched=alone.leaves)


def _not_compiled(launch: Launch) -> Iterator[Problem]:
    place = f"{launch.origin}:{launch.line}"
    if launch.entry_point != TRAINING:
        otherwise = "it is a program of its own, with settings that this one's rules do not know"
        reason = f"only {TRAINING} is compiled; {_OTHERS.get(launch.entry_point, otherwise)}"
        fix = f"Give a script that starts {TRAINING}"
        yield _problem("program", launch.entry_point, place, reason, fix)
    for option, folder in (
        ("--config-path", launch.config_path),
        ("--config-dir", launch.config_dir),
    ):
        if folder is not None:
            reason = "a config tree of the user's own is not read yet"
            fix = "Leave it out, and state what its files hold as overrides"
            yield _problem(option, folder, place, reason, fix)


def _tokens(launch: Launch, stated: Sequence[Override]) -> Iterator[tuple[str, Unknown]]:
    """A word in Hydra's grammar for each unknown, which nothing else in the launch contains."""
    texts = [*(one.text for one in launch.overrides), *(one.text for one in stated)]
    word = "unknown"
    while any(word in text for text in texts):
        word += "x"
    for number, unknown in enumerate(launch.unknowns, 1):
        yield f"{word}{number}z", unknown


def _composable(one: Written, launch: Launch, tokens: Mapping[str, Unknown]) -> Override:
    values = {unknown.name: token for token, unknown in tokens.items()}
    return Override(one.bound(values), _place(one, launch))


def _place(one: Written, launch: Launch) -> str:
    return f"{launch.origin}:{one.line}"


def _open_key(one: Written) -> bool:
    """Whether even the key is unknown."""
    first = one.value.pieces[0] if one.value.pieces else ""
    return bool(one.unknowns) and not (isinstance(first, str) and "=" in first)


def _sets_any(one: Written, fields: AbstractSet[str]) -> bool:
    """Whether it sets one of the fields, or what lies above one."""
    key = _field(one)
    return bool(one.unknowns) and any(f"{field}.".startswith(f"{key}.") for field in fields)


def _is_replaced(one: Written, launch: Launch, stated: Sequence[Override]) -> bool:
    """Whether a later override of the same leaf makes its unknowns moot; `+a=` is what adds the leaf."""
    if not one.unknowns or _open_key(one) or one.text.startswith(("+", "~")):
        return False
    later = launch.overrides[launch.overrides.index(one) + 1 :]
    texts = [*(other.text for other in later), *(other.text for other in stated)]
    key = one.text.partition("=")[0]
    return any(text.partition("=")[0] == key for text in texts)


def _asked(
    unknowns: Iterable[Unknown], needing: Sequence[Written], launch: Launch
) -> Iterator[Problem]:
    """One problem for each unknown, at the first override that needs it."""
    for unknown in dict.fromkeys(unknowns):
        first, *others = [one for one in needing if unknown in one.unknowns]
        more = ", ".join(dict.fromkeys(map(_field, others)))
        reason = f"{unknown.shown} is not known: {unknown.reason}"
        yield Problem(
            field=_field(first),
            value=first.text if _open_key(first) else first.text.partition("=")[2],
            origin=_place(first, launch),
            reason=f"{reason}; {more} needs it too" if more else reason,
            fix=unknown.fix,
        )


def _field(one: Written) -> str:
    return (
        "override" if _open_key(one) else one.text.lstrip("+~").partition("=")[0].partition("@")[0]
    )


def _mark(unknown: Unknown) -> str:
    """What stands for an unknown in a leaf; a `<gap>` stands for itself."""
    return unknown.name if unknown.name.startswith("<") else f"<{unknown.name}>"


def _with(value: Any, texts: Mapping[str, str]) -> Any:
    """The value with a text in the place of each token, at any depth."""
    if isinstance(value, str):
        for token, text in texts.items():
            value = value.replace(token, text)
        return value
    if isinstance(value, list):
        return [_with(part, texts) for part in value]
    if isinstance(value, dict):
        return {_with(key, texts): _with(part, texts) for key, part in value.items()}
    return value


def _untokened(problem: Problem, tokens: Mapping[str, Unknown]) -> Problem:
    shown = {token: unknown.shown for token, unknown in tokens.items()}
    return Problem(
        field=_with(problem.field, shown),
        value=_with(problem.value, shown),
        origin=_with(problem.origin, shown),
        reason=_with(problem.reason, shown),
        fix=_with(problem.fix, shown),
    )


def _problem(field: str, value: object, origin: str, reason: str, fix: str) -> Problem:
    return Problem(field=field, value=value, origin=origin, reason=reason, fix=fix)
