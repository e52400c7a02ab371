"""Scripts of our own, one per construct of the shell: what is read is what bash would have launched.

In a script, `#> text` is an override that it hands over, and `#~ text` part of a warning.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from miniverl.compiler.launch import Launch, read_launch

SCRIPTS = sorted((Path(__file__).parent / "scripts").glob("*.sh"))
ENVIRONMENT = {"HOME": "/home/user", "GIVEN": "given"}
ARGUMENTS = {"arguments": ["sglang", "trainer.a=1", "trainer.b=x y"]}
PYTHON = '#!/bin/sh\nprintf "%s\\0" "$@" >> "$HEARD"\nprintf "\\1" >> "$HEARD"\n'

each = pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)


def stated(script: Path, mark: str) -> list[str]:
    """The lines of a script that start with that mark; `\\n` stands for a line end."""
    lines = script.read_text(encoding="utf-8").splitlines()
    marked = [line.removeprefix(mark) for line in lines if line.startswith(mark)]
    return [line.removeprefix(" ").replace("\\n", "\n") for line in marked]


def read(script: Path) -> Launch:
    arguments = ARGUMENTS.get(script.stem, [])
    text = script.read_text(encoding="utf-8")
    return read_launch(text, script.name, environment=ENVIRONMENT, arguments=arguments)


@each
def test_a_script_hands_over_the_overrides_that_it_states(script: Path) -> None:
    launch = read(script)
    assert [override.text for override in launch.overrides] == stated(script, "#>")
    assert launch.entry_point == "verl.trainer.main_ppo"
    assert launch.unknowns == ()
    for warning in stated(script, "#~"):
        assert any(warning in one for one in launch.warnings)


@each
def test_bash_hands_over_the_same_overrides(script: Path, tmp_path: Path) -> None:
    programs, heard = tmp_path / "programs", tmp_path / "heard"
    programs.mkdir()
    (programs / "python3").write_text(PYTHON, encoding="utf-8")
    (programs / "python3").chmod(0o755)
    bash = shutil.which("bash")
    assert bash is not None
    subprocess.run(
        [bash, str(script), *ARGUMENTS.get(script.stem, [])],
        cwd=tmp_path,
        env={**ENVIRONMENT, "PATH": f"{programs}{os.pathsep}/usr/bin:/bin", "HEARD": str(heard)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        timeout=20,
    )
    first = heard.read_text(encoding="utf-8").split("\1")[0].split("\0")[:-1]
    launched = first[first.index("verl.trainer.main_ppo") + 1 :]
    assert launched == [override.text for override in read(script).overrides]
