"""containers/install.py in a tree of its own, with a pip that notes what it is asked for."""

import json
import os
import shutil
import subprocess
import sys
import tomllib
import venv
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
CANNOT_HERE = 3
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"

# What pip writes to stderr.
NO_SUCH = "ERROR: No matching distribution found for torch==2.13.0+cpu"
NO_NETWORK = """WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError'
ERROR: No matching distribution found for torch==2.13.0+cpu"""
WRONG_HASH = """ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.
    click==8.5.1 from somewhere/click-8.5.1-py3-none-any.whl (from -r wheels.txt (line 1)):
        Expected sha256 aaaa
        Expected     or cccc
             Got        bbbb"""

# Stands where .venv's pip would: notes its arguments, and each requirement file's packages.
PIP = """
import json, os, re, sys
verb, arguments = sys.argv[1], sys.argv[2:]
text = open(arguments[-1]).read() if "-r" in arguments else ""
packages = re.findall(r"^(\\S+)==", text, re.MULTILINE)
with open(os.environ["CALLS"], "a") as calls:
    calls.write(json.dumps({"verb": verb, "arguments": arguments, "packages": packages}) + "\\n")
if "--dry-run" in arguments:
    sys.exit(os.environ["NOT_FOUND"] or 0)
if os.environ["BREAKS"] in packages:
    sys.exit(os.environ["COMPLAINT"])
if "--editable" in arguments:
    open(os.path.join(os.path.dirname(sys.executable), "miniverl"), "w").close()
"""


class Tree:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.calls = root / "calls"
        self.site = root / ".venv" / "lib" / f"python{PYTHON}" / "site-packages"

    def install(
        self,
        target: str,
        *,
        not_found: str = "",
        breaks: str = "no",
        complaint: str = "",
        stack: str = "",
        venv: str = "",
    ) -> subprocess.CompletedProcess[str]:
        self.calls.write_text("")
        pip = {"CALLS": str(self.calls), "NOT_FOUND": not_found}
        pip |= {"BREAKS": breaks, "COMPLAINT": complaint}
        return subprocess.run(
            [sys.executable, str(self.root / "containers" / "install.py"), target],
            check=False,
            env=os.environ | pip | {"MINIVERL_STACK": stack, "MINIVERL_VENV": venv},
            capture_output=True,
            text=True,
        )

    def asked(self, verb: str) -> list[dict[str, Any]]:
        calls = [json.loads(line) for line in self.calls.read_text().splitlines()]
        return [call for call in calls if call["verb"] == verb]

    def installed(self) -> set[str]:
        return {name for call in self.asked("install") for name in call["packages"]}

    def plant(self, name: str, version: str, *, is_whole: bool) -> None:
        """A package as pip leaves it; one that was broken off lacks INSTALLER."""
        info = self.site / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
        if is_whole:
            (info / "INSTALLER").write_text("pip\n")

    def has_command(self) -> bool:
        return (self.root / ".venv" / "bin" / "miniverl").is_file()


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """A project folder whose .venv is empty but for the stand-in pip."""
    shutil.copytree(ROOT / "containers", tmp_path / "containers")
    shutil.copyfile(ROOT / "pyproject.toml", tmp_path / "pyproject.toml")
    venv.create(tmp_path / ".venv")
    (tmp_path / ".venv" / f"installed-{PYTHON}").mkdir()
    tree = Tree(tmp_path)
    (tree.site / "pip.py").write_text(PIP)
    return tree


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="torch's CPU build is locked for 3.11")
def test_where_pip_finds_the_cpu_build_the_cpu_lock_is_installed(tree: Tree) -> None:
    assert tree.install("run").returncode == 0
    assert "torch" in tree.installed()
    assert "triton" not in tree.installed()


def test_where_pip_does_not_find_the_cpu_build_the_cuda_lock_is_installed(tree: Tree) -> None:
    done = tree.install("run", not_found=NO_SUCH)
    assert done.returncode == 0
    assert {"torch", "triton", "nvidia-cublas"} <= tree.installed()
    assert "Installing cu130" in done.stderr


def test_the_size_is_said_before_anything_is_installed(tree: Tree) -> None:
    done = tree.install("run", stack="cu130", breaks="torch", complaint="stopped at the first file")
    facts = tomllib.loads((tree.root / "containers" / "locks.toml").read_text())["cu130"]
    before, _, _ = done.stderr.partition("stopped at the first file")
    assert f"{facts['download_bytes'] / 1e6:.0f} MB where nothing is cached" in before


def test_a_second_call_asks_pip_nothing(tree: Tree) -> None:
    tree.install("test", stack="cu130")
    assert tree.has_command()
    for target in ("test", "run", "compile"):
        assert tree.install(target).returncode == 0
        assert tree.calls.read_text() == ""


def test_wheels_come_before_what_is_built_with_their_setuptools(tree: Tree) -> None:
    tree.install("compile")
    wheels, built, project = tree.asked("install")
    assert "setuptools" in wheels["packages"]
    assert {"--only-binary", "--require-hashes", "--no-deps"} <= set(wheels["arguments"])
    assert built["packages"] == ["antlr4-python3-runtime"]
    assert {"--no-build-isolation", "--require-hashes", "--no-deps"} <= set(built["arguments"])
    assert {"--no-build-isolation", "--no-deps", "--editable"} <= set(project["arguments"])


def test_a_broken_off_install_is_not_taken_for_a_whole_one(tree: Tree) -> None:
    failed = tree.install("run", stack="cu130", breaks="antlr4-python3-runtime", complaint="gone")
    assert failed.returncode == CANNOT_HERE
    assert not tree.has_command()
    assert tree.install("run", stack="cu130").returncode == 0
    assert "torch" in tree.installed()
    assert tree.has_command()


def test_a_failure_on_top_of_a_stack_leaves_the_stack(tree: Tree) -> None:
    tree.install("run", stack="cu130")
    assert tree.install("test", breaks="pytest", complaint="gone").returncode == CANNOT_HERE
    assert tree.install("run").returncode == 0
    assert tree.calls.read_text() == ""
    assert tree.has_command()


def test_a_changed_lock_is_installed_and_what_it_dropped_is_removed(tree: Tree) -> None:
    tree.install("test", stack="cu130")
    lock = tree.root / "containers" / "locks" / "test.txt"
    lock.write_text(lock.read_text().replace("zipp==", "unzip=="))
    tree.install("test")
    assert "unzip" in tree.installed()
    assert "torch" not in tree.installed()
    assert [call["arguments"] for call in tree.asked("uninstall")] == [["--yes", "zipp"]]


def test_only_what_is_missing_is_installed(tree: Tree) -> None:
    tree.plant("click", "8.5.1", is_whole=True)
    tree.plant("rich", "1.0.0", is_whole=True)
    tree.plant("attrs", "26.1.0", is_whole=False)
    done = tree.install("compile")
    assert "click" not in tree.installed()
    assert {"rich", "attrs"} <= tree.installed()
    packages = len(tree.installed())
    assert f"{packages} of its {packages + 1} packages" in done.stderr


def test_another_stack_takes_the_place_of_the_first(tree: Tree) -> None:
    tree.install("run", stack="cu130")
    tree.install("compile", stack="cpu")
    assert tree.calls.read_text() == ""
    facts = tree.root / "containers" / "locks.toml"
    facts.write_text(facts.read_text().replace('pythons = ["3.11"]', f'pythons = ["{PYTHON}"]'))
    tree.install("run", stack="cpu")
    (removed,) = tree.asked("uninstall")
    assert {"triton", "nvidia-cublas"} <= set(removed["arguments"])
    assert "torch" not in removed["arguments"]


def test_a_changed_pyproject_installs_the_project_again(tree: Tree) -> None:
    tree.install("run", stack="cu130")
    with (tree.root / "pyproject.toml").open("a") as file:
        file.write("# another line\n")
    tree.install("run")
    assert tree.installed() == set()
    assert [call["arguments"][-1] for call in tree.asked("install")] == [str(tree.root)]


@pytest.mark.parametrize(
    ("complaint", "sentence"),
    [
        (NO_NETWORK, "pip cannot reach its package index."),
        (WRONG_HASH, "click==8.5.1: expected sha256 aaaa, found bbbb"),
        (NO_SUCH, "pip finds no torch==2.13.0+cpu for this machine"),
        ("OSError: [Errno 28] No space left on device", "The disk is full."),
        ("anything else", "pip stopped with exit code 1"),
    ],
)
def test_a_failure_ends_in_one_sentence(tree: Tree, complaint: str, sentence: str) -> None:
    done = tree.install("compile", breaks="click", complaint=complaint)
    assert done.returncode == CANNOT_HERE
    assert sentence in done.stderr.splitlines()[-1]


def test_without_network_no_stack_is_chosen(tree: Tree) -> None:
    done = tree.install("run", not_found=NO_NETWORK)
    assert done.returncode == CANNOT_HERE
    assert done.stderr.splitlines()[-1].startswith("pip cannot reach its package index.")
    assert tree.installed() == set()


def test_a_second_stack_has_a_folder_of_its_own(tree: Tree) -> None:
    tree.install("run", stack="cu130")
    (tree.root / ".venv").rename(tree.root / ".venv-cu126")
    done = tree.install("run", stack="cu130", venv=".venv-cu126")
    assert (done.returncode, tree.calls.read_text()) == (0, "")


def test_an_unknown_stack_is_told_which_there_are(tree: Tree) -> None:
    done = tree.install("run", stack="cuda")
    assert done.returncode == CANNOT_HERE
    assert "there is no such stack, but cpu, cu126, cu128, cu130" in done.stderr
