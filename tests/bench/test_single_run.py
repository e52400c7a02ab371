"""`miniverl run`: what a user may get wrong is told before anything is written, and a run keeps its folder."""

import fcntl
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from miniverl.bench.cli import main
from miniverl.bench.disk import file_sha256
from miniverl.engine import recipe as recipes

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[1] / "data" / "example_recipe.json"
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a recipe, and bindings to a model and rows that hold nothing."""
    shutil.copy(EXAMPLE, tmp_path / "recipe.json")
    (tmp_path / "model").mkdir()
    (tmp_path / "train.parquet").touch()
    bind(tmp_path, {"model": str(tmp_path / "model"), "train": str(tmp_path / "train.parquet")})
    return tmp_path


def bind(place: Path, bindings: Any) -> None:
    (place / "bindings.json").write_text(json.dumps(bindings))


def run(place: Path, *more: str) -> int:
    command = ["run", str(place / "recipe.json"), "--out", str(place / "out"), *more]
    return main([*command, "--device", "cpu", "--threads", "1"])


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("recipe.json", b"\xff\xfe", "is not UTF-8"),
        ("recipe.json", b"[[", "is not JSON"),
        ("bindings.json", b"\xff\xfe", "is not UTF-8"),
        ("bindings.json", b"{", "is not JSON"),
        ("bindings.json", b'{"train": "a", "train": "b"}', "twice the same key: train"),
        ("bindings.json", b"[]", "holds no object"),
        ("bindings.json", b'{"model": 5}', "expected a path"),
    ],
)
def test_a_file_that_cannot_be_read_is_a_wrong_call_that_names_it(
    place: Path, capsys: Capture, name: str, content: bytes, told: str
) -> None:
    (place / name).write_bytes(content)
    assert run(place) == 2
    said = capsys.readouterr().err
    assert told in said
    assert str(place / name) in said
    assert "  fix    " in said
    assert not (place / "out").exists()


def test_what_the_engine_found_is_told_in_full_with_its_exit_code(
    place: Path, capsys: Capture
) -> None:
    assert run(place) == 2
    said = capsys.readouterr().err
    assert said.count("  where  bindings") == 3
    assert said.count("  fix    Give the folder of a whole Hugging Face causal language model") == 3
    page = (place / "out" / "report.html").read_text("utf-8")
    assert ">failed</span>" in page
    assert "Give the folder of a whole Hugging Face causal language model" in page


def test_a_folder_with_a_run_of_another_recipe_is_left_as_it_is(
    place: Path, capsys: Capture
) -> None:
    (place / "out").mkdir()
    other = json.loads(EXAMPLE.read_text("utf-8"))
    other["seeds"]["sampling"] += 1
    (place / "out" / "recipe.json").write_text(json.dumps(other))
    assert run(place) == 2
    assert "holds a run of another recipe already" in capsys.readouterr().err
    assert [path.name for path in (place / "out").iterdir()] == ["recipe.json"]
    assert json.loads((place / "out" / "recipe.json").read_text()) == other


def test_a_folder_that_another_process_runs_in_is_left_as_it_is(
    place: Path, capsys: Capture
) -> None:
    (place / "out").mkdir()
    recipe = recipes.loads(EXAMPLE.read_text("utf-8"), EXAMPLE.name)
    (place / "out" / "recipe.json").write_text(recipes.dumps(recipe))
    (place / "out" / "failure.json").write_text("theirs")
    with (place / "out" / "run.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write("4321")
        lock.flush()
        assert run(place) == 1
        assert run(place, "--resume") == 1
    assert capsys.readouterr().err.count("process 4321 is running in this folder") == 2
    assert (place / "out" / "failure.json").read_text() == "theirs"
    assert not (place / "out" / "bindings.json").exists()


def test_a_run_folder_below_a_file_is_a_wrong_call(place: Path, capsys: Capture) -> None:
    (place / "out").touch()
    command = ["run", str(place / "recipe.json"), "--out", str(place / "out" / "deep")]
    assert main([*command, "--device", "cpu"]) == 2
    assert "cannot be written: Not a directory" in capsys.readouterr().err


@pytest.fixture
def function(place: Path) -> Path:
    """The reward function that the recipe in `place` is about."""
    path = place / "reward.py"
    path.write_text("def compute_score(**given):\n    return 1\n")
    recipe = json.loads(EXAMPLE.read_text("utf-8"))
    wanted = {"sha256": file_sha256(path), "name": "compute_score"}
    recipe["reward"] |= {"scorer": "function", "arguments": {}, "function": wanted}
    (place / "recipe.json").write_text(json.dumps(recipe))
    return path


@pytest.mark.parametrize("trust", [(), ("--trust-reward-code", "0" * 64)])
def test_a_reward_function_runs_only_where_the_call_states_its_digest(
    place: Path, capsys: Capture, function: Path, trust: tuple[str, ...]
) -> None:
    assert run(place, "--reward-function", f"{function}:compute_score", *trust) == 2
    said = capsys.readouterr().err
    assert f"give --trust-reward-code {file_sha256(function)}" in said
    assert not (place / "out").exists()


def test_another_function_than_the_recipes_is_refused(
    place: Path, capsys: Capture, function: Path
) -> None:
    trust = ("--trust-reward-code", file_sha256(function))
    assert run(place, "--reward-function", f"{function}:other", *trust) == 2
    assert "was compiled for the function compute_score" in capsys.readouterr().err


def test_a_trusted_function_is_the_recipes_input(
    place: Path, capsys: Capture, function: Path
) -> None:
    trust = ("--trust-reward-code", file_sha256(function))
    assert run(place, *trust) == 2
    assert "--bind reward_function=PATH" in capsys.readouterr().err
    assert run(place, "--reward-function", f"{function}:compute_score", *trust) == 2
    assert "reward_function" not in capsys.readouterr().err  # the model's folder holds nothing


def test_trust_in_nothing_is_refused(place: Path, capsys: Capture) -> None:
    assert run(place, "--trust-reward-code", "0" * 64) == 2
    assert "the recipe runs no reward function" in capsys.readouterr().err


def test_a_new_run_differs_from_nothing_that_could_be_allowed(place: Path, capsys: Capture) -> None:
    assert run(place, "--allow-changed", "torch") == 2
    assert "a new run has nothing that it could differ from" in capsys.readouterr().err
    assert not (place / "out").exists()
