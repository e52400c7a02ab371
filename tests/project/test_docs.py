"""The documentation points at what is there."""

import re
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import yaml

from miniverl.bench import workload
from miniverl.bench.cli import cli

ROOT = Path(__file__).parents[2]
HOW_TO = ROOT / "docs" / "add-an-algorithm.md"
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]


def test_the_how_to_names_files_and_names_that_exist():
    text = HOW_TO.read_text(encoding="utf-8")
    named = re.findall(r"`(\w+)` in `([\w./]+)`", text)
    assert len(named) >= 10
    for name, path in named:
        assert re.search(rf"\b{name}\b", (ROOT / path).read_text(encoding="utf-8")), (name, path)
    for path in re.findall(r"`(\w+/[\w/]+\.(?:py|md))`", text):
        assert (ROOT / path).is_file(), path


def test_the_code_that_the_how_to_shows_is_the_code():
    shown = re.findall(r"```python\n(.*?)```", HOW_TO.read_text(encoding="utf-8"), re.DOTALL)
    code = "\n".join(
        (ROOT / path).read_text(encoding="utf-8")
        for path in (
            "engine/group_advantage.py",
            "engine/advantage.py",
            "compiler/rules/algorithm.py",
        )
    )
    assert len(shown) == 4
    for block in shown[:3]:
        assert block in code


@pytest.mark.parametrize("page", sorted(ROOT.glob("docs/*.md")), ids=lambda page: page.name)
def test_every_page_is_linked_from_the_readme_or_another_page(page):
    others = [ROOT / "README.md", *(set(ROOT.glob("docs/*.md")) - {page})]
    assert any(page.name in other.read_text(encoding="utf-8") for other in others)


def test_the_readme_shows_what_its_compile_command_prints() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    _, _, behind = text.partition("    .venv/bin/miniverl compile ")
    command, _, shown = behind.partition("\n\n")
    arguments = shlex.split(command.replace("\\\n", " "))
    done = subprocess.run(
        [sys.executable, "-m", "miniverl.bench", "compile", *arguments],
        capture_output=True,
        text=True,
        check=True,
    )
    printed = [line.rstrip() for line in done.stderr.splitlines()]
    assert printed == textwrap.dedent(shown.partition("\n\n")[0]).splitlines()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_to_a_file_and_every_test_that_is_named_is_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[\w-]+)?\)", text):
        if not target.startswith("https://"):
            assert (page.parent / target).exists(), target
    for path in re.findall(r"`(tests/[\w/]+\.py)", text):
        assert (ROOT / path).is_file(), path


def test_every_command_of_the_program_is_in_the_readme() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    table = text[text.index("## Commands") : text.index("Exit codes:")]
    assert set(re.findall(r"`(?:miniverl )?(\w+)`", table)) == set(cli.commands)


def test_the_workload_that_the_how_to_shows_is_one() -> None:
    text = (ROOT / "docs" / "add-a-workload.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    plain = yaml.safe_load(shown)
    base = yaml.safe_load((ROOT / "bench/workloads" / f"{plain.pop('extends')}.yaml").read_text())
    assert workload.parse(workload.extended(base, plain), "the how-to").num_steps == 8
