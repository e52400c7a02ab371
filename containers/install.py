"""Fills .venv from the hash locks: `python3 containers/install.py [run|compile|test|data]`.

Each part that is installed leaves its lock as a copy in .venv/installed-X.Y/, written after the
last of its packages. A copy that equals the lock means nothing to do; any other state means to
install, so what was broken off or has changed is mended by the same command.
"""

import sys

# Before the other imports: tomllib is missing where Python is too old. No `:=` below, for the same
# sentence on Python 3.6 and 3.7.
if sys.version_info < (3, 11):  # noqa: UP036
    sys.exit(
        f"miniVERL needs Python 3.11 or newer; {sys.executable} is {sys.version.split()[0]}. "
        "Name another one: make setup PYTHON=python3.11"
    )

import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parents[1]
LOCKS = ROOT / "containers" / "locks"
VENV = ROOT / ".venv"
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
INSTALLED = VENV / f"installed-{PYTHON}"

STACKS = ("cpu", "cuda")
PARTS = {
    "run": ["stack"],
    "compile": ["compile"],
    "test": ["stack", "test"],
    "data": ["stack", "data"],
}
SOURCES = "# Built from source, after everything above is installed:"  # as lock.py writes it
CANNOT_HERE = 3  # the exit code for "this machine cannot"
UNREACHABLE = ("Retrying (Retry(", "ConnectionError", "ConnectTimeout", "name resolution")


@dataclass(frozen=True)
class Pip:
    """Runs pip; `command` is how to start it."""

    command: Sequence[str]

    def asks(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """For an answer: nothing is shown."""
        command = [*self.command, *arguments]
        return subprocess.run(
            command, check=False, env=_environment(), capture_output=True, text=True
        )

    def installs(self, *arguments: str) -> None:
        """For a change: progress bars are shown, and a failure ends the program in one sentence."""
        command = [*self.command, "install", *arguments]
        process = subprocess.Popen(command, env=_environment(), stderr=subprocess.PIPE, text=True)
        assert process.stderr
        complaint = ""
        for line in process.stderr:
            sys.stderr.write(line)
            complaint += line
        if process.wait() != 0:
            stop(reason(complaint, process.returncode))


def main() -> None:
    target = sys.argv[1] if len(sys.argv) > 1 else "run"
    if target not in PARTS:
        sys.exit(f"no target {target!r}; there are: {', '.join(PARTS)}")
    parts = PARTS[target]
    stack = os.environ.get("MINIVERL_STACK") or installed_stack()
    if stack and stack not in STACKS:
        stop(f"MINIVERL_STACK={stack}: there is cpu and there is cuda")
    ready = [installed_stack(), "compile"] if target == "compile" else [stack]
    if any(is_complete(parts, each) for each in ready if each):
        return
    refuse_unfit_machine()
    facts = tomllib.loads((ROOT / "containers" / "stack.toml").read_text())
    make_venv()
    pip = Pip([str(VENV / "bin" / "python"), "-m", "pip"])
    if "stack" in parts and not stack:
        say("Asking pip whether it finds torch's CPU build ...")
        stack = choose_stack(pip, facts["cpu"])
    locks = [stack if stack and part == "stack" else part for part in parts]
    missing = [lock for lock in locks if not is_installed(lock)]
    for lock in missing:
        say(sentence(lock, facts[lock]))
        if PYTHON not in facts[lock]["pythons"]:
            stop(
                f"The {lock} lock has no wheels for Python {PYTHON}; "
                f"it has them for {', '.join(facts[lock]['pythons'])}: make setup PYTHON=..."
            )
    for lock in missing:
        install_lock(pip, lock)
    install_project(pip)
    say("Ready: .venv/bin/miniverl")


def choose_stack(pip: Pip, cpu: Mapping[str, object]) -> str:
    """`cpu` where pip, as its user has set it up, finds torch's CPU build; else `cuda`."""
    assert isinstance(cpu["pythons"], list)
    if PYTHON not in cpu["pythons"]:
        locked = ", ".join(cpu["pythons"])
        say(f"torch's CPU build is locked for Python {locked} only; this is {PYTHON}.")
        return "cuda"
    answer = pip.asks("install", "--dry-run", "--no-deps", f"torch=={cpu['torch']}")
    if answer.returncode == 0:
        return "cpu"
    if any(sign in answer.stdout + answer.stderr for sign in UNREACHABLE):
        stop(reason(answer.stderr, answer.returncode))
    return "cuda"


def sentence(lock: str, facts: Mapping[str, object]) -> str:
    """Which part comes now, and how large it is."""
    what = {
        "compile": "the compiler, without torch",
        "cpu": "the CPU build of torch",
        "cuda": "torch with CUDA; for the CPU build let pip see PyTorch's CPU index",
        "test": "what the tests need on top",
        "data": "what generating prompts needs on top; a C compiler is needed",
    }[lock]
    size = f"{facts['packages']} packages, {int(str(facts['download_bytes'])) / 1e6:.0f} MB"
    return f"Installing {lock} into .venv ({what}): {size} to download where nothing is cached."


def reason(complaint: str, code: int) -> str:
    """Why pip stopped, in one sentence, from what it wrote to stderr."""
    if "DO NOT MATCH THE HASHES" in complaint:
        found = re.search(
            r"^ +(\S+?)(?: from .*)?:\n +Expected sha256 +(\w+)(?:.*\n)+? +Got +(\w+)",
            complaint,
            re.MULTILINE,
        )
        which = (
            f"{found[1]}: expected sha256 {found[2]}, found {found[3]}" if found else "see above"
        )
        return f"A file is not the one that the lock names ({which}). It was not installed."
    if any(sign in complaint for sign in UNREACHABLE):
        return "pip cannot reach its package index. The same command goes on once it can."
    if "No space left on device" in complaint:
        return "The disk is full. The same command goes on once there is room."
    missing = re.search(r"No matching distribution found for (\S+)", complaint)
    if missing:
        return (
            f"pip finds no {missing[1]} for this machine; `pip config list` shows where it looks."
        )
    return f"pip stopped with exit code {code}; its own words stand above."


def refuse_unfit_machine() -> None:
    system, machine = platform.system(), platform.machine()
    if (system, machine) != ("Linux", "x86_64"):
        stop(f"miniVERL runs on Linux x86-64 (or WSL2); this is {system} {machine}.")
    libc, version = platform.libc_ver()
    if libc != "glibc" or [int(part) for part in version.split(".")[:2]] < [2, 28]:
        stop(f"torch needs glibc 2.28 or newer; this is {libc or 'another C library'} {version}.")
    if importlib.util.find_spec("ensurepip") is None:
        stop(
            f"This Python cannot make a virtual environment: ensurepip is missing. "
            f"On Debian and Ubuntu: apt install python{PYTHON}-venv"
        )


def make_venv() -> None:
    if INSTALLED.is_dir():
        return
    version = re.search(r"^version *= *(\d+\.\d+)", _read(VENV / "pyvenv.cfg"), re.MULTILINE)
    command = [sys.executable, "-m", "venv", str(VENV)]
    if version and version[1] != PYTHON:
        say(f".venv was made by Python {version[1]}; making it anew for {PYTHON}.")
        command.insert(3, "--clear")
    done = subprocess.run(command, check=False, env=_environment(), capture_output=True, text=True)
    if done.returncode != 0:
        stop(f"Making .venv failed: {(done.stderr or done.stdout).strip().splitlines()[-1]}")
    INSTALLED.mkdir()


def install_lock(pip: Pip, lock: str) -> None:
    """All wheels, then what must be built; what this or another stack's former lock held goes."""
    text = (LOCKS / f"{lock}.txt").read_text()
    former = [lock, *STACKS, "compile"] if lock in STACKS else [lock]
    names = {name for part in former for name in _names(_read(INSTALLED / f"{part}.txt"))}
    if lock in (*STACKS, "compile"):
        # Half a stack must not look like a whole one.
        (VENV / "bin" / "miniverl").unlink(missing_ok=True)
        (INSTALLED / "pyproject.toml").unlink(missing_ok=True)
    for part in former:
        (INSTALLED / f"{part}.txt").unlink(missing_ok=True)
    wheels, _, sources = text.partition(SOURCES)
    _install_pinned(pip, wheels, "--only-binary", ":all:")
    if sources:
        _install_pinned(pip, sources, "--no-build-isolation")
    kept = {name for part in INSTALLED.glob("*.txt") for name in _names(part.read_text())}
    left = sorted(names - kept - set(_names(text)))
    if left:
        pip.asks("uninstall", "--yes", *left)
    _copy_whole(LOCKS / f"{lock}.txt", INSTALLED / f"{lock}.txt")


def install_project(pip: Pip) -> None:
    """Last, and with it the `miniverl` command: a .venv that has it is complete."""
    (INSTALLED / "pyproject.toml").unlink(missing_ok=True)
    pip.installs("--quiet", "--no-deps", "--no-build-isolation", "--editable", str(ROOT))
    _copy_whole(ROOT / "pyproject.toml", INSTALLED / "pyproject.toml")


def installed_stack() -> str | None:
    return next((stack for stack in STACKS if (INSTALLED / f"{stack}.txt").is_file()), None)


def is_complete(parts: Sequence[str], stack: str) -> bool:
    """Whether a call for these parts has nothing to do. A stack holds all of the compile lock."""
    locks = [stack if part in ("stack", "compile") else part for part in parts]
    project = _read(INSTALLED / "pyproject.toml") == (ROOT / "pyproject.toml").read_text()
    return project and all(is_installed(lock) for lock in locks)


def is_installed(lock: str) -> bool:
    return _read(INSTALLED / f"{lock}.txt") == (LOCKS / f"{lock}.txt").read_text()


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def stop(text: str) -> NoReturn:
    say(text)
    sys.exit(CANNOT_HERE)


def _install_pinned(pip: Pip, requirements: str, *options: str) -> None:
    """What is there already is left out: pip would say so in a line for each."""
    listed = json.loads(pip.asks("list", "--format=json").stdout)
    present = {f"{_canonical(each['name'])}=={each['version']}" for each in listed}
    pinned = re.findall(r"^[^#\s](?:.*\\\n)*.*\n", requirements, re.MULTILINE)
    missing = [entry for entry in pinned if entry.split()[0] not in present]
    if missing:
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.writelines(missing)
            file.flush()
            pip.installs("--require-hashes", "--no-deps", *options, "-r", file.name)


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _environment() -> dict[str, str]:
    """The user's own, pip's settings among them, less what would lead pip out of .venv."""
    foreign = {"PYTHONPATH", "PYTHONHOME", "PIP_USER", "PIP_TARGET", "PIP_PREFIX"}
    kept = {name: value for name, value in os.environ.items() if name not in foreign}
    return kept | {"PYTHONNOUSERSITE": "1", "PIP_USER": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def _names(lock: str) -> list[str]:
    return re.findall(r"^([^#\s]+?)==", lock, re.MULTILINE)


def _read(path: Path) -> str:
    return path.read_text() if path.is_file() else ""


def _copy_whole(source: Path, target: Path) -> None:
    partial = target.with_suffix(".partial")
    shutil.copyfile(source, partial)
    partial.replace(target)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        say("\nInterrupted. The same command goes on from here.")
        sys.exit(130)
