"""Writes locks/*.txt and locks.toml from what pyproject.toml and the stacks' stack.toml ask for.

    make lock                       # keeps the locked versions where they still fit
    make lock UPGRADE=--upgrade

All roots resolve together, so the locks agree on every version. The resolver sees PyPI, whose torch
is the CUDA build; the cpu lock is that same resolution with torch's CPU build in its place and
without whatever only the CUDA build pulls in. A stack of another torch release is resolved once
more, with that release in place of pyproject.toml's, and takes over every other version that fits
it. Each lock lists the digests of the files that fit Linux x86-64 and CPython 3.11 to 3.14, and
nothing about where they come from.
"""

import hashlib
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
LOCKS = ROOT / "containers" / "locks"
FACTS = ROOT / "containers" / "locks.toml"

PYTHONS = ((3, 11), (3, 12), (3, 13), (3, 14))
# torch needs glibc 2.28, so every system that can run it takes these. Newer ones are listed too: a
# system that can take them may prefer them.
PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in range(45, 4, -1)]
PLATFORMS += ["manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64", "linux_x86_64"]

# Below this line of a lock stand the packages that have no wheel; install.py builds them last.
SOURCES = "# Built from source, after everything above is installed:"


@dataclass(frozen=True)
class File:
    name: str
    sha256: str
    size_bytes: int
    tags: frozenset[Tag]  # empty for a source archive


@dataclass(frozen=True)
class Package:
    name: str
    version: str
    files: tuple[File, ...]

    @property
    def has_wheel(self) -> bool:
        return any(file.tags for file in self.files)

    def best(self, python: tuple[int, int]) -> File | None:
        """The file that pip takes on this Python."""
        if not self.has_wheel:
            return self.files[0]
        rank = {tag: place for place, tag in enumerate(_tags(python))}
        fitting = [
            (min(rank[t] for t in f.tags & rank.keys()), f.name)
            for f in self.files
            if f.tags & rank.keys()
        ]
        return next(f for f in self.files if f.name == min(fitting)[1]) if fitting else None


# Index servers other than PyPI hold this build, so the resolver cannot see it.
CPU_TORCH = Package(
    "torch",
    "2.13.0+cpu",
    (
        File(
            "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl",
            "6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b",
            191_794_682,
            frozenset({Tag("cp311", "cp311", "manylinux_2_28_x86_64")}),
        ),
    ),
)


def main() -> None:
    project, torches = tomllib.loads((ROOT / "pyproject.toml").read_text()), cuda_torches()
    is_upgrade = "--upgrade" in sys.argv
    main_stack = _main_stack(torches)
    packages, edges = _resolve(
        project, project["dependency-groups"], {} if is_upgrade else _pinned(main_stack), None
    )
    if packages["torch"].version != torches[main_stack]:
        sys.exit(f"pyproject.toml resolves to torch {packages['torch'].version}; no stack has it")
    locks = divide(project, packages, edges, main_stack)
    taken = {name: package.version for name, package in packages.items()}
    for stack, torch in torches.items():
        if stack != main_stack:
            former = {} if is_upgrade else _locked(stack)
            locks[stack] = resolve_stack(project, torch, former | taken)
    for name, locked in locks.items():
        (LOCKS / f"{name}.txt").write_text(_lock_text(name, locked))
    FACTS.write_text(_facts_text(requirements_sha256(project, torches), locks))
    for name, locked in locks.items():
        print(f"{name}: {len(locked)} packages, {_download_bytes(locked) / 1e6:.0f} MB")


def cuda_torches() -> dict[str, str]:
    """The torch release of each stack that has CUDA, newest first."""
    found = {
        path.parent.name: tomllib.loads(path.read_text())["torch"]
        for path in (ROOT / "containers").glob("*/stack.toml")
    }
    stacks = {stack: torch for stack, torch in found.items() if "+" not in torch}
    return dict(sorted(stacks.items(), key=lambda each: Version(each[1]), reverse=True))


def divide(
    project: Mapping[str, Any],
    packages: Mapping[str, Package],
    edges: Mapping[str, frozenset[str]],
    main_stack: str,
) -> dict[str, list[Package]]:
    """The locks of one resolution: for each, its packages in order of name."""
    core, run = _roots(project)
    groups = project["dependency-groups"]
    without_cuda = dict(edges) | {
        "torch": frozenset(
            n for n in edges["torch"] if not n.startswith(("cuda-", "nvidia-", "triton"))
        )
    }
    cpu, cuda = _closure(run, without_cuda), _closure(run, edges)
    names = {
        "compile": _closure(core, edges),
        "cpu": cpu,
        main_stack: cuda,
        "test": _closure(_names(groups["test"]), edges) - cuda,
        "data": _closure(_names(groups["data"]), edges) - cuda,
        # Whole, not what it adds: it fills an environment of its own.
        "peers": _closure(_names(groups["peers"]), without_cuda),
    }
    locks = {lock: [packages[name] for name in sorted(members)] for lock, members in names.items()}
    if not CPU_TORCH.version.startswith(packages["torch"].version + "+"):
        sys.exit(f"pyproject.toml asks for torch {packages['torch'].version}; CPU_TORCH is another")
    for lock in ("cpu", "peers"):
        locks[lock] = [CPU_TORCH if each.name == "torch" else each for each in locks[lock]]
    return locks


def resolve_stack(
    project: Mapping[str, Any], torch: str, preferred: Mapping[str, str]
) -> list[Package]:
    """The stack of another torch release."""
    packages, edges = _resolve(project, (), preferred, torch)
    _, run = _roots(project)
    return [packages[name] for name in sorted(_closure(run, edges))]


def requirements_sha256(project: Mapping[str, Any], torches: Mapping[str, str]) -> str:
    """Digest of everything that a lock follows from."""
    asked = [
        project["build-system"]["requires"],
        project["project"]["requires-python"],
        project["project"]["dependencies"],
        project["project"]["optional-dependencies"],
        project["dependency-groups"],
        dict(torches),
    ]
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()


def _resolve(
    project: Mapping[str, Any],
    groups: Iterable[str],
    preferred: Mapping[str, str],
    torch: str | None,
) -> tuple[dict[str, Package], dict[str, frozenset[str]]]:
    """Every package of the joint resolution, and what each one requires.

    `torch` takes the place of the release that pyproject.toml asks for.
    """
    with tempfile.TemporaryDirectory() as folder:
        graph, pylock, build = (Path(folder, n) for n in ("graph.txt", "pylock.toml", "build.in"))
        graph.write_text("".join(f"{name}=={each}\n" for name, each in preferred.items()))
        build.write_text("\n".join(project["build-system"]["requires"]) + "\n")
        command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-config"]
        command += ["--no-header", str(ROOT / "pyproject.toml"), str(build), "--extra=run"]
        command += [f"--group={ROOT / 'pyproject.toml'}:{group}" for group in groups]
        if torch is not None:
            override = Path(folder, "override.txt")
            override.write_text(f"torch=={torch}\n")
            command += [f"--override={override}"]
        # One version of each package for all Pythons, so that two machines differ in less.
        command += ["--universal", "--fork-strategy=fewest"]
        command += [f"--python-version={_dotted(PYTHONS[0])}"]
        subprocess.run([*command, "--annotation-style=line", f"-o{graph}"], check=True)
        subprocess.run([*command, f"--constraint={graph}", f"-o{pylock}"], check=True)
        entries = tomllib.loads(pylock.read_text())["packages"]
        packages = {entry["name"]: _package(entry) for entry in entries if _is_for_linux(entry)}
        return packages, _edges(graph.read_text(), packages)


def _main_stack(torches: Mapping[str, str]) -> str:
    """The one whose torch is the CPU build's."""
    return next(s for s, torch in torches.items() if CPU_TORCH.version == f"{torch}+cpu")


def _roots(project: Mapping[str, Any]) -> tuple[frozenset[str], frozenset[str]]:
    """What compiling asks for, and what running asks for."""
    core = _names(project["project"]["dependencies"] + project["build-system"]["requires"])
    return core, core | _names(project["project"]["optional-dependencies"]["run"])


def _pinned(main_stack: str) -> dict[str, str]:
    """The versions of the present locks; the resolver prefers them."""
    return _locked("peers") | _locked("data") | _locked("test") | _locked(main_stack)


def _locked(lock: str) -> dict[str, str]:
    path = LOCKS / f"{lock}.txt"
    if not path.exists():
        return {}
    entries = re.findall(r"^([^#\s]+?)==(\S+)", path.read_text(), re.MULTILINE)
    return dict(entries)


def _is_for_linux(entry: Mapping[str, Any]) -> bool:
    linux = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix"}
    linux |= {"platform_machine": "x86_64", "platform_python_implementation": "CPython"}
    linux |= {"implementation_name": "cpython"}
    versions = [
        {"python_version": v, "python_full_version": f"{v}.0"} for v in map(_dotted, PYTHONS)
    ]
    marker = entry.get("marker")
    return marker is None or any(Marker(marker).evaluate(linux | version) for version in versions)


def _package(entry: Mapping[str, Any]) -> Package:
    fits = frozenset(tag for python in PYTHONS for tag in _tags(python))
    wheels = [_file(wheel) for wheel in entry.get("wheels", [])]
    files = tuple(wheel for wheel in wheels if wheel.tags & fits) or (_file(entry["sdist"]),)
    return Package(entry["name"], entry["version"], files)


def _file(entry: Mapping[str, Any]) -> File:
    name = entry["url"].rsplit("/", 1)[1]
    tags = (
        parse_wheel_filename(name.replace("%2B", "+"))[3] if name.endswith(".whl") else frozenset()
    )
    return File(name, entry["hashes"]["sha256"], entry["size"], tags)


def _edges(graph: str, packages: Mapping[str, Package]) -> dict[str, frozenset[str]]:
    """`name==version ; marker  # via a, b` lines, turned round: what each package requires."""
    edges: dict[str, set[str]] = {}
    for line in graph.splitlines():
        requirement, _, via = line.partition("# via ")
        name = requirement.partition("==")[0].strip()
        if name in packages:
            edges.setdefault(name, set())
            for parent in via.split(", "):
                edges.setdefault(parent.strip(), set()).add(name)
    return {name: frozenset(required) for name, required in edges.items()}


def _closure(roots: Iterable[str], edges: Mapping[str, frozenset[str]]) -> frozenset[str]:
    reached: set[str] = set()
    waiting = list(roots)
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += edges[name]
    return frozenset(reached)


def _lock_text(name: str, packages: list[Package]) -> str:
    wheels = [package for package in packages if package.has_wheel]
    sources = [package for package in packages if not package.has_wheel]
    lines = [f"# {name}: written by `make lock` from pyproject.toml; do not edit."]
    lines += [_entry(package) for package in wheels]
    if sources:
        lines += [SOURCES, *(_entry(package) for package in sources)]
    return "\n".join(lines) + "\n"


def _entry(package: Package) -> str:
    digests = sorted(file.sha256 for file in package.files)
    return " \\\n".join(
        [f"{package.name}=={package.version}", *(f"    --hash=sha256:{d}" for d in digests)]
    )


def _facts_text(asked_sha256: str, locks: Mapping[str, list[Package]]) -> str:
    """What install.py and the tests need to know of each lock, as TOML."""
    lines = [
        "# Written by `make lock`; do not edit. What each lock of locks/ holds: the Pythons that",
        "# have a wheel of everything, and how much is downloaded where nothing is cached.",
        f'requirements_sha256 = "{asked_sha256}"',
    ]
    for name, packages in locks.items():
        pythons = [_dotted(p) for p in PYTHONS if all(package.best(p) for package in packages)]
        lines += [
            "",
            f"[{name}]",
            f'lock_sha256 = "{hashlib.sha256((LOCKS / f"{name}.txt").read_bytes()).hexdigest()}"',
            f"pythons = {json.dumps(pythons)}",
            f"packages = {len(packages)}",
            f"download_bytes = {_download_bytes(packages)}",
        ]
        lines += [f'torch = "{package.version}"' for package in packages if package.name == "torch"]
    return "\n".join(lines) + "\n"


def _download_bytes(packages: Iterable[Package]) -> int:
    """On the oldest Python; the others differ in the third digit."""
    best = [package.best(PYTHONS[0]) for package in packages]
    return sum(file.size_bytes for file in best if file)


def _tags(python: tuple[int, int]) -> list[Tag]:
    """What CPython of this version takes, best first."""
    interpreter = f"cp{python[0]}{python[1]}"
    return [
        *cpython_tags(python, platforms=PLATFORMS),
        *compatible_tags(python, interpreter, PLATFORMS),
    ]


def _names(requirements: Iterable[str]) -> frozenset[str]:
    return frozenset(canonicalize_name(Requirement(text).name) for text in requirements)


def _dotted(python: tuple[int, int]) -> str:
    return f"{python[0]}.{python[1]}"


if __name__ == "__main__":
    main()
