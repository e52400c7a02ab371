"""Whether what is installed is what the lock says: a stack is a torch release, its CUDA and all the rest.

A stack's lock stands in the repository; an installed package has none, and then nothing is verified.
"""

import hashlib
import importlib.metadata
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from miniverl.engine.problem import CannotHere, Problem

LOCKS = Path(__file__).resolve().parents[1] / "containers" / "locks"

_LINE = re.compile(r"^([A-Za-z0-9][\w.-]*)==([^\s;\\]+)", re.MULTILINE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """A locked package that is installed in another version, or not at all (None)."""

    package: str
    locked: str
    installed: str | None

    def __str__(self) -> str:
        found = self.installed or "not installed"
        return f"{self.package}: locked {self.locked}, {found}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Stack:
    name: str
    lock_sha256: str | None
    matches: bool | None  # None: there is no lock to compare with
    differences: tuple[Difference, ...]


def stack_of(name: str, locks: Path = LOCKS) -> Stack:
    """The stack called `name`, compared with what is installed."""
    lock = locks / f"{name}.txt"
    if not lock.exists():
        return Stack(name=name, lock_sha256=None, matches=None, differences=())
    text = lock.read_text("utf-8")
    found = differences(text, installed())
    return Stack(
        name=name,
        lock_sha256=hashlib.sha256(text.encode()).hexdigest(),
        matches=not found,
        differences=found,
    )


def require(stack: Stack) -> None:
    """Raise CannotHere with every package that differs from the lock."""
    if stack.differences:
        raise CannotHere(
            Problem(
                field=difference.package,
                value=difference.installed,
                origin=f"lock of the {stack.name} stack",
                reason=f"the lock says {difference.locked}",
                fix="make setup",
            )
            for difference in stack.differences
        )


def differences(lock: str, present: Mapping[str, str]) -> tuple[Difference, ...]:
    """Each `name==version` of the lock that is not present so; markers of other machines do not occur."""
    return tuple(
        Difference(package=name, locked=version, installed=present.get(_normal(name)))
        for name, version in _LINE.findall(lock)
        if present.get(_normal(name)) != version
    )


def installed() -> dict[str, str]:
    """Normalised name -> version of every installed distribution."""
    return {_normal(one.name): one.version for one in importlib.metadata.distributions()}


def _normal(name: str) -> str:
    """As the package index compares names."""
    return re.sub(r"[-_.]+", "-", name).lower()
