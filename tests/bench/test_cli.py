"""The command line: exit codes, what goes to which stream, and that a mistake is told in full."""

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from miniverl.bench.answer import refuse
from miniverl.bench.cli import main
from miniverl.compiler.whole import write_json
from miniverl.engine import recipe as recipes
from miniverl.engine.problem import CannotHere, Problem

pytestmark = pytest.mark.slow

GRPO = ["compile", "launch:grpo"]
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def measured(example: ModuleType, tmp_path: Path) -> Path:
    """A valid record's file."""
    path = tmp_path / "record.json"
    write_json(path, example.measured(tmp_path / "measured"))
    return path


def edited(path: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    plain = json.loads(path.read_text())
    change(plain)
    copy = path.with_name("edited.json")
    copy.write_text(json.dumps(plain))
    return copy


def test_help_waits_for_nothing_heavy() -> None:
    script = """
    import sys
    from miniverl.bench.cli import main
    assert main(["--help"]) == 0
    heavy = {"hydra", "jsonschema", "numpy", "omegaconf", "pyarrow", "rich", "torch", "transformers"}
    sys.exit(f"loaded: {sorted(heavy & sys.modules.keys())}" if heavy & sys.modules.keys() else 0)
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=False
    )

    assert ended.returncode == 0, ended.stderr
    assert "compile" in ended.stdout


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["no-such-command"], "No such command 'no-such-command'"),
        (["compile", "launch:grpo", "--nope"], "No such option '--nope'"),
        (["compile"], "Missing argument 'SOURCE'"),
        (["compile", "launch:no-such"], "there is no such launch"),
        (["compile", "launch:grpo", "--profile", "none"], "there is no such profile"),
        (["compile", "workload:smollm2-grpo", "--bind", "model=x"], "a workload says this itself"),
        (
            ["compile", "launch:grpo", "--env", "A=1", "--launch", "2"],
            "only a launch script reads it",
        ),
        (["compile", "launch:grpo", "-o", "a", "--report", "./a"], "the recipe goes there"),
        (["compile", "no-such.sh"], "it cannot be read"),
        (["compile", "no-such.sh", "--env", "A"], "a value is given as NAME=value"),
        (["explain", "no.such.field"], "has no such leaf"),
        (["run", "nowhere.json", "--out", "somewhere"], "cannot be read"),
        (["bench", "no-such-workload"], "workload = 'no-such-workload'"),
        (["bench", "--gpu", "no-such-card"], "there is no such profile"),
        (["bench", "a", "b", "--record", "r.json"], "one file, and 2 workloads"),
        (["fetch", "no-such-pin"], "there is no such pin"),
        (["check", "nowhere.json"], "cannot be read"),
        (["compare", "a.json", "b.json", "--margin", "much"], "write 3% or 0.03"),
    ],
)
def test_a_wrong_call_exits_2_and_says_what_is_wrong(
    arguments: list[str], told: str, capsys: Capture
) -> None:
    code = main(arguments)

    streams = capsys.readouterr()
    assert code == 2
    assert told in streams.err
    assert "  fix    " in streams.err
    assert streams.out == ""


@pytest.mark.parametrize("closed", ["stdout", "stderr"])
def test_when_nobody_reads_on_the_exit_code_is_still_the_answer(closed: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    other = "stderr" if closed == "stdout" else "stdout"
    command = [sys.executable, "-m", "miniverl.bench", "compile", "launch:grpo", "--json"]
    streams = {closed: writer, other: subprocess.PIPE}
    ended = subprocess.run(command, check=False, text=True, **streams)
    os.close(writer)

    assert ended.returncode == 0
    assert "Traceback" not in (ended.stderr or "")
    assert closed == "stdout" or "semantics" in json.loads(ended.stdout)


def test_an_answer_that_the_disk_refuses_exits_3() -> None:
    command = [sys.executable, "-m", "miniverl.bench", "compile", "launch:grpo", "--json"]
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(command, check=False, text=True, stdout=full, stderr=subprocess.PIPE)

    assert ended.returncode == 3
    assert "No space left on device" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_with_json_a_wrong_call_is_json_on_stdout_too(capsys: Capture) -> None:
    assert main(["compile", "launch:grpo", "--json", "--nope"]) == 2
    of_click = json.loads(capsys.readouterr().out)
    assert main(["explain", "no.such.field", "--json"]) == 2
    of_ours = json.loads(capsys.readouterr().out)

    for answer in (of_click, of_ours):
        assert answer["status"] == "wrong_call"
        assert set(answer["problems"][0]) == {"field", "value", "origin", "reason", "fix"}


def test_a_card_that_is_not_here_exits_3_with_one_sentence_last(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    code = main(["bench", "--gpu", "4080"])

    last = capsys.readouterr().err.splitlines()[-1]
    assert code == 3
    assert "this machine has no NVIDIA card" in last
    assert "--gpu cpu" in last


def test_of_several_reasons_why_this_machine_cannot_the_first_makes_the_last_line(
    capsys: Capture,
) -> None:
    problems = [
        Problem(
            field=name, value="2.0", origin="lock", reason="the lock says 1.0", fix="make setup"
        )
        for name in ("torch", "peft")
    ]
    assert refuse(CannotHere(problems), as_json=False) == 3

    told = capsys.readouterr().err
    assert "peft = '2.0'" in told
    last = "torch = '2.0': the lock says 1.0 (and 1 more). make setup."
    assert told.splitlines()[-1] == last


def test_an_accepted_launch_exits_0_with_its_report_on_stdout(capsys: Capture) -> None:
    code = main([*GRPO, "--json"])

    streams = capsys.readouterr()
    report = json.loads(streams.out)
    assert code == 0
    assert report["semantics"] == "accepted"
    assert report["execution"]["status"] == "requires_bindings"
    assert f"leaves      {len(report['field_classification'])}: " in streams.err
    assert "--bind model=..." in streams.err


def test_a_rejected_launch_exits_1_with_its_report_and_every_problem(capsys: Capture) -> None:
    code = main(
        [
            *GRPO,
            "algorithm.adv_estimator=remax",
            "actor_rollout_ref.actor.strategy=megatron",
            "--json",
        ]
    )

    streams = capsys.readouterr()
    report = json.loads(streams.out)
    assert code == 1
    assert report["semantics"] == "rejected"
    told = {problem["field"] for problem in report["problems"]}
    assert {"algorithm.adv_estimator", "actor_rollout_ref.actor.strategy"} <= told
    for field in told:
        assert f"{field} = " in streams.err
    assert streams.err.splitlines()[-1] == f"rejected: {len(told)} problems"


def test_a_script_asks_for_what_it_takes_from_outside_and_is_accepted_with_it(
    tmp_path: Path, capsys: Capture
) -> None:
    script = tmp_path / "run.sh"
    script.write_text(
        "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.val_files=[] "
        "data.train_files=$DATA/train.parquet actor_rollout_ref.model.path=$1 "
        "actor_rollout_ref.rollout.name=vllm actor_rollout_ref.actor.use_dynamic_bsz=True "
        "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=True "
        "actor_rollout_ref.model.lora_rank=8\n",
        encoding="utf-8",
    )
    assert main(["compile", str(script)]) == 1
    told = capsys.readouterr().err
    assert "Give --env DATA=VALUE" in told
    assert "Give --arg VALUE" in told
    assert told.splitlines()[-1] == "needs user input: 2 problems"
    assert main(["compile", str(script), "--env", "DATA=/data", "--arg", "model"]) == 0


def test_a_launch_that_does_not_compose_exits_1(capsys: Capture) -> None:
    assert main([*GRPO, "no.such.key=1"]) == 1
    assert "override 1: no.such.key=1" in capsys.readouterr().err


def test_a_workload_compiles_to_a_recipe_and_a_report_on_disk(
    tmp_path: Path, capsys: Capture
) -> None:
    recipe, report = tmp_path / "new" / "recipe.json", tmp_path / "new" / "report.json"
    arguments = ["compile", "workload:smollm2-grpo", "trainer.total_training_steps=3"]
    assert main([*arguments, "-o", str(recipe), "--report", str(report)]) == 0

    compiled = recipes.loads(recipe.read_text(), str(recipe))
    assert compiled.steps.num_steps == 3
    told = json.loads(report.read_text())
    assert told["generated_recipe_sha256"] == hashlib.sha256(recipe.read_bytes()).hexdigest()
    assert capsys.readouterr().out == ""


def test_without_a_recipe_nothing_is_written_and_the_reason_is_told(
    tmp_path: Path, capsys: Capture
) -> None:
    path = tmp_path / "recipe.json"
    assert main([*GRPO, "-o", str(path)]) == 0
    assert not path.exists()
    assert "recipe      not written: requires bindings" in capsys.readouterr().err


def test_a_valid_record_checks_out(measured: Path, capsys: Capture) -> None:
    assert main(["check", str(measured), "--gate"]) == 0
    assert "valid, version 2, measured, resume exact match" in capsys.readouterr().err


def test_an_edited_number_is_named_with_exit_1(measured: Path, capsys: Capture) -> None:
    def faster(plain: dict[str, Any]) -> None:
        plain["measurements"]["steady_state_median_seconds"]["rollout"] = 0.5

    code = main(["check", str(edited(measured, faster)), "--json"])

    streams = capsys.readouterr()
    answer = json.loads(streams.out)
    field = "/measurements/steady_state_median_seconds/rollout"
    assert code == 1
    assert answer["status"] == "refused"
    assert field in [problem["field"] for problem in answer["problems"]]
    assert field in streams.err


def test_the_gate_refuses_a_valid_record_of_a_failure(
    example: ModuleType, tmp_path: Path, capsys: Capture
) -> None:
    path = tmp_path / "failed.json"
    write_json(path, example.failed(tmp_path / "failed"))

    assert main(["check", str(path)]) == 0
    assert main(["check", str(path), "--gate"]) == 1
    assert "/status = 'failed'" in capsys.readouterr().err


def test_a_record_compares_with_itself(measured: Path, capsys: Capture) -> None:
    assert main(["compare", str(measured), str(measured), "--json", "--explain"]) == 0
    streams = capsys.readouterr()
    assert json.loads(streams.out)["verdict"] == "descriptive"
    assert "a verdict takes 5 launches on each side" in streams.err


def test_the_page_of_a_record_is_named_in_the_last_line(
    measured: Path, tmp_path: Path, capsys: Capture
) -> None:
    assert main(["site", str(measured), "--out", str(tmp_path / "site")]) == 0
    assert capsys.readouterr().err.splitlines()[-1].split()[-1] == str(
        tmp_path / "site" / "index.html"
    )


def test_the_doctor_writes_one_fingerprint_twice(tmp_path: Path) -> None:
    one, other = tmp_path / "one.json", tmp_path / "other.json"
    assert main(["doctor", "--fingerprint", str(one)]) == 0
    assert main(["doctor", "--fingerprint", str(other)]) == 0
    assert one.read_bytes() == other.read_bytes()


def test_a_recipe_runs_to_its_adapter_and_another_cannot_go_on_in_its_folder(
    tiny_inputs: Path, tmp_path: Path, capsys: Capture
) -> None:
    model, train = tiny_inputs / "model", tiny_inputs / "train.parquet"
    overrides = [
        "data.train_batch_size=2",
        "actor_rollout_ref.actor.ppo_mini_batch_size=2",
        "actor_rollout_ref.rollout.n=2",
        "actor_rollout_ref.rollout.load_format=safetensors",
        "data.max_prompt_length=16",
        "data.max_response_length=4",
        "actor_rollout_ref.model.lora_rank=2",
        "trainer.save_freq=-1",
    ]
    bound = [f"model={model}", f"train={train}", "validation=none", "reward=last_number"]
    for steps in (1, 2):
        arguments = [*GRPO, *overrides, f"trainer.total_training_steps={steps}"]
        arguments += [text for each in bound for text in ("--bind", each)]
        arguments += ["--bind", "compute_dtype=float32", "-o", str(tmp_path / f"{steps}.json")]
        assert main(arguments) == 0

    inputs = ["--model", str(model), "--train", str(train), "--out", str(tmp_path / "run")]
    assert main(["run", str(tmp_path / "1.json"), *inputs, "--threads", "1"]) == 0
    assert (tmp_path / "run" / "adapter" / "adapter_model.safetensors").exists()
    assert "step 1/1" in capsys.readouterr().err
    page = (tmp_path / "run" / "report.html").read_text("utf-8")
    assert ">finished</span>" in page
    for heading in ("Reward", "Time by phase", "Divergence", "Lengths", "Entropy", "Responses"):
        assert f">{heading}</h" in page
    assert not re.search(r"(?:src|href)=(?!\"#)|https?:|@import|url\(", page)

    assert main(["run", str(tmp_path / "2.json"), *inputs, "--resume"]) == 2
    assert "has the recipe" in capsys.readouterr().err


def test_ctrl_c_ends_a_run_with_130_and_its_worker_with_it(tmp_path: Path) -> None:
    """The worker waits in a read that never ends."""
    recipe = tmp_path / "recipe.json"
    assert main(["compile", "workload:smollm2-grpo-ci", "-o", str(recipe)]) == 0
    (tmp_path / "model").mkdir()
    os.mkfifo(tmp_path / "model" / "config.json")
    (tmp_path / "train.parquet").touch()
    command = [sys.executable, "-m", "miniverl.bench", "run", str(recipe)]
    command += ["--model", str(tmp_path / "model"), "--train", str(tmp_path / "train.parquet")]
    out = tmp_path / "run"
    process = subprocess.Popen([*command, "--out", str(out)], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not (out / "worker.json").exists():
        assert time.monotonic() < deadline, "no worker"
        time.sleep(0.01)
    worker = json.loads((out / "worker.json").read_text())["pid"]
    process.send_signal(signal.SIGINT)
    _, told = process.communicate()

    assert process.returncode == 130
    assert "Stopped by Ctrl-C." in told
    assert "Traceback" not in told
    assert not Path(f"/proc/{worker}/exe").exists()
