"""How a command answers: text for people on stderr, JSON on stdout only when asked, an exit code.

The one place that turns Problems into text. Loads nothing but click: `miniverl --help` waits for it.
"""

import functools
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from miniverl.bench import failure
from miniverl.bench.exits import Exit
from miniverl.bench.finding import Finding
from miniverl.compiler.whole import denied
from miniverl.engine.problem import CannotHere, Problem, Problems

FOLDER = click.Path(file_okay=False, path_type=Path)
FILE = click.Path(dir_okay=False, path_type=Path)
json_option = click.option("--json", "as_json", is_flag=True, help="Answer in JSON on stdout.")

_SHOWN_CHARACTERS = 240


def answers(command: Callable[..., Exit]) -> Callable[..., Exit]:
    """A command whose Problems end it with their text, their JSON if `as_json`, and their exit code.

    What the operating system refuses is one of them, where nobody below knew more about it; so is a package that is
    not there: who compiles alone has no torch.
    """

    @functools.wraps(command)
    def answered(*arguments: Any, **options: Any) -> Exit:
        try:
            return command(*arguments, **options)
        except Problems as error:
            return refuse(error, as_json=options.get("as_json", False))
        except ModuleNotFoundError as error:
            if error.name is None or error.name.startswith("miniverl"):
                raise
            return refuse(_lacking(error.name), as_json=options.get("as_json", False))
        except OSError as error:
            path = None if error.filename is None else Path(os.fsdecode(error.filename))
            told = denied(error, path, "cannot be used")
            return refuse(told, as_json=options.get("as_json", False))

    return answered


def _lacking(module: str) -> CannotHere:
    problem = Problem(
        field="package",
        value=module.partition(".")[0],
        origin="this environment",
        reason="The package is not installed here: what compiles needs it not, and this does",
        fix="Run make setup; without a checkout, install miniverl with its extra `run`",
    )
    return CannotHere([problem])


def refuse(error: Problems, *, as_json: bool) -> Exit:
    """Print what stands in the way. The last line is a sentence: under make it stands above make's own."""
    kind = type(error)
    if as_json:
        status = failure.CODES[kind.__name__]
        print_json_line({"status": status, "problems": failure.plain(error.problems)})
    say_problems(error.problems)
    if kind is CannotHere:
        say(_sentence(error.problems))
    elif len(error.problems) > 1:
        say(f"{len(error.problems)} problems.")
    return failure.EXITS[kind]


def say_problems(problems: Iterable[Problem]) -> None:
    """One block each: field = value, where it was set, why it does not do, what mends it."""
    for problem in problems:
        say(f"{click.style(problem.field or 'record', bold=True)} = {_shown(problem.value)}")
        if isinstance(problem, Finding):
            say(f"  code   {problem.code} ({problem.layer})")
            say(f"  wanted {_cut(str(problem.expected))}")
        say(f"  where  {_cut(problem.origin)}")
        say(f"  why    {problem.reason}")
        say(f"  fix    {problem.fix}")
        say("")


def say(line: str) -> None:
    """A line for people. When nobody reads any more, the work goes on: files and the exit code tell."""
    with suppress(BrokenPipeError):
        click.echo(line, err=True, color=False if os.environ.get("NO_COLOR") else None)


def print_json(value: Any) -> None:
    """Canonical JSON on stdout: sorted keys, no NaN, a newline at the end. A reader may leave early."""
    _print(json.dumps(value, indent=1, sort_keys=True, allow_nan=False))


def print_json_line(value: Any) -> None:
    """The same on one line: an event of many, or a refusal, which may come after events."""
    _print(json.dumps(value, sort_keys=True, allow_nan=False))


def _print(text: str) -> None:
    try:
        click.echo(text)
    except OSError as error:
        # Python writes what is left once more when it ends, and would end with an exit code of its own.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            raise


def _sentence(problems: Sequence[Problem]) -> str:
    """What was found, and what to do; of several problems, the first."""
    first, others = problems[0], len(problems) - 1
    stands_alone = first.reason[:1].isupper()
    found = (
        first.reason if stands_alone else f"{first.field} = {_shown(first.value)}: {first.reason}"
    )
    more = f" (and {others} more)" if others else ""
    return f"{found.rstrip('.')}{more}. {first.fix.rstrip('.')}."


def _shown(value: object) -> str:
    return _cut(repr(value))


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "..."
