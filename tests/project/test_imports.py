"""Who may import whom, and what a command may load before it does any work."""

import ast
import importlib.metadata
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
HEAVY = {"torch", "transformers", "peft", "bitsandbytes", "pyarrow", "numpy", "dvc"}
# What of the engine the compiler and the bench may know: torch-free, and small.
OPEN = {
    f"miniverl.engine.{name}"
    for name in (
        "algorithm",
        "digest",
        "events",
        "footprint",
        "problem",
        "recipe",
        "strict",
        "typed",
    )
}


def loaded(program: str) -> set[str]:
    """The top-level modules that a program has loaded by its end, in a fresh process."""
    code = f"{program}\nprint('loaded', *{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{code}"], check=True, capture_output=True, text=True
    )
    return set(done.stdout.splitlines()[-1].split()[1:])


def command(*arguments: str) -> str:
    """A program that runs `miniverl` with these arguments and goes on."""
    run = "runpy.run_module('miniverl.bench', run_name='__main__')"
    call = f"import runpy\nsys.argv = ['miniverl', *{arguments!r}]\n"
    return f"{call}try:\n    {run}\nexcept SystemExit:\n    pass"


def imports(file: Path) -> set[str]:
    """Every module that a file imports; of `from a import b` both `a` and `a.b`."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def test_import_contracts_hold() -> None:
    lint = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run(
        [lint, "--no-logo"], check=False, cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout


def test_only_the_worker_reaches_into_the_engine() -> None:
    inside = {f"miniverl.engine.{file.stem}" for file in (ROOT / "engine").glob("*.py")} - OPEN
    files = [file for top in ("bench", "compiler") for file in (ROOT / top).rglob("*.py")]
    reaching = {file.relative_to(ROOT).as_posix() for file in files if imports(file) & inside}
    # What is timed beside the peers runs in processes of its own, too.
    timed = {f"bench/peers/{file.name}" for file in (ROOT / "bench/peers").glob("ours_*.py")}
    assert reaching == {"bench/worker.py", *timed}


def test_the_command_line_loads_none_of_what_training_or_composing_needs() -> None:
    assert not loaded("import miniverl.bench.cli") & (HEAVY | {"hydra", "omegaconf", "jsonschema"})


@pytest.mark.parametrize("arguments", [("--help",), ("bench", "--help"), ("compile", "--help")])
def test_help_loads_little(arguments: tuple[str, ...]) -> None:
    assert not loaded(command(*arguments)) & (HEAVY | {"hydra", "omegaconf", "jsonschema"})


def test_the_compiler_loads_no_torch() -> None:
    modules = sorted((ROOT / "compiler").rglob("*.py"))
    names = [".".join(file.relative_to(ROOT).with_suffix("").parts) for file in modules]
    imports = [f"import miniverl.{name.removesuffix('.__init__')}" for name in names]
    assert not loaded("\n".join(imports)) & HEAVY


@pytest.mark.parametrize("top", ["bench", "compiler", "engine"])
def test_what_is_imported_is_asked_for_in_pyproject(top: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    groups = project["dependency-groups"]
    asked = project["project"]["dependencies"] + groups["data"] + groups["peers"]
    asked += [name for extra in extras.values() for name in extra]
    names = {canonicalize_name(Requirement(text).name) for text in asked}
    # What is not installed here, such as the data group's packages, has the module's name, with one exception.
    provided = {"llama_cpp": ["llama-cpp-python"], **importlib.metadata.packages_distributions()}
    modules = {
        name.partition(".")[0] for file in (ROOT / top).rglob("*.py") for name in imports(file)
    }
    for module in modules - sys.stdlib_module_names - {"miniverl"}:
        distributions = provided.get(module, [module])
        assert names & {canonicalize_name(re.split(r"[ ;]", name)[0]) for name in distributions}, (
            module
        )
