"""The hash locks agree with pyproject.toml, with each other, and name no place to fetch from."""

import hashlib
import importlib.util
import re
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
CONTAINERS = ROOT / "containers"
LOCKS = ("compile", "cpu", "cuda", "test", "data")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
STACK = tomllib.loads((CONTAINERS / "stack.toml").read_text())


def entries(lock: str) -> dict[str, str]:
    """Name to its whole entry: version and digests."""
    text = (CONTAINERS / "locks" / f"{lock}.txt").read_text()
    found = re.findall(r"^(\S+?)(==(?:.*\\\n)*.*)$", text, re.MULTILINE)
    assert len(found) == text.count("==")
    return dict(found)


def version(entry: str) -> str:
    return entry.split()[0].removeprefix("==")


def required(lock: str) -> list[str]:
    """What pyproject.toml asks of this lock."""
    core = PROJECT["project"]["dependencies"] + PROJECT["build-system"]["requires"]
    run = core + PROJECT["project"]["optional-dependencies"]["run"]
    groups = PROJECT["dependency-groups"]
    asked: dict[str, list[str]] = {"compile": core, "cpu": run, "cuda": run}
    return asked[lock] if lock in asked else groups[lock]


def lock_module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("lock", CONTAINERS / "lock.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_locks_are_those_that_this_pyproject_was_resolved_to() -> None:
    again = "pyproject.toml has changed since `make lock`"
    assert STACK["requirements_sha256"] == lock_module().requirements_sha256(PROJECT), again


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_is_as_it_was_written(lock: str) -> None:
    text = (CONTAINERS / "locks" / f"{lock}.txt").read_bytes()
    assert STACK[lock]["lock_sha256"] == hashlib.sha256(text).hexdigest()
    assert STACK[lock]["packages"] == len(entries(lock))


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_meets_what_pyproject_asks_for(lock: str) -> None:
    # A group's lock holds what it adds to the stack.
    locked = entries("cuda") | entries(lock) if lock in ("test", "data") else entries(lock)
    for requirement in map(Requirement, required(lock)):
        assert requirement.specifier.contains(version(locked[canonicalize_name(requirement.name)]))


@pytest.mark.parametrize("lock", LOCKS)
def test_every_package_is_pinned_by_sha256_and_nothing_else(lock: str) -> None:
    for name, entry in entries(lock).items():
        assert re.fullmatch(r"==[^\s;@]+( \\\n    --hash=sha256:[0-9a-f]{64})+", entry), name


def test_the_stacks_differ_in_torch_and_in_what_its_cuda_build_needs() -> None:
    cpu, cuda = entries("cpu"), entries("cuda")
    assert cpu.keys() <= cuda.keys()
    only_cuda = cuda.keys() - cpu.keys()
    assert {"triton", "nvidia-cublas", "cuda-bindings"} <= only_cuda
    assert all(re.match(r"nvidia-|cuda-|triton$", name) for name in only_cuda)
    assert {name for name in cpu if cpu[name] != cuda[name]} == {"torch"}


def test_torch_has_one_digest_in_the_cpu_lock() -> None:
    # With two, pip takes PyPI's CUDA build, which does not import without its nvidia packages.
    torch = entries("cpu")["torch"]
    assert version(torch) == version(entries("cuda")["torch"]) + "+cpu"
    assert torch.count("sha256:") == 1


@pytest.mark.parametrize("stack", ["cpu", "cuda"])
def test_a_stack_holds_all_of_the_compile_lock(stack: str) -> None:
    assert entries("compile").items() <= entries(stack).items()
    assert "torch" not in entries("compile")


def test_a_group_adds_to_a_stack_and_changes_nothing_in_it() -> None:
    test, data, cuda = entries("test"), entries("data"), entries("cuda")
    assert not (test.keys() | data.keys()) & cuda.keys()
    assert all(test[name] == data[name] for name in test.keys() & data.keys())


@pytest.mark.parametrize(
    ("lock", "built"),
    [
        ("compile", ["antlr4-python3-runtime"]),
        ("cpu", ["antlr4-python3-runtime"]),
        ("cuda", ["antlr4-python3-runtime"]),
        ("test", []),
        ("data", ["cellpylib", "pycosat", "zss"]),
    ],
)
def test_what_has_no_wheel_stands_last(lock: str, built: list[str]) -> None:
    text = (CONTAINERS / "locks" / f"{lock}.txt").read_text()
    _, _, sources = text.partition(lock_module().SOURCES)
    assert re.findall(r"^(\S+)==", sources, re.MULTILINE) == built


def test_no_file_says_where_packages_come_from() -> None:
    files = [ROOT / "Makefile", ROOT / ".ci" / "run", ROOT / "pyproject.toml", ROOT / "dvc.yaml"]
    files += [CONTAINERS / "stack.toml", *sorted((CONTAINERS / "locks").iterdir())]
    files += [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    address = re.compile(r"pypi\.\w|pythonhosted|\bwhl/|index-url|find-links|file://|/simple\b")
    found = [f"{file.name}: {m[0]}" for file in files for m in address.finditer(file.read_text())]
    assert found == []
