"""Whether what runs is what the lock says: a stack is a torch release, its CUDA and all the rest.

Three things are held against it: the version of each locked package, its files (package_files.py), and what
would be loaded from elsewhere. A stack's lock stands in the repository; an installed package has none, and then
nothing is verified.
"""

import hashlib
import importlib.metadata
import os
import re
import site
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution
from pathlib import Path
from typing import Any

from miniverl.bench import package_files
from miniverl.bench.gpu_profile import Profile
from miniverl.engine.problem import CannotHere, Problem

CONTAINERS = Path(__file__).resolve().parents[1] / "containers"
LOCKS = CONTAINERS / "locks"

_LINE = re.compile(r"^([A-Za-z0-9][\w.-]*)==([^\s;\\]+)", re.MULTILINE)
_SHOWN_FILES = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """A package or a setting that is not as locked; found None: a package that is not installed."""

    subject: str
    expected: str
    found: str | None
    fix: str

    def __str__(self) -> str:
        return f"{self.subject}: {self.expected}, {self.found or 'not installed'}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Stack:
    name: str
    lock_sha256: str | None
    matches: bool | None  # None: there is no lock to compare with
    differences: tuple[Difference, ...]


def name_of(torch: str | None, has_cuda: bool, containers: Path = CONTAINERS) -> str:
    """The stack that this torch belongs to; where none has it, the one that comes nearest."""
    if torch is None:
        return "compile"
    torches = {
        name: each["torch"]
        for name, each in _stated(containers).items()
        if has_cuda == ("cuda" in each)
    }
    release = torch.partition("+")[0]
    for name, each in torches.items():
        if each in (torch, release):
            return name
    # Newest first: what nobody has locked yet is most likely newer.
    return next(iter(torches), "cuda" if has_cuda else "cpu")


def minimum_driver(name: str, containers: Path = CONTAINERS) -> str | None:
    """The oldest driver that the stack's CUDA runs with; None where it takes none, or nobody stated it."""
    found: str | None = _stated(containers).get(name, {}).get("minimum_driver")
    return found


def card_problems(
    name: str, driver: str | None, profile: Profile | None, containers: Path = CONTAINERS
) -> list[Problem]:
    """Where the driver is older than the stack's CUDA runs with, or either older than the profile's card.

    A driver that nobody knows may do; without a profile no card is looked at.
    """
    problems = []
    needed = minimum_driver(name, containers)
    if driver is not None and needed is not None and _is_older(driver, needed):
        reason = f"The {name} stack needs driver {needed}, and this is {driver}"
        fix = "Install a newer driver, or an older CUDA's stack"
        problems.append(_driver_problem(driver, reason, fix))
    if profile is None:
        return problems
    cuda, needed = _stated(containers).get(name, {}).get("cuda"), profile.minimum_cuda
    if cuda is not None and needed is not None and _is_older(cuda, needed):
        problems.append(
            Problem(
                field="stack",
                value=name,
                origin="installed packages",
                reason=f"The {name} stack has CUDA {cuda}, and {profile.title} needs {needed}",
                fix=f"Install a newer one: MINIVERL_STACK={profile.stack} make setup",
            )
        )
    oldest = profile.minimum_driver
    if driver is not None and oldest is not None and _is_older(driver, oldest):
        reason = f"{profile.title} needs driver {oldest}, and this is {driver}"
        told = reason[:1].upper() + reason[1:]
        problems.append(_driver_problem(driver, told, "Install a newer driver"))
    return problems


def _driver_problem(driver: str, reason: str, fix: str) -> Problem:
    return Problem(field="driver", value=driver, origin="the driver itself", reason=reason, fix=fix)


def stack_of(name: str, locks: Path = LOCKS) -> Stack:
    """The stack called `name`, compared with what is installed and with what this process would load."""
    lock = locks / f"{name}.txt"
    if not lock.exists():
        return Stack(name=name, lock_sha256=None, matches=None, differences=())
    text, present = lock.read_text("utf-8"), distributions()
    found = (
        *differences(text, {name: each.version for name, each in present.items()}),
        *damages(text, present, package_files.remembered_in_venv()),
        *strangers(os.environ, sys.path, site.getusersitepackages()),
    )
    return Stack(
        name=name,
        lock_sha256=hashlib.sha256(text.encode()).hexdigest(),
        matches=not found,
        differences=found,
    )


def require(stack: Stack) -> None:
    """Raise CannotHere with everything that differs from the lock."""
    if stack.differences:
        raise CannotHere(
            Problem(
                field=difference.subject,
                value=difference.found,
                origin=f"lock of the {stack.name} stack",
                reason=f"the lock says {difference.expected.removeprefix('locked ')}",
                fix=difference.fix,
            )
            for difference in stack.differences
        )


def _is_older(version: str, minimum: str) -> bool:
    found, needed = ([int(part) for part in text.split(".")] for text in (version, minimum))
    return found < needed


def differences(lock: str, present: Mapping[str, str]) -> tuple[Difference, ...]:
    """Each `name==version` of the lock that is not present so; markers of other machines do not occur."""
    return tuple(
        Difference(
            subject=name,
            expected=f"locked {version}",
            found=present.get(_normal(name)),
            fix="make setup",
        )
        for name, version in _LINE.findall(lock)
        if present.get(_normal(name)) != version
    )


def damages(
    lock: str, present: Mapping[str, Distribution], remembered: Path | None
) -> Iterator[Difference]:
    """Each locked package with files that pip did not write so."""
    names = {_normal(name) for name, _ in _LINE.findall(lock)}
    locked = {name: each for name, each in present.items() if name in names}
    for package, files in package_files.damaged(locked, remembered).items():
        shown = ", ".join(files[:_SHOWN_FILES]) + (", ..." if len(files) > _SHOWN_FILES else "")
        yield Difference(
            subject=package,
            expected="files as they were installed",
            found=f"{len(files)} changed or gone ({shown})",
            fix="Install it anew: remove the environment's folder, then make setup",
        )


def strangers(
    variables: Mapping[str, str], path: Sequence[str], user_site: str
) -> Iterator[Difference]:
    """What would be loaded beside the stack, or in its place. Of a path only the last part is told."""
    for name in ("LD_PRELOAD", "PYTHONPATH"):
        if variables.get(name):
            yield Difference(
                subject=name,
                expected="unset",
                found=_last_parts(re.split(r"[: ]", variables[name])),
                fix=f"Unset it: env -u {name} miniverl ...",
            )
    if user_site in path:
        yield Difference(
            subject="user site-packages",
            expected="not on the path",
            found="on the path",
            fix="Set PYTHONNOUSERSITE=1",
        )


def installed() -> dict[str, str]:
    """Normalised name -> version of every installed distribution."""
    return {name: each.version for name, each in distributions().items()}


def _stated(containers: Path) -> dict[str, dict[str, Any]]:
    """Every stack's stack.toml, the newest CUDA first; none where the repository is not there."""
    paths = sorted(containers.glob("*/stack.toml"), reverse=True)
    return {path.parent.name: tomllib.loads(path.read_text("utf-8")) for path in paths}


def distributions() -> dict[str, Distribution]:
    """By normalised name, one of each: the first on the path is the one that is imported."""
    found: dict[str, Distribution] = {}
    for each in importlib.metadata.distributions():
        found.setdefault(_normal(each.name), each)
    return found


def _last_parts(paths: Iterable[str]) -> str:
    return ":".join(path.rstrip("/").rpartition("/")[2] for path in paths)


def _normal(name: str) -> str:
    """As the package index compares names."""
    return re.sub(r"[-_.]+", "-", name).lower()
