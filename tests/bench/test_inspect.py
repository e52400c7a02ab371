"""`miniverl inspect`: trajectories of a run, by worst, best and changed, from logs that may be torn."""

import json
from pathlib import Path
from typing import Any

import pytest

from miniverl.bench.cli import main

Capture = pytest.CaptureFixture[str]


def row(step: int, prompt: int, sample: int, response: str, reward: float) -> dict[str, Any]:
    return {
        "step": step,
        "prompt_id": prompt,
        "sample": sample,
        "prompt_tokens": [1, prompt],
        "response_tokens": [5, 6],
        "response": response,
        "finished": True,
        "reward": reward,
        "advantages": [reward - 0.5, reward - 0.5],
    }


ROWS = (
    row(1, 0, 0, "three", 0.0),
    row(1, 0, 1, "4", 1.0),
    row(1, 1, 0, "no \x1b[31mred\u202e", 0.25),
    row(2, 0, 0, "4", 1.0),
    row(2, 0, 1, "4", 1.0),
    row(2, 1, 0, "still no", 0.25),
)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of two steps whose process is gone; its model is not here."""
    (tmp_path / "recipe.json").write_text("{}")
    (tmp_path / "bindings.json").write_text('{"model": "nowhere"}')
    events = [
        {"event": "run_started", "num_steps": 3, "resumed_step": None},
        {"event": "step_finished", "step": 2},
    ]
    (tmp_path / "journal.jsonl").write_text("".join(json.dumps(each) + "\n" for each in events))
    (tmp_path / "trajectories.jsonl").write_text("".join(json.dumps(each) + "\n" for each in ROWS))
    return tmp_path


def inspected(run: Path, capsys: Capture, *options: str) -> dict[str, Any]:
    assert main(["inspect", str(run), "--json", *options]) == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    return told


def test_the_worst_have_the_lowest_rewards_and_the_best_the_highest(
    run: Path, capsys: Capture
) -> None:
    told = inspected(run, capsys, "--worst", "2", "--best", "1")
    assert [each["response"] for each in told["worst"]] == ["three", "still no"]
    assert [(each["reward"], each["advantage"]) for each in told["best"]] == [(1.0, 0.5)]
    assert told["changed"] == []
    assert (told["status"], told["step"], told["num_steps"]) == ("killed", 2, 3)


def test_changed_are_answers_to_one_prompt_and_sample_the_most_moved_first(
    run: Path, capsys: Capture
) -> None:
    told = inspected(run, capsys, "--changed", "5")
    pairs = [(each["then"]["response"], each["now"]["response"]) for each in told["changed"]]
    assert pairs == [("three", "4"), ("no \x1b[31mred\u202e", "still no")]


def test_a_step_alone_is_shown_and_one_that_is_not_there_is_a_wrong_call(
    run: Path, capsys: Capture
) -> None:
    told = inspected(run, capsys, "--step", "1", "--best", "1", "--changed", "1")
    assert (told["trajectories"], told["best"][0]["step"], told["changed"]) == (3, 1, [])
    assert main(["inspect", str(run), "--step", "7"]) == 2
    assert "Name one of 1 to 2" in capsys.readouterr().err


def test_a_line_that_a_kill_tore_is_left_out_and_told(run: Path, capsys: Capture) -> None:
    with (run / "trajectories.jsonl").open("a") as file:
        file.write('{"step": 3, "promp')
    assert main(["inspect", str(run)]) == 0
    told = capsys.readouterr().err
    assert "read      6 trajectories of trajectories.jsonl" in told
    assert "its last line is torn (18 bytes), and left out" in told


def test_a_whole_line_that_is_damaged_is_named(run: Path, capsys: Capture) -> None:
    with (run / "trajectories.jsonl").open("a") as file:
        file.write('{"step": 3}\n')
    assert main(["inspect", str(run)]) == 1
    assert f"{run / 'trajectories.jsonl'}:7" in capsys.readouterr().err


def test_what_would_steer_a_terminal_is_shown_by_its_number(run: Path, capsys: Capture) -> None:
    assert main(["inspect", str(run), "--step", "1", "--worst", "3"]) == 0
    told = capsys.readouterr().err
    assert "no \\x1b[31mred\\u202e" in told
    assert "\x1b" not in told


def test_without_the_models_tokenizer_prompts_are_told_by_number(
    run: Path, capsys: Capture
) -> None:
    assert main(["inspect", str(run)]) == 0
    told = capsys.readouterr().err
    assert "prompts   by number: there is no nowhere/tokenizer.json" in told
    assert "prompt 0, sample 0" in told


def test_validation_is_looked_at_where_it_is_asked_for(run: Path, capsys: Capture) -> None:
    rows = [row(0, 3, 0, "a", 0.0), row(2, 3, 0, "b", 1.0)]
    for each in rows:
        del each["prompt_tokens"], each["advantages"]
    (run / "validation.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    told = inspected(run, capsys, "--validation", "--changed", "1")
    assert told["changed"][0]["then"]["response"] == "a"
    assert told["changed"][0]["now"]["advantage"] is None


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("nowhere", "there is no such folder"),
        (".", "Name one of them: a, b"),
        ("c", "holds no run"),
    ],
)
def test_a_folder_that_is_no_run_is_a_wrong_call_that_says_what_is_there(
    tmp_path: Path, capsys: Capture, name: str, told: str
) -> None:
    for each in "abc":
        (tmp_path / each).mkdir()
    for each in "ab":
        (tmp_path / each / "journal.jsonl").touch()
    assert main(["inspect", str(tmp_path / name)]) == 2
    assert told in capsys.readouterr().err
