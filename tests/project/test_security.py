"""What docs/security.md says, held against the code; and that each test that it names is there."""

import ast
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from miniverl.bench import run_page
from miniverl.bench.runner import Outcome

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "security.md"
SOURCES = sorted(
    path for top in ("engine", "compiler", "bench") for path in (ROOT / top).rglob("*.py")
)
PICKLING = {"cloudpickle", "dill", "joblib", "marshal", "pickle", "shelve"}
REACHING = {
    "aiohttp",
    "ftplib",
    "http",
    "httpx",
    "httpx2",
    "huggingface_hub",
    "requests",
    "socket",
    "urllib",
}
MODEL_LOADERS = {"from_pretrained", "from_config"}
# The one place that runs text: a reward function whose digest the call has stated.
TRUSTED = {"engine/reward_function.py": ["compile", "exec"]}


def calls(path: Path) -> Iterator[tuple[str, ast.Call]]:
    """Every call in the file, with the name that is called, dots and all."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def imported(path: Path) -> set[str]:
    """Top-level names of all imports, also of those inside functions."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names.add(node.module.partition(".")[0])
    return names


def where(path: Path, node: ast.Call) -> str:
    return f"{path.relative_to(ROOT)}:{node.lineno}"


def test_nothing_is_unpickled() -> None:
    assert [str(path) for path in SOURCES if imported(path) & PICKLING] == []
    loads = [
        where(path, call)
        for path in SOURCES
        for name, call in calls(path)
        if name in ("torch.load", "np.load", "numpy.load")
    ]
    assert loads == []


def test_no_model_brings_code() -> None:
    """PEFT's own loader takes an adapter, which has no code, and knows no such argument."""
    found = 0
    for path in SOURCES:
        for name, call in calls(path):
            if name.rpartition(".")[2] in MODEL_LOADERS and not name.startswith("Peft"):
                found += 1
                stated = {each.arg: each.value for each in call.keywords}
                said = stated.get("trust_remote_code")
                assert isinstance(said, ast.Constant), where(path, call)
                assert said.value is False, where(path, call)
    assert found >= 2


def test_no_shell_and_no_evaluated_text() -> None:
    for path in SOURCES:
        run: list[str] = []
        for name, call in calls(path):
            assert name not in ("os.system", "os.popen", "subprocess.getoutput"), where(path, call)
            assert not any(each.arg == "shell" for each in call.keywords), where(path, call)
            if name in ("eval", "exec", "compile", "__import__"):
                run.append(name)
        assert sorted(run) == TRUSTED.get(str(path.relative_to(ROOT)), []), path


def test_only_fetching_can_reach_the_network() -> None:
    reaching = {str(path.relative_to(ROOT)) for path in SOURCES if imported(path) & REACHING}
    assert reaching <= {"bench/hub.py", "bench/privacy.py"}  # the latter asks for this host's name
    assert "urlopen" not in (ROOT / "bench" / "privacy.py").read_text("utf-8")


WATCH = """
import os, sys

def watch(event, arguments):
    if event in ("socket.getaddrinfo", "socket.gethostbyname") or (
        event == "socket.connect" and not isinstance(arguments[1], (str, bytes))
    ):
        os.write(2, f"reached for the network: {event} {arguments[1:]}\\n".encode())
        os._exit(99)

sys.addaudithook(watch)
"""


def test_a_run_reaches_for_no_network(tmp_path: Path) -> None:
    """Compiled and run in processes that end where they name an address: the tiny workload, once fetched."""
    (tmp_path / "sitecustomize.py").write_text(WATCH)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""}
    recipe, out = tmp_path / "recipe.json", tmp_path / "run"
    steps = ["trainer.total_training_steps=1"]
    for arguments in (
        ["compile", "workload:tiny-grpo", *steps, "-o", str(recipe)],
        ["run", str(recipe), "--out", str(out), "--device", "cpu"],
    ):
        command = [sys.executable, "-m", "miniverl.bench", *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "reached for" not in done.stderr
    assert (out / "adapter").is_dir()


def test_the_watch_of_that_test_sees(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(WATCH)
    program = "import socket\nsocket.create_connection(('127.0.0.1', 9))"
    done = subprocess.run(
        [sys.executable, "-P", "-c", program],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        check=False,
        capture_output=True,
    )
    assert done.returncode == 99


def test_what_a_model_wrote_is_no_html(tmp_path: Path) -> None:
    (tmp_path / "recipe.json").write_bytes(
        (ROOT / "tests" / "data" / "example_recipe.json").read_bytes()
    )
    row = textwrap.dedent(
        """\
        {"advantages":[0.0],"finished":true,"prompt_id":0,"prompt_tokens":[1],
        "response":"<script>alert(1)</script>","response_tokens":[1],"reward":0.0,"sample":0,"step":1,"values":null}
        """
    ).replace("\n", "")
    (tmp_path / "trajectories.jsonl").write_text(row + "\n")
    run_page.leave(tmp_path, Outcome(status="finished"), print)
    page = (tmp_path / "report.html").read_text("utf-8")
    assert "&lt;script&gt;alert(1)" in page
    assert page.count("<script>") == 1  # the page's own, named by digest in its policy


def test_each_line_of_the_page_names_tests_that_are_there() -> None:
    rows = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| ")]
    assert len(rows) >= 15
    for row in rows[1:]:
        named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row)
        assert named, row
        for path, test in named:
            assert f"def {test}(" in (ROOT / path).read_text("utf-8"), (path, test)
