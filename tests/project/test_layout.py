"""The wheel and the source archive hold what the tree holds, in files that can be read.

An editable install sees every file of the tree; a wheel has only what pyproject.toml lists. What is
missing there would be noticed by users first.
"""

import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOPS = ("bench", "compiler", "engine")
MOST_LINES = 400


def tree() -> set[str]:
    """Every file of the packages, as a path below `miniverl/`."""
    files = (path for top in TOPS for path in (ROOT / top).rglob("*") if path.is_file())
    kept = (file for file in files if "__pycache__" not in file.parts)
    return {file.relative_to(ROOT).as_posix() for file in kept}


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Wheel and source archive, built from a copy: setuptools writes into the tree it builds."""
    copy = tmp_path_factory.mktemp("build")
    for top in TOPS:
        shutil.copytree(ROOT / top, copy / top, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copyfile(ROOT / name, copy / name)
    build = "from setuptools.build_meta import build_sdist, build_wheel; "
    build += "build_wheel('dist'); build_sdist('dist')"
    subprocess.run([sys.executable, "-c", build], cwd=copy, check=True, capture_output=True)
    (wheel,), (source,) = (copy / "dist").glob("*.whl"), (copy / "dist").glob("*.tar.gz")
    return wheel, source


def test_every_package_is_listed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    inits = [init for top in TOPS for init in (ROOT / top).rglob("__init__.py")]
    found = {".".join(("miniverl", *init.parent.relative_to(ROOT).parts)) for init in inits}
    assert set(project["tool"]["setuptools"]["packages"]) == found


def test_the_wheel_holds_what_the_tree_holds(archives: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(archives[0]) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert names == {f"miniverl/{name}" for name in tree()}


def test_the_source_archive_holds_what_the_tree_holds(archives: tuple[Path, Path]) -> None:
    with tarfile.open(archives[1]) as source:
        names = {Path(*Path(name).parts[1:]).as_posix() for name in source.getnames()}
    assert tree() <= names


def test_no_file_is_longer_than_can_be_read_at_once() -> None:
    folders = (*TOPS, "tests", "containers")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    long = {path.name for path in files if len(path.read_text("utf-8").splitlines()) > MOST_LINES}
    assert long == set()


def test_each_package_is_marked_as_typed() -> None:
    assert {f"{top}/py.typed" for top in TOPS} <= tree()
