"""Upstream itself goes on from a bundle: `make handoff-check VERL_PYTHON=python` of an environment with verl 0.9.0.

Not part of `make test`: it needs verl, Ray and what they ask for, which this project's environment does not have.
"""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from miniverl.bench.cli import main
from miniverl.compiler import handoff
from miniverl.engine import recipe as recipes

VERL_PYTHON = Path(os.environ["VERL_PYTHON"])
STEP = Path(__file__).with_name("upstream_step.py")


@pytest.fixture(scope="module")
def local(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One step of ours from the bundle: its batch, and the adapter behind it."""
    return go_on(bundle, bundle / "adapter", tmp_path_factory.mktemp("local"))


def go_on(bundle: Path, adapter: Path, place: Path) -> Path:
    recipe = recipes.loads((bundle / "recipe.json").read_text(), "a test")
    bound = [
        text
        for text in handoff.bindings(bundle, recipe, "adapter")
        if not text.startswith("adapter=")
    ]
    command = ["compile", str(bundle / "launch.sh"), "--env", f"HANDOFF_DIR={bundle}"]
    command += ["trainer.total_training_steps=1", "-o", str(place / "recipe.json")]
    command += [text for each in [*bound, f"adapter={adapter}"] for text in ("--bind", each)]
    assert main(command) == 0
    run = ["run", str(place / "recipe.json"), "--out", str(place / "run"), "--device", "cpu"]
    run += ["--model", str(bundle / "model"), "--train", str(bundle / "data" / "train.parquet")]
    assert main([*run, "--adapter", str(adapter), "--threads", "1"]) == 0
    return place / "run"


@pytest.fixture(scope="module")
def stepped(bundle: Path, local: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same batch, given to upstream's worker: its answer, and its checkpoint."""
    out = tmp_path_factory.mktemp("upstream")
    launch = json.loads((bundle / "manifest.json").read_text())["launch"]
    files = [f"{field}={bundle / place}" for field, place in launch["files"].items()]
    request = {
        "config_name": launch["config_name"],
        "out": str(out),
        "overrides": [*launch["overrides"], *files],
        "rows": rows(local),
        "total_steps": 1,
    }
    (out / "request.json").write_text(json.dumps(request))
    done = subprocess.run(
        [VERL_PYTHON, "-P", STEP, out / "request.json"], capture_output=True, check=False, text=True
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return out


def rows(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "trajectories.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def quantised_run(finish: Callable[..., Path], tiny_inputs: Path) -> Path:
    """Of PPO: a critic is trained whole, beside an adapter over a policy in NF4."""
    critic = tiny_inputs / "model"
    ppo = ("critic.ppo_mini_batch_size=2", "--bind", "quantization=nf4")
    return finish("launch:ppo", *ppo, critic=critic)


@pytest.mark.parametrize("kind", ["adapter", "merged"])
def test_upstream_accepts_a_bundle_with_a_critic_and_a_policy_that_was_quantised(
    quantised_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    out = tmp_path / "bundle"
    merged = ["--merged"] if kind == "merged" else []
    assert main(["handoff", str(quantised_run), "--out", str(out), *merged]) == 0
    proof = json.loads((out / "manifest.json").read_text())["proof"]
    assert proof["critic"]["is_same"]
    assert (proof["policy"]["held_difference"] == 0) is (kind == "merged")
    assert_accepted(out, capsys)


def test_upstream_accepts_a_bundle_of_whole_weights(
    finish: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = ("actor_rollout_ref.model.lora_rank=0", "actor_rollout_ref.model.lora.merge=False")
    out = tmp_path / "bundle"
    assert main(["handoff", str(finish("launch:grpo", *whole)), "--out", str(out)]) == 0
    assert json.loads((out / "manifest.json").read_text())["kind"] == "model"
    assert_accepted(out, capsys)


def test_upstream_accepts_the_launch(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert_accepted(bundle, capsys)


def assert_accepted(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["handoff", "--check", str(bundle), "--python", str(VERL_PYTHON), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["upstream"]["verl"] == "0.9.0"
    assert all(step["is_accepted"] for step in answer["upstream"]["steps"])
    assert len(answer["upstream"]["steps"]) >= 6
    assert answer["launchable"] is True
    assert answer["distributed_execution_tested"] is False


def test_upstream_s_worker_scores_the_batch_as_the_engine_does(local: Path, stepped: Path) -> None:
    """With the adapter of the bundle, and without it: the adapter is the one that was trained."""
    answer = json.loads((stepped / "answer.json").read_text())
    for name in ("old_log_probs", "reference_log_probs"):
        for ours, theirs in zip(rows(local), answer[name], strict=True):
            torch.testing.assert_close(
                torch.tensor(ours[name]), torch.tensor(theirs), rtol=1e-4, atol=1e-4
            )


def test_upstream_s_optimizer_step_is_the_engine_s(
    bundle: Path, local: Path, stepped: Path
) -> None:
    metrics = json.loads((local / "metrics.jsonl").read_text().splitlines()[0])
    answer = json.loads((stepped / "answer.json").read_text())
    assert answer["grad_norm"] == pytest.approx(metrics["gradient_norm"], rel=1e-3)
    weights = "adapter_model.safetensors"
    before, ours = (
        load_file(folder / weights) for folder in (bundle / "adapter", local / "adapter")
    )
    theirs = load_file(stepped / "stepped.safetensors")
    assert before.keys() == ours.keys() == theirs.keys()
    moved = torch.cat([(ours[name] - before[name]).flatten() for name in ours])
    apart = torch.cat([(ours[name] - theirs[name]).flatten() for name in ours])
    assert moved.norm() > 0.1
    assert float(apart.abs().max()) < 1e-5  # a step of Adam is as long as the learning rate, 0.05


def merged(stepped: Path) -> Path:
    """The adapter of upstream's checkpoint, which is pickled: upstream's own program takes it out, in bfloat16."""
    out = stepped / "merged"
    if not out.exists():
        command = [VERL_PYTHON, "-m", "verl.model_merger", "merge", "--backend", "fsdp"]
        command += ["--local_dir", stepped / "global_step_1" / "actor", "--target_dir", out]
        done = subprocess.run(command, capture_output=True, check=False, text=True)
        assert done.returncode == 0, done.stderr[-4000:]
    return out / "lora_adapter"


def test_a_run_here_goes_on_from_upstream_s_checkpoint(
    bundle: Path, stepped: Path, tmp_path: Path
) -> None:
    run = go_on(bundle, merged(stepped), tmp_path)
    assert (run / "adapter" / "adapter_model.safetensors").exists()
