"""Every command in README and docs is one, and is executed here, or is held for a reason that stands here."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from miniverl.bench.cli import cli, main
from miniverl.bench.pin import ShapePin, pin
from miniverl.bench.workload import workload

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]
# Commands that are read here and not executed: how they begin, and why. Every other one is executed.
HELD = {
    "make": "sets up an environment, trains, builds or reaches for a network; make itself reads it, with -n",
    "miniverl bench": "minutes of training; tests/bench/test_suite.py measures",
    "miniverl peers": "minutes of measuring; tests/bench/test_peers.py asks a contestant and judges",
    "miniverl run recipe.json": "trains a recipe of the reader; tests/bench/test_run_folder.py runs one",
    "miniverl run build/try": "test_the_quickstart_is_what_happens executes it",
    "miniverl run --watch": "follows a run of the reader; tests/bench/test_run_folder.py follows one",
    "miniverl inspect": "looks at a run of the reader; test_the_quickstart_is_what_happens looks at one",
    "miniverl export": "takes a run of the reader; tests/bench/test_export.py exports one",
    "miniverl handoff": "takes a run of the reader; tests/bench/test_handoff.py hands one over",
    "miniverl fetch": "downloads where it has not been fetched; tests/bench/test_fetch.py fetches",
    "miniverl drift": "downloads another release",
    "miniverl compile train.sh": "takes files of the reader; tests/bench/test_cli.py compiles a script",
    "miniverl compile launch.sh": "takes files of the reader; tests/bench/test_cli.py compiles a script",
    "miniverl compile SOURCE": "says what may be given",
    "miniverl compile --config-path DIR": "says what may be given",
    "miniverl compile launch:grpo --bind model=FOLDER": "takes files of the reader; tests/bench/test_cli.py binds some",
    "miniverl compile workload:qwen3": "makes or downloads gigabytes of weights; tests/bench/test_workload.py compiles its small form",
    "miniverl compile ...": "continues a command that stands elsewhere",
    "miniverl compile hydra:ppo_trainer": "test_the_readme_shows_what_its_compile_command_prints executes it",
    "miniverl check RECORD": "says what may be given",
    "miniverl migrate RECORD": "says what may be given",
    "miniverl compare A": "takes records of the reader; tests/bench/test_cli.py compares some",
    "miniverl publish RECORD": "takes a record of the reader; tests/bench/test_publish.py publishes one",
}

ANSWERS_NO = (
    "miniverl compare results/records/cpu/smollm2-grpo-ci",
)  # exit code 1: B takes more memory


def commands() -> Iterator[tuple[str, str]]:
    """Each command in a block of a page, with the page's name; without comments, on one line."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        for line in text.splitlines():
            found = re.match(
                r"    (?:\.venv/bin/)?((?:[A-Z_]+=\S+ )?(?:miniverl|make|python -m) .*)", line
            )
            if found:
                yield (
                    page.name,
                    re.sub(r"\s+", " ", found[1].partition("  #")[0].partition(" # ")[0]).strip(),
                )


COMMANDS = sorted(set(commands()))
EXECUTED = [each for each in COMMANDS if not each[1].startswith((*HELD, "MINIVERL_STACK"))]


def read(command: str) -> list[str]:
    """The words of a command; what it may take besides stands in brackets, and is taken."""
    plain = (
        command.replace("[the same options]", "")
        .replace("...", "")
        .replace("[", " ")
        .replace("]", " ")
    )
    return shlex.split(plain)


@pytest.mark.parametrize(("page", "command"), COMMANDS, ids=lambda value: value[:60])
def test_every_command_of_the_docs_is_one(page: str, command: str) -> None:
    """Its options and the kinds of their values are right; whether its files are there is the reader's matter."""
    words = read(command)
    while re.fullmatch(r"[A-Z_]+=\S*", words[0]):
        words.pop(0)
    if words[0] == "make":
        subprocess.run(["make", "-n", *words[1:]], cwd=ROOT, check=True, capture_output=True)
    elif words[0] == "python":
        assert (
            (ROOT / Path(*words[2].removeprefix("miniverl.").split(".")))
            .with_suffix(".py")
            .is_file()
        )
    else:
        cli.commands[words[1]].make_context(words[1], words[2:])


@pytest.mark.parametrize(("page", "command"), EXECUTED, ids=lambda value: value[:60])
def test_every_command_that_needs_nothing_of_the_reader_does_what_it_says(
    page: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a folder with the checkout's records and test data, a record measured before, and a model's config."""
    for name in ("tests", "results"):
        (tmp_path / name).symlink_to(ROOT / name)
    record = min((ROOT / "results" / "records" / "cpu" / "smollm2-grpo").rglob("*.json"))
    latest = tmp_path / "build/bench/smollm2-grpo/cpu/latest.json"
    latest.parent.mkdir(parents=True)
    shutil.copy(record, latest)
    model = pin("qwen3-0.6b-shape")
    assert isinstance(model, ShapePin)
    (tmp_path / "config.json").write_text(json.dumps(dict(model.config)))
    monkeypatch.chdir(tmp_path)
    assert main(read(command)[1:]) == command.startswith(ANSWERS_NO)


def test_each_reason_to_hold_a_command_is_still_needed() -> None:
    for held in HELD:
        assert any(command.startswith(held) for _, command in COMMANDS), held


def test_the_quickstart_is_what_happens(tmp_path: Path) -> None:
    """Its five commands by hand, as they stand there, in order."""
    shown = [
        command
        for page, command in commands()
        if page == "quickstart.md" and "build/try" in command
    ]
    assert len(shown) == 5
    assert workload("tiny-grpo").num_steps == 8
    for command in shown:
        done = subprocess.run(
            [sys.executable, "-m", "miniverl.bench", *shlex.split(command)[1:]],
            cwd=tmp_path,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
            check=False,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, (command, done.stderr)
    assert "worst" in done.stderr
    assert (tmp_path / "build/try/run/report.html").is_file()
