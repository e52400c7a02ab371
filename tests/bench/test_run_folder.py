"""A run as its user meets it, in real processes: followed by another one, stopped by Ctrl-C, resumed, reported."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from miniverl.bench import run_page
from miniverl.bench.cli import main
from miniverl.bench.live import shown
from miniverl.bench.runner import Outcome
from miniverl.bench.watch import watch
from miniverl.engine.problem import WrongCall

pytestmark = pytest.mark.slow

MINIVERL = (sys.executable, "-m", "miniverl.bench")
MANY_STEPS = 2000
Started = subprocess.Popen[str]


@pytest.fixture
def command(tiny_inputs: Path, tmp_path: Path) -> list[str]:
    """Runs more steps than anybody waits for in the folder `run`; a checkpoint is due behind the last one alone."""
    recipe, rows = tmp_path / "recipe.json", tiny_inputs / "train.parquet"
    stated = {
        "data.train_batch_size": 1,
        "actor_rollout_ref.actor.ppo_mini_batch_size": 1,
        "actor_rollout_ref.rollout.n": 2,
        "actor_rollout_ref.rollout.load_format": "safetensors",
        "data.max_prompt_length": 16,
        "data.max_response_length": 4,
        "actor_rollout_ref.model.lora_rank": 2,
        "trainer.save_freq": -1,
        "trainer.test_freq": -1,
        "trainer.total_epochs": MANY_STEPS,
        "trainer.total_training_steps": MANY_STEPS,
    }
    bound = [f"model={tiny_inputs / 'model'}", f"train={rows}", "validation=none"]
    bound += ["reward=last_number", "compute_dtype=float32"]
    arguments = [f"{name}={value}" for name, value in stated.items()]
    arguments += [text for each in bound for text in ("--bind", each)]
    assert main(["compile", "launch:grpo", *arguments, "-o", str(recipe)]) == 0
    inputs = ["--model", str(tiny_inputs / "model"), "--train", str(rows)]
    call = [*MINIVERL, "run", str(recipe), "--out", str(tmp_path / "run"), *inputs]
    return [*call, "--device", "cpu", "--threads", "1"]


def start(command: list[str]) -> Started:
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for(path: Path, text: str) -> None:
    deadline = time.monotonic() + 300  # importing torch on a busy machine
    while not (path.exists() and text in path.read_text()):
        assert time.monotonic() < deadline, f"no {text} in {path}"
        time.sleep(0.02)


def events(journal: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in journal.read_text().splitlines()]


def test_ctrl_c_saves_the_step_twice_ends_at_once_and_resumed_runs_report_all_steps(
    command: list[str], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    running = start([*command, "--json"])
    wait_for(out / "journal.jsonl", "step_finished")
    watching = start([*MINIVERL, "run", "--watch", str(out), "--json"])
    assert watching.stdout is not None
    assert json.loads(watching.stdout.readline())["event"] == "imports_done"
    running.send_signal(signal.SIGINT)
    told, said = running.communicate()

    assert running.returncode == 130
    assert "Finishing this step, and saving it. Ctrl-C again stops now." in said
    stopped = events(out / "journal.jsonl")[-1]
    assert stopped["event"] == "run_stopped"
    step = stopped["step"]
    assert (out / "checkpoints" / f"step-{step:06d}").is_dir()
    heard = [json.loads(line) for line in told.splitlines()]
    assert heard[:-1] == events(out / "journal.jsonl")
    assert (heard[-1]["event"], heard[-1]["exit"]) == ("ended", 130)

    rest, _ = watching.communicate()
    assert watching.returncode == 130
    assert json.loads(rest.splitlines()[-2])["event"] == "run_stopped"
    assert f"Interrupted after step {step}" in json.loads(rest.splitlines()[-1])["reason"]
    assert ">interrupted</span>" in (out / "report.html").read_text()

    again = start([*command, "--resume"])
    wait_for(out / "metrics.jsonl", f'"step":{step + 1},')
    again.send_signal(signal.SIGINT)
    again.send_signal(signal.SIGINT)
    time.sleep(0.2)
    again.send_signal(signal.SIGINT)
    _, said = again.communicate()
    assert again.returncode == 130
    assert "Traceback" not in said
    page = (out / "report.html").read_text()
    assert ">interrupted</span>" in page
    assert re.findall(r"<summary>Step (\d+), 2 responses", page)[0] == "1"


def test_watching_ends_with_a_run_that_was_killed(tmp_path: Path) -> None:
    (tmp_path / "recipe.json").write_text("{}")
    lines = ['{"event": "run_started", "num_steps": 9, "resumed_step": 3}', '{"event": "step_st']
    (tmp_path / "journal.jsonl").write_text("\n".join(lines))
    heard: list[str] = []
    ended = watch(tmp_path, lambda event: heard.append(event["event"]), heard.append)
    assert heard == ["run_started"]
    assert ended.exit == 1
    assert "Ended after step 3: Its process is gone and left no word" in ended.sentence


def test_a_run_that_does_not_begin_is_waited_for_and_then_a_wrong_call(tmp_path: Path) -> None:
    told: list[str] = []
    with pytest.raises(WrongCall) as caught:
        watch(tmp_path / "none", lambda event: None, told.append, patience_seconds=0.2)
    assert told == [f"There is no run in {tmp_path / 'none'} yet; waiting 0 s for one."]
    assert caught.value.problems[0].reason == "there is no such folder"


def test_a_report_of_nothing_says_why_there_is_nothing(tmp_path: Path) -> None:
    recipe = Path(__file__).parents[1] / "data" / "example_recipe.json"
    (tmp_path / "recipe.json").write_bytes(recipe.read_bytes())
    outcome = Outcome(status="failed", reason_code="crashed", reason="<b>It crashed</b>")
    run_page.leave(tmp_path, outcome, print)
    page = (tmp_path / "report.html").read_text()
    assert "&lt;b&gt;It crashed" in page
    assert "Responses" not in page


def test_a_report_that_cannot_be_written_is_told_and_ends_nothing(tmp_path: Path) -> None:
    (tmp_path / "recipe.json").write_bytes(
        (Path(__file__).parents[1] / "data" / "example_recipe.json").read_bytes()
    )
    (tmp_path / "metrics.jsonl").write_text("no JSON\n")
    told: list[str] = []
    run_page.leave(tmp_path, Outcome(status="finished"), told.append)
    assert "no report.html: it is not JSON" in told[0]
    assert not (tmp_path / "report.html").exists()


EVENTS = (
    {"event": "run_started", "num_steps": 3, "resumed_step": None},
    {"event": "step_started", "step": 1},
    {"event": "step_finished", "step": 1, "seconds": 2.0, "metrics": {"reward_mean": 0.5}},
)
LINE = "  step 1/3  reward 0.500  2.0 s ()"


def on_a_terminal(program: Callable[[], None], **variables: str) -> str:
    """What the program writes on a terminal of its own, in a process of its own. CI, where this may run, is not inherited."""
    pid, terminal = pty.fork()
    if pid == 0:
        for name in ("CI", "NO_COLOR"):
            os.environ.pop(name, None)
        os.environ |= {"TERM": "xterm", "COLUMNS": "100", **variables}
        program()
        sys.stderr.flush()
        os._exit(0)
    read = b""
    try:
        while chunk := os.read(terminal, 4096):
            read += chunk
    except OSError:  # how Linux tells that the other side is closed
        pass
    os.waitpid(pid, 0)
    os.close(terminal)
    return read.decode()


def draw() -> None:
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115 - pytest has its own
    with shown(lambda line: print(line, file=sys.stderr)) as listen:
        for event in EVENTS:
            listen(event)


def test_on_a_terminal_a_bar_stands_below_the_lines() -> None:
    written = on_a_terminal(draw)
    assert LINE in written
    assert "1/3" in written.split(LINE)[1]
    assert "\x1b[" in written


@pytest.mark.parametrize("variable", ["CI", "NO_COLOR"])
def test_ci_gets_lines_alone_and_no_color_no_colours(variable: str) -> None:
    written = on_a_terminal(draw, **{variable: "1"})
    assert LINE in written
    assert not re.search(r"\x1b\[[\d;]*m", written)
    if variable == "CI":
        assert written.split() == LINE.split()
