"""Scripts that mean harm or are none: nothing runs, limits end in problems, other files are told apart."""

import os
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from miniverl.compiler.launch import MAX_BYTES, read_launch, script_text
from miniverl.engine.problem import WrongCall

pytestmark = pytest.mark.slow

MAIN = "python3 -m verl.trainer.main_ppo"
SCRIPTS = sorted((Path(__file__).parent / "scripts").glob("*.sh"))


def refusal(text: str) -> str:
    with pytest.raises(WrongCall) as raised:
        read_launch(text, "run.sh", environment={})
    return str(raised.value)


@pytest.mark.parametrize(
    "position",
    [
        "{main} a.b=$(touch {trap})",
        "{main} a.b=`touch {trap}`",
        '{main} "a.b=${{X:-$(touch {trap})}}"',
        "{main} a.b=<(touch {trap})",
        "{main} a.b=1; touch {trap}",
        "touch {trap} && {main} a.b=1",
        "{main} a.b=1 > {trap}",
        "{main} a.b=1 | tee {trap}",
        "eval 'touch {trap}'; {main} a.b=1",
        "bash -c 'touch {trap}; {main} a.b=1'",
        "X=$((a[$(touch {trap})])); {main} a.b=1",
        "[[ -v a[$(touch {trap})] ]]; {main} a.b=1",
        "cat <<EOF\n$(touch {trap})\nEOF\n{main} a.b=1",
        "trap 'touch {trap}' EXIT; {main} a.b=1",
        "source /dev/stdin <<< 'touch {trap}'; {main} a.b=1",
        'python3 -c \'open("{trap}", "w")\'; {main} a.b=1',
    ],
)
def test_nothing_in_a_script_runs(position: str, tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    read_launch(position.format(main=MAIN, trap=trap) + "\n", "run.sh", environment={})
    assert not trap.exists()


def test_our_own_environment_is_never_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "WANDB_API_KEY", "secret")
    (override,) = read_launch(
        f"{MAIN} a.b=$WANDB_API_KEY$HOME\n", "run.sh", environment={}
    ).overrides
    assert override.text == "a.b=${WANDB_API_KEY}${HOME}"


LIMITS = {
    "an endless loop": ("while true; do X=1; done", "20,000 commands"),
    "an endless recursion": ("f() { f; }; f", "60 deep"),
    "a doubling string": ("X=a; for i in {1..40}; do X=$X$X; done", "4 MiB"),
    "a long brace sequence": ("echo {1..99999999}", "too many words"),
    "a product of braces": ("echo " + "{a,b}" * 30, "too many words"),
    "nested statements": ("if a; then " * 300 + ":; " + "fi; " * 300, "deep"),
    "nested substitutions": ("echo " + "$(" * 500 + ")" * 500, "deep"),
    "nested parameters": ("echo " + "${a:-" * 500 + "}" * 500, "deep"),
    "nested parentheses": ("((" + "(" * 500 + "1" + ")" * 500 + "))", "deep"),
    "a long pipeline": ("a|" * 300_000 + "a", "operators"),
    "many operators": ("a;" * 100_000, "operators"),
    "many words": ("a " * 100_000, "words"),
    "unclosed arrays": ("x=(" * 100_000, "operators"),
    "a long file": ("# " + "x" * MAX_BYTES, "bytes"),
}


@pytest.mark.parametrize("name", LIMITS)
def test_a_limit_ends_in_a_problem(name: str) -> None:
    text, why = LIMITS[name]
    assert why in refusal(f"{text}\n")  # without the limits, some of these never end


def test_patterns_that_could_run_long_are_left_undecided() -> None:
    text = (
        f"X={'a' * 100}\n[[ $X =~ ^(a+)+b$ ]] && Y=1\nZ=${{X%%*a*a*a*a*b}}\n{MAIN} a.y=$Y a.z=$Z\n"
    )
    launch = read_launch(text, "run.sh", environment={})
    assert launch.overrides[1].text == f"a.z={'a' * 100}"
    assert [one.name for one in launch.unknowns] == ["Y"]


@pytest.mark.parametrize(
    "text",
    [
        "if true; then\n",
        "X='never closed\n",
        "echo $(date\n",
        "A=(1 2\n",
        "cat <<EOF\nno end\n",
        "done\n",
        "echo ${bad name}\n",
        "f() {\n",
    ],
)
def test_a_script_that_bash_does_not_read_is_refused_with_its_line(text: str) -> None:
    assert "run.sh:1" in refusal(text)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("@echo off\r\nset X=1\r\npython -m verl.trainer.main_ppo ^\r\n a.b=%X%\r\n", "Windows"),
        ("python -m verl.trainer.main_ppo ^\r\n data.seed=1\r\n", "Windows"),
        ('$env:HOME = "x"\npython -m verl.trainer.main_ppo `\n  a.b=1\n', "PowerShell"),
        (
            "resources:\n  accelerators: H100:8\nrun: |\n  python3 -m verl.trainer.main_ppo\n",
            "YAML",
        ),
        ("+ python3 -m x\nTraceback (most recent call last):\n  File 'x'\n", "trace"),
        ('{"cells": [], "metadata": {}}', "notebook"),
        ('{\n  "command": "python3"\n}\n', "JSON"),
        ("<!DOCTYPE html>\n<html>", "web page"),
        ("import os\nos.system('python3 -m verl.trainer.main_ppo')\n", "Python"),
        ("# Title\n```bash\npython3 -m verl.trainer.main_ppo a.b=1\n```\n", "Markdown"),
        ("FROM nvidia/cuda\nRUN pip install verl\n", "Dockerfile"),
    ],
)
def test_another_kind_of_file_is_told_what_to_give_instead(text: str, what: str) -> None:
    said = refusal(text)
    assert what in said
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize("raw", [b"\xff\xfea\x00", b"\x7fELF\x00\x00", b"#" * (MAX_BYTES + 1)])
def test_a_file_that_is_no_text_is_refused(raw: bytes, tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_bytes(raw)
    with pytest.raises(WrongCall):
        script_text(path)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WrongCall, match="cannot be read"):
        script_text(tmp_path / "none.sh")


PIECES = [
    *[
        "$(",
        "${",
        "}",
        ")",
        "((",
        "))",
        "[[",
        "]]",
        "'",
        '"',
        "`",
        "\\",
        "#",
        "=(",
        "&&",
        "|",
        ";",
        "{",
        "$@",
        "${x:-",
        "${x/",
        "${!x}",
        "<<E",
    ],
    *["if", "then", "fi", "esac", "do", "done", "return", "break"],
    *("\n", "\nE\n", "case a in ", "for x in ", "local x", "declare -A m=(", " "),
]


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.sampled_from(SCRIPTS),
    st.lists(st.tuples(st.floats(0, 1), st.sampled_from(PIECES)), max_size=3),
)
def test_a_broken_script_is_read_or_refused(
    script: Path, inserted: list[tuple[float, str]]
) -> None:
    text = script.read_text(encoding="utf-8")
    for place, piece in inserted:
        at = int(place * len(text))
        text = text[:at] + piece + text[at:]
    with suppress(WrongCall):
        read_launch(text, "run.sh", environment={"HOME": "/home/user"})
