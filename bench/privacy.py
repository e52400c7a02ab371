"""What a published record must not tell: names of people and hosts, folders of a machine, secrets, identifiers.

One table of patterns finds them and replaces them: `scrubbed` is used where a record is written, `private` where
one is checked. Names that only this machine knows are asked for apart, when a record is published from it.
"""

import os
import pwd
import re
import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any

from miniverl.bench.finding import Coded, Mistake, pointer

_ROOTS = (
    "boot|data|dev|etc|gpfs|home|lustre|media|mnt|nfs|nix|opt|private|proc|project|projects|root|run|"
    "scratch|srv|storage|sys|tmp|usr|Users|var|workspace|workspaces|work|content|kaggle"
)
_NOT_INSIDE = r"(?<![\w./:$~@-])"  # a URL or a relative path goes on to the left
# Code -> (pattern, what it found). The first that matches a place tells.
_PATTERNS: tuple[tuple[str, re.Pattern[str], str], ...] = (
    (
        "private_secret",
        re.compile(
            r"hf_[A-Za-z0-9]{20,}|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_\w{20,}|glpat-[\w-]{18,}"
            r"|sk-[A-Za-z0-9_-]{20,}|AKIA[0-9A-Z]{16}|xox[abprs]-[\w-]{10,}"
            r"|eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]+|-----BEGIN [A-Z ]*PRIVATE KEY-----"
            r"|\b[A-Za-z][A-Za-z0-9+.-]*://[^\s/:@]+:[^\s/@]+@\S*"
            r"|(?i:\b[\w-]*(?:api_?key|access_?key|secret|password|passwd|auth_?token)\b"
            r"[\"']?\s*[=:]\s*[\"']?[^\s\"']{6,})"
        ),
        "a token, key or password",
    ),
    (
        "private_email",
        re.compile(r"[A-Za-z0-9._%+-]+@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*\.[A-Za-z]{2,}\b"),
        "an e-mail address, or a user at a host",
    ),
    (
        "private_hardware",
        re.compile(
            r"\b(?:GPU|MIG)-[0-9a-f]{8}-\S+"
            r"|\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"
            r"|\b(?:[0-9a-f]{2}:){5}[0-9a-f]{2}\b",
            re.IGNORECASE,
        ),
        "an identifier of one device",
    ),
    (
        "private_host",
        re.compile(
            r"\b[A-Za-z0-9][\w-]*(?:\.[\w-]+)*\.(?:local|lan|internal|intranet|corp|localdomain|home\.arpa)\b"
            r"|\bip-\d{1,3}-\d{1,3}-\d{1,3}-\d{1,3}\b"
            r"|\b(?:192\.168|172\.(?:1[6-9]|2\d|3[01]))\.\d{1,3}\.\d{1,3}\b"
            r"|//\d{1,3}(?:\.\d{1,3}){3}\b"
        ),
        "a name or address of a host",
    ),
    (
        "private_path",
        re.compile(
            rf"{_NOT_INSIDE}(?:/(?:{_ROOTS})(?:/[^\s\"'<>|:,;)\]]*)?(?![\w-])|~\w*/[^\s\"'<>|:,;)\]]+"
            r"|file://\S+)|\b[A-Za-z]:\\[^\s\"'<>|]+|\\\\\w+\\\S+"
        ),
        "an absolute path",
    ),
)
_SECRET_NAME = re.compile(r"(?:^|_)(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)(?:_|$)")
_REPLACED = {
    "private_secret": "<secret>",
    "private_email": "<email>",
    "private_hardware": "<identifier>",
    "private_host": "<host>",
    "private_path": "<path>",
}
# What programs and people said, which may quote a folder. Everything else is written by us.
_QUOTED = ("message", "reason")
# Names that are nobody's.
_EVERYBODY = frozenset(
    {
        *("root", "user", "users", "admin", "administrator", "guest", "nobody", "runner", "jovyan"),
        *("localhost", "localdomain", "home", "work", "node", "worker", "main", "build", "test"),
        *("default", "train", "linux", "cloud", "docker", "debian", "ubuntu", "fedora"),
    }
)
_SHORTEST_NAME = 4


def private(record: Any) -> Iterator[Coded]:
    """Each text of the record, and each name of a field, that tells what it must not."""
    for path, text in _texts(record):
        if (told := _told(text)) is not None:
            code, reason = told
            yield code, Mistake(pointer(*path), text, reason)
    variables = record.get("environment", {}).get("env", {})
    for name in variables if isinstance(variables, Mapping) else ():
        if _SECRET_NAME.search(name.upper()):
            field = pointer("environment", "env", name)
            yield "private_secret", Mistake(field, "not shown", "the variable's name says a secret")


def named(record: Any, names: Mapping[str, str]) -> Iterator[Coded]:
    """Each text in which one of `names` (name -> code) stands as a word."""
    for path, text in _texts(record):
        for name, code in names.items():
            if re.search(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", text, re.IGNORECASE):
                yield code, Mistake(pointer(*path), text, f"holds {name!r}, a name of this machine")


def own_names() -> dict[str, str]:
    """What this machine and its user are called, where that is a name of its own; name -> code."""
    hosts = {socket.gethostname(), socket.gethostname().partition(".")[0]}
    users = {os.environ.get(name, "") for name in ("USER", "LOGNAME", "SUDO_USER")}
    with suppress(KeyError):  # an account without an entry
        users.add(pwd.getpwuid(os.getuid()).pw_name)
    return _telling(hosts, "private_host") | _telling(users, "private_user")


def scrubbed(value: Any, *, is_quoted: bool = False) -> Any:
    """`value` with what is private in quoted text replaced by a word for it."""
    if isinstance(value, Mapping):
        return {n: scrubbed(each, is_quoted=n in _QUOTED) for n, each in value.items()}
    if isinstance(value, list):
        return [scrubbed(each, is_quoted=is_quoted) for each in value]
    return _scrubbed_text(value) if is_quoted and isinstance(value, str) else value


@lru_cache(maxsize=1 << 16)  # names of fields stand in a record by the thousand
def _told(text: str) -> tuple[str, str] | None:
    """The code of what a text tells, and the reason; None: nothing."""
    for code, pattern, what in _PATTERNS:
        if found := pattern.search(text):
            return code, f"holds {what}: {found[0]!r}"
    return None


def _scrubbed_text(text: str) -> str:
    for code, pattern, _ in _PATTERNS:
        text = pattern.sub(_REPLACED[code], text)
    return text


def _telling(names: Iterable[str], code: str) -> dict[str, str]:
    return {
        name: code
        for name in sorted(names)
        if len(name) >= _SHORTEST_NAME and name.lower() not in _EVERYBODY
    }


def _texts(value: Any, *path: str | int) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Every text, and every name of a field, with its place."""
    if isinstance(value, Mapping):
        for name, each in value.items():
            yield (*path, name), name
            yield from _texts(each, *path, name)
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from _texts(each, *path, index)
    elif isinstance(value, str):
        yield path, value
