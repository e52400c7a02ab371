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
MAIN = "cu130"  # its torch is the one that pyproject.toml asks for
CUDA_STACKS = ("cu126", "cu128", MAIN)
STACKS = ("cpu", *CUDA_STACKS)
LOCKS = ("compile", *STACKS, "test", "data", "peers")
MAIN_LOCKS = ("compile", "cpu", MAIN)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
FACTS = tomllib.loads((CONTAINERS / "locks.toml").read_text())


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
    if lock in MAIN_LOCKS:
        return core if lock == "compile" else run
    return (
        [each for each in run if not each.startswith("torch==")] if lock in STACKS else groups[lock]
    )


def lock_module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("lock", CONTAINERS / "lock.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_locks_are_those_that_this_pyproject_was_resolved_to() -> None:
    # Where this fails, pyproject.toml or a stack.toml has changed since `make lock`.
    lock = lock_module()
    assert FACTS["requirements_sha256"] == lock.requirements_sha256(PROJECT, lock.cuda_torches())


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_is_as_it_was_written(lock: str) -> None:
    text = (CONTAINERS / "locks" / f"{lock}.txt").read_bytes()
    assert FACTS[lock]["lock_sha256"] == hashlib.sha256(text).hexdigest()
    assert FACTS[lock]["packages"] == len(entries(lock))


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_meets_what_pyproject_asks_for(lock: str) -> None:
    # A group's lock holds what it adds to the stack.
    locked = entries(MAIN) | entries(lock) if lock in ("test", "data") else entries(lock)
    for requirement in map(Requirement, required(lock)):
        assert requirement.specifier.contains(version(locked[canonicalize_name(requirement.name)]))


@pytest.mark.parametrize("lock", LOCKS)
def test_every_package_is_pinned_by_sha256_and_nothing_else(lock: str) -> None:
    for name, entry in entries(lock).items():
        assert re.fullmatch(r"==[^\s;@]+( \\\n    --hash=sha256:[0-9a-f]{64})+", entry), name


def test_the_stacks_differ_in_torch_and_in_what_its_cuda_build_needs() -> None:
    cpu, cuda = entries("cpu"), entries(MAIN)
    assert cpu.keys() <= cuda.keys()
    only_cuda = cuda.keys() - cpu.keys()
    assert {"triton", "nvidia-cublas", "cuda-bindings"} <= only_cuda
    assert all(re.match(r"nvidia-|cuda-|triton$", name) for name in only_cuda)
    assert {name for name in cpu if cpu[name] != cuda[name]} == {"torch"}


@pytest.mark.parametrize("lock", ["cpu", "peers"])
def test_torch_has_one_digest_where_it_is_the_cpu_build(lock: str) -> None:
    # With two, pip takes PyPI's CUDA build, which does not import without its nvidia packages.
    torch = entries(lock)["torch"]
    assert version(torch) == version(entries(MAIN)["torch"]) + "+cpu"
    assert torch.count("sha256:") == 1


@pytest.mark.parametrize("stack", CUDA_STACKS)
def test_another_torch_changes_only_what_comes_with_torch(stack: str) -> None:
    cpu, other = entries("cpu"), entries(stack)
    assert cpu.keys() <= other.keys()
    assert {name for name in cpu if cpu[name] != other[name]} == {"torch"}
    assert all(re.match(r"nvidia-|cuda-|triton$", name) for name in other.keys() - cpu.keys())


@pytest.mark.parametrize("stack", STACKS)
def test_a_stack_has_the_torch_and_the_cuda_that_its_folder_states(stack: str) -> None:
    stated = tomllib.loads((CONTAINERS / stack / "stack.toml").read_text())
    locked = entries(stack)
    assert version(locked["torch"]) == stated["torch"] == FACTS[stack]["torch"]
    assert stated["python"] in FACTS[stack]["pythons"]
    runtime = [version(e) for name, e in locked.items() if name.startswith("nvidia-cuda-runtime")]
    assert [".".join(each.split(".")[:2]) for each in runtime] == [
        cuda for cuda in [stated.get("cuda")] if cuda
    ]


@pytest.mark.parametrize("stack", STACKS)
def test_a_stack_holds_all_of_the_compile_lock(stack: str) -> None:
    assert entries("compile").items() <= entries(stack).items()
    assert "torch" not in entries("compile")


def test_a_group_adds_to_a_stack_and_changes_nothing_in_it() -> None:
    test, data = entries("test"), entries("data")
    for stack in STACKS:
        assert not (test.keys() | data.keys()) & entries(stack).keys()
    assert all(test[name] == data[name] for name in test.keys() & data.keys())


@pytest.mark.parametrize(
    ("lock", "built"),
    [
        ("compile", ["antlr4-python3-runtime"]),
        ("cpu", ["antlr4-python3-runtime"]),
        *((stack, ["antlr4-python3-runtime"]) for stack in CUDA_STACKS),
        ("test", []),
        ("data", ["cellpylib", "pycosat", "zss"]),
        ("peers", ["llama-cpp-python"]),
    ],
)
def test_what_has_no_wheel_stands_last(lock: str, built: list[str]) -> None:
    text = (CONTAINERS / "locks" / f"{lock}.txt").read_text()
    _, _, sources = text.partition(lock_module().SOURCES)
    assert re.findall(r"^(\S+)==", sources, re.MULTILINE) == built


def test_no_file_says_where_packages_come_from() -> None:
    files = [ROOT / "Makefile", ROOT / ".ci" / "run", ROOT / "pyproject.toml", ROOT / "dvc.yaml"]
    files += [file for file in sorted(CONTAINERS.rglob("*")) if file.suffix != ".pyc"]
    files = [file for file in files if file.is_file()]
    files += [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    address = re.compile(r"pypi\.\w|pythonhosted|\bwhl/|index-url|find-links|file://|/simple\b")
    found = [f"{file.name}: {m[0]}" for file in files for m in address.finditer(file.read_text())]
    assert found == []
