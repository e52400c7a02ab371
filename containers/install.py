"""Fills .venv from the hash locks: `python3 containers/install.py [run|compile|test|data|stack|peers]`.

MINIVERL_STACK names the stack, where it is not to be found out; MINIVERL_VENV another folder than
.venv, for a second stack beside the first, or for the peers, which stand alone.

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

import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import tempfile
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parents[1]
LOCKS = ROOT / "containers" / "locks"
VENV = ROOT / (os.environ.get("MINIVERL_VENV") or ".venv")
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
INSTALLED = VENV / f"installed-{PYTHON}"

CUDA = "cu130"  # where the CPU build of torch is not to be had: of the same release
STACKS = tuple(sorted(path.parent.name for path in (ROOT / "containers").glob("*/stack.toml")))
PARTS = {
    "stack": ["stack"],
    "run": ["stack"],
    "compile": ["compile"],
    "test": ["stack", "test"],
    "data": ["stack", "data"],
    "peers": ["peers"],
}
SOURCES = "# Built from source, after everything above is installed:"  # as lock.py writes it
CANNOT_HERE = 3  # the exit code for "this machine cannot"


@dataclass(frozen=True)
class Facts:
    """What locks.toml says of a lock."""

    pythons: list[str]
    packages: int
    download_bytes: int
    torch: str


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
        stop(f"MINIVERL_STACK={stack}: there is no such stack, but {', '.join(STACKS)}")
    if target == "peers" and is_installed("peers"):
        return
    ready = [installed_stack(), "compile"] if target == "compile" else [stack]
    if any(is_complete(parts, each) for each in ready if each):
        return
    refuse_unfit_machine()
    make_venv()
    pip = Pip([str(VENV / "bin" / "python"), "-m", "pip"])
    if "stack" in parts and not stack:
        say("Asking pip whether it finds torch's CPU build ...")
        stack = choose_stack(pip, facts_of("cpu"))
    locks = [stack if stack and part == "stack" else part for part in parts]
    present = present_packages()
    plan = {lock: missing_entries(lock, present) for lock in locks if not is_installed(lock)}
    for lock, entries in plan.items():
        refuse_unlocked_python(lock, facts_of(lock).pythons)
        if any(entries):
            say(sentence(lock, facts_of(lock), sum(map(len, entries))))
    for lock, (wheels, sources) in plan.items():
        install_lock(pip, lock, wheels, sources)
    if target in ("stack", "peers"):  # an image gets the code in a layer of its own, the peers none
        return
    install_project(pip)
    say(f"Ready: {VENV.name}/bin/miniverl")


def choose_stack(pip: Pip, cpu: Facts) -> str:
    """`cpu` where pip, as its user has set it up, finds torch's CPU build; else the CUDA stack."""
    if PYTHON not in cpu.pythons:
        locked = ", ".join(cpu.pythons)
        say(f"torch's CPU build is locked for Python {locked} only; this is {PYTHON}.")
        return CUDA
    answer = pip.asks("install", "--dry-run", "--no-deps", f"torch=={cpu.torch}")
    if answer.returncode == 0:
        return "cpu"
    if is_unreachable(answer.stderr):
        stop(reason(answer.stderr, answer.returncode))
    return CUDA


def sentence(lock: str, facts: Facts, missing: int) -> str:
    """Which part comes now, and how large it is."""
    what = {
        "compile": "the compiler, without torch",
        "test": "what the tests need on top",
        "data": "what generating prompts needs on top; a C compiler is needed",
        "peers": "transformers, TRL and llama.cpp, which a C++ compiler builds in about 20 minutes",
    }
    what |= {stack: _title(stack) for stack in STACKS}
    hint = "; for the CPU build let pip see PyTorch's CPU index" if lock == CUDA else ""
    megabytes = f"{facts.download_bytes / 1e6:.0f} MB where nothing is cached"
    size = f"{missing} packages, {megabytes}"
    if missing < facts.packages:
        size = f"{missing} of its {facts.packages} packages, which together are {megabytes}"
    return f"Installing {lock} into {VENV.name} ({what[lock]}{hint}): {size}."


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
    if is_unreachable(complaint):
        return "pip cannot reach its package index. The same command goes on once it can."
    if "No space left on device" in complaint:
        return "The disk is full. The same command goes on once there is room."
    missing = re.search(r"No matching distribution found for (\S+)", complaint)
    if missing:
        return (
            f"pip finds no {missing[1]} for this machine; `pip config list` shows where it looks."
        )
    return f"pip stopped with exit code {code}; its own words stand above."


def is_unreachable(complaint: str) -> bool:
    """Whether pip gave up on the network. A retry alone may have been followed by a success."""
    lines = complaint.splitlines()
    errors = "\n".join(line for line in lines if not line.startswith("WARNING: Retrying"))
    nothing_found = "WARNING: Retrying" in complaint and "No matching distribution" in errors
    return nothing_found or any(
        sign in errors for sign in ("Max retries exceeded", "Read timed out")
    )


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


def refuse_unlocked_python(lock: str, pythons: Sequence[str]) -> None:
    if PYTHON not in pythons:
        stop(
            f"The {lock} lock has no wheels for Python {PYTHON}, "
            f"but for {', '.join(pythons)}: rm -r {VENV.name}; "
            f"make setup PYTHON=python{pythons[0]}"
        )


def make_venv() -> None:
    if INSTALLED.is_dir():
        return
    version = re.search(r"^version *= *(\d+\.\d+)", _read(VENV / "pyvenv.cfg"), re.MULTILINE)
    command = [sys.executable, "-m", "venv", str(VENV)]
    if version and version[1] != PYTHON:
        say(f"{VENV.name} was made by Python {version[1]}; making it anew for {PYTHON}.")
        command.insert(3, "--clear")
    done = subprocess.run(command, check=False, env=_environment(), capture_output=True, text=True)
    if done.returncode != 0:
        stop(f"Making {VENV.name} failed: {(done.stderr or done.stdout).strip().splitlines()[-1]}")
    INSTALLED.mkdir()


def present_packages() -> set[str]:
    """`name==version` of what is whole in .venv: pip writes INSTALLER after a package's files."""
    site = VENV / "lib" / f"python{PYTHON}" / "site-packages"
    found = importlib.metadata.distributions(path=[str(site)])
    return {f"{_canonical(d.name)}=={d.version}" for d in found if d.read_text("INSTALLER")}


def missing_entries(lock: str, present: set[str]) -> tuple[list[str], list[str]]:
    """The lock's wheels and its source packages, less what is there: pip would list all that."""
    wheels, _, sources = (LOCKS / f"{lock}.txt").read_text().partition(SOURCES)
    split = (
        re.findall(r"^[^#\s](?:.*\\\n)*.*\n", text, re.MULTILINE) for text in (wheels, sources)
    )
    of_wheels, of_sources = ([e for e in part if e.split()[0] not in present] for part in split)
    return of_wheels, of_sources


def install_lock(pip: Pip, lock: str, wheels: Sequence[str], sources: Sequence[str]) -> None:
    """All wheels, then what must be built; what this or another stack's former lock held goes."""
    former = [lock, *STACKS, "compile"] if lock in STACKS else [lock]
    held = {name for part in former for name in _names(_read(INSTALLED / f"{part}.txt"))}
    if lock in (*STACKS, "compile"):
        # Half a stack must not look like a whole one.
        (VENV / "bin" / "miniverl").unlink(missing_ok=True)
        (INSTALLED / "pyproject.toml").unlink(missing_ok=True)
    for part in former:
        (INSTALLED / f"{part}.txt").unlink(missing_ok=True)
    _install_entries(pip, wheels, "--only-binary", ":all:")
    _install_entries(pip, sources, "--no-build-isolation", "--use-pep517")
    wanted = [LOCKS / f"{lock}.txt", *INSTALLED.glob("*.txt")]
    left = held - {name for file in wanted for name in _names(file.read_text())}
    if left:
        pip.asks("uninstall", "--yes", *sorted(left))
    _copy_whole(LOCKS / f"{lock}.txt", INSTALLED / f"{lock}.txt")


def install_project(pip: Pip) -> None:
    """Last, and with it the `miniverl` command: a .venv that has it is complete."""
    (INSTALLED / "pyproject.toml").unlink(missing_ok=True)
    pip.installs("--quiet", "--no-deps", "--no-build-isolation", "--editable", str(ROOT))
    _copy_whole(ROOT / "pyproject.toml", INSTALLED / "pyproject.toml")


def facts_of(lock: str) -> Facts:
    entry = tomllib.loads((ROOT / "containers" / "locks.toml").read_text())[lock]
    sizes = (entry["packages"], entry["download_bytes"])
    return Facts(entry["pythons"], *sizes, entry.get("torch", ""))


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


def _install_entries(pip: Pip, entries: Sequence[str], *options: str) -> None:
    if entries:
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.writelines(entries)
            file.flush()
            # Forced: a package that was broken off half-way counts as installed for pip.
            forced = ("--force-reinstall", "--require-hashes", "--no-deps")
            pip.installs(*forced, *options, "-r", file.name)


def _title(stack: str) -> str:
    stated = tomllib.loads((ROOT / "containers" / stack / "stack.toml").read_text())
    return str(stated["title"])


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
