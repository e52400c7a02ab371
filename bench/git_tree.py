"""The files of a git commit, verified by its tree: git's own hash over names, modes and bytes, computed here again."""

import hashlib
import os
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

from miniverl.bench.cache import MANIFEST, wrong_digest
from miniverl.bench.pin import GitPin
from miniverl.compiler.upstream import Progress
from miniverl.engine.problem import CannotHere, Problem


def fill(pin: GitPin, folder: Path, progress: Progress) -> None:
    """Write the commit's files: fetched alone, without history; mirrors are asked in turn. Raises CannotHere."""
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".git-") as scratch:
        repository = Path(scratch) / "repository"
        _git("init", "--quiet", "--bare", str(repository))
        _fetch(pin, repository)
        archive = Path(scratch) / "tree.tar"
        _git("-C", str(repository), "archive", "--output", str(archive), pin.commit)
        with tarfile.open(archive) as files:
            files.extractall(folder, filter="data")
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    progress(pin.title, size, size)


def wrong_content(pin: GitPin, folder: Path) -> list[Problem]:
    """Whether the folder's tree is another one. Every byte and name is in its hash."""
    found = tree_sha1(folder, pin.submodules)
    return [] if found == pin.tree else [wrong_digest(folder, pin.tree, found)]


def tree_sha1(folder: Path, submodules: Mapping[str, str], inside: str = "") -> str:
    """As `git rev-parse COMMIT^{tree}` says it of a commit with these files; a submodule is an empty folder."""
    entries = []
    for path in folder.iterdir():
        if path.name == MANIFEST:
            continue
        if path.is_symlink():
            mode, sha1 = b"120000", _object("blob", os.fsencode(path.readlink()))
        elif inside + path.name in submodules:
            mode, sha1 = b"160000", submodules[inside + path.name]
        elif path.is_dir():
            mode, sha1 = b"40000", tree_sha1(path, submodules, f"{inside}{path.name}/")
        else:
            mode = b"100755" if path.stat().st_mode & 0o100 else b"100644"
            sha1 = _object("blob", path.read_bytes())
        name = os.fsencode(path.name)
        order = (
            name + b"/" if mode in (b"40000", b"160000") else name
        )  # git sorts folders as if so written
        entries.append((order, mode + b" " + name + b"\0" + bytes.fromhex(sha1)))
    return _object("tree", b"".join(entry for _, entry in sorted(entries)))


def _object(kind: str, content: bytes) -> str:
    header = f"{kind} {len(content)}\0".encode()
    return hashlib.sha1(header + content, usedforsecurity=False).hexdigest()


def _fetch(pin: GitPin, repository: Path) -> None:
    problems = []
    for source in (pin.repository, *pin.mirrors):
        try:
            _git("-C", str(repository), "fetch", "--quiet", "--depth", "1", source, pin.commit)
        except subprocess.CalledProcessError as error:
            problems.append(_refusal(pin, source, error.stderr))
        else:
            return
    raise CannotHere(problems)


def _git(*arguments: str) -> None:
    quiet = {"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    try:
        subprocess.run(
            ["git", *arguments], check=True, capture_output=True, text=True, env=os.environ | quiet
        )
    except FileNotFoundError as error:
        reason, fix = "git is not installed", "Install git"
        problem = Problem(field="git", value=None, origin="PATH", reason=reason, fix=fix)
        raise CannotHere([problem]) from error


def _refusal(pin: GitPin, source: str, said: str) -> Problem:
    lines = said.strip().splitlines() or ["nothing"]
    return Problem(
        field=pin.title,
        value=pin.commit,
        origin=source,
        reason=f"git cannot fetch it: {lines[-1]}",
        fix="Connect to the network and fetch again, or add a mirror to the pin",
    )
