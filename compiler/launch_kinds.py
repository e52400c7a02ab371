"""Files that people give where a launch script belongs, each with the sentence that says what to give."""

import re

from miniverl.engine.problem import Problem

GIVE = "Give the bash script that starts `python3 -m verl.trainer.main_ppo`, or its overrides"

# The first that fits: what the file is, by its text; and what to do.
_KINDS: tuple[tuple[re.Pattern[str], str, str], ...] = (
    (
        re.compile(r"Traceback \(most recent call last\):"),
        "it is the trace of a failed run",
        "Give the script or the command that was run; the trace does not hold its settings",
    ),
    (
        re.compile(r"\A\s*(?:<!DOCTYPE|<html)", re.IGNORECASE),
        "it is a web page",
        "Save the raw file instead of the page that shows it",
    ),
    (
        re.compile(r'\A\s*\{[^{}]{0,400}"cells"\s*:'),
        "it is a notebook",
        "Give the cell that starts the training, as a .sh file",
    ),
    (
        re.compile(
            r"\A\s*(?:@echo off\b|rem\s|::|setlocal\b)|^\s*set\s+\w+=.*%\w+%|[ \t]\^[ \t]*\r?$",
            re.IGNORECASE | re.MULTILINE,
        ),
        "it is a Windows command file",
        "Give the same command for bash: `\\` continues a line, $NAME is a variable",
    ),
    (
        re.compile(
            r"^\s*(?:\$env:\w+\s*=|param\s*\(|Write-Host\b|\$\w+\s*=\s*[\"'@(\d])", re.MULTILINE
        ),
        "it is a PowerShell script",
        "Give the same command for bash: `\\` continues a line, $NAME is a variable",
    ),
    (
        re.compile(r"\A(?:\s*#[^\n]*\n|\s*\n|---\n)*[A-Za-z][\w-]*:(?:[ \t]*\n|[ \t]+\S)"),
        "it is a YAML file",
        "Give the commands under its `run:`, `command:` or `args:` as a .sh file",
    ),
    (
        re.compile(r"\A\s*[{\[]\s*(?:\"|\n|\})"),
        "it is a JSON file",
        "Give the command that it holds as a .sh file",
    ),
    (
        re.compile(
            r"^(?:import \w+|from [\w.]+ import |def \w+\(.*\):$|if __name__ ==)", re.MULTILINE
        ),
        "it is a Python program",
        "Give the command that starts it, with its overrides",
    ),
    (
        re.compile(r"^```(?:bash|sh|shell)?\s*$", re.MULTILINE),
        "it is a Markdown page",
        "Give one of its command blocks as a .sh file",
    ),
    (
        re.compile(r"^FROM \S+", re.MULTILINE),
        "it is a Dockerfile",
        "Give the command that the container runs as a .sh file",
    ),
    (
        re.compile(r"^\++ python3? ", re.MULTILINE),
        "it is the log of a shell with `set -x`",
        "Give the script that was run",
    ),
)


def other_kind(text: str, origin: str) -> Problem | None:
    """The problem with a file that is no script for bash; None when it could be one."""
    if text.startswith("#!") and "sh" in text.partition("\n")[0]:
        return None
    for pattern, what, fix in _KINDS:
        if pattern.search(text[:200_000]):
            return Problem(field="script", value=None, origin=origin, reason=what, fix=fix)
    return None
