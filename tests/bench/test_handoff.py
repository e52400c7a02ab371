"""A finished run as a bundle: everything that upstream is started with, proven when it is written."""

import json
import runpy
import shlex
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from miniverl.bench import handoff_page
from miniverl.bench.cli import main
from miniverl.compiler import handoff
from miniverl.engine import recipe as recipes
from miniverl.engine.digest import weights_sha256

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
Capture = pytest.CaptureFixture[str]


def manifest_of(bundle: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((bundle / "manifest.json").read_text())
    return read


def test_a_bundle_holds_all_that_its_launch_names(bundle: Path, finished_run: Path) -> None:
    launch = manifest_of(bundle)["launch"]
    assert launch["files"] == {
        "actor_rollout_ref.model.lora_adapter_path": "adapter",
        "actor_rollout_ref.model.path": "model",
        "data.train_files": "data/train.parquet",
        "data.val_files": "data/train.parquet",
        "reward.custom_reward_function.path": "reward/score.py",
    }
    assert all((bundle / place).exists() for place in launch["files"].values())
    for folder in ("adapter", "model"):
        source = finished_run if folder == "adapter" else None
        if source is not None:
            assert weights_sha256(bundle / folder) == weights_sha256(source / folder)
    done = subprocess.run(
        ["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"], cwd=bundle, check=False
    )
    assert done.returncode == 0


def test_what_was_trained_is_proven_against_the_engine_s_own_model(bundle: Path) -> None:
    proof = manifest_of(bundle)["proof"]["policy"]
    assert proof["is_same"]
    assert proof["max_difference"] < 1e-4
    assert proof["change"] > 0.01  # of the base model: the adapter does something
    assert proof["positions"] > 20


def test_the_script_starts_upstream_with_every_value_as_it_was(
    bundle: Path, tmp_path: Path
) -> None:
    """bash itself runs it, with a program that prints its arguments in the place of python3."""
    moved = shutil.copytree(bundle, tmp_path / "moved")
    (tmp_path / "python3").write_text('#!/bin/sh\nprintf "%s\\0" "$@"\n')
    (tmp_path / "python3").chmod(0o755)
    done = subprocess.run(
        ["bash", str(moved / "launch.sh"), "trainer.nnodes=2"],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "HOME": "/nowhere"},
        capture_output=True,
        check=True,
        text=True,
    )
    given = done.stdout.rstrip("\0").split("\0")
    launch = manifest_of(bundle)["launch"]
    assert given[:2] == ["-m", "verl.trainer.main_ppo"]
    files = [f"{field}={moved}/{place}" for field, place in launch["files"].items()]
    assert given[2:] == [*launch["overrides"], *files, "trainer.nnodes=2"]
    name = next(text for text in given if text.startswith("trainer.experiment_name="))
    assert "$HOME; `id`" in name
    bad = shutil.move(moved, tmp_path / "a folder")
    done = subprocess.run(["bash", f"{bad}/launch.sh"], capture_output=True, check=False, text=True)
    assert done.returncode == 2
    assert "Move this folder" in done.stderr


def test_the_bundle_s_launch_compiles_to_the_recipe_that_was_run(bundle: Path) -> None:
    recipe = recipes.loads((bundle / "recipe.json").read_text(), "a test")
    report = json.loads((bundle / "report.json").read_text())
    compiled = handoff.recompiled(bundle, recipe, report, "adapter", lambda *_: None)
    assert compiled.recipe is not None
    assert handoff.differences(recipe, compiled.recipe) == []
    assert compiled.recipe.policy.adapter_sha256 == weights_sha256(bundle / "adapter")
    shorter = json.loads(recipes.dumps(recipe)) | {
        "steps": {**recipes.to_dict(recipe)["steps"], "num_steps": 1}
    }
    other = recipes.from_dict(shorter, "a test")
    assert handoff.differences(other, compiled.recipe) == [("steps.num_steps", 1, 2)]


def test_a_merged_bundle_s_launch_takes_no_adapter_and_begins_one_of_the_same_rank(
    bundle: Path,
) -> None:
    recipe = recipes.loads((bundle / "recipe.json").read_text(), "a test")
    report = json.loads((bundle / "report.json").read_text())
    launch = handoff.handed(recipe, report, "merged", writes_score=True)
    assert "actor_rollout_ref.model.lora_adapter_path" not in launch.files
    assert launch.files["actor_rollout_ref.model.path"] == "model"
    assert "actor_rollout_ref.model.lora_rank=2" in launch.overrides
    assert not any(
        text.startswith("adapter=") for text in handoff.bindings(bundle, recipe, "merged")
    )


def test_the_page_says_how_far_other_weights_below_an_adapter_move_it(bundle: Path) -> None:
    manifest = manifest_of(bundle)
    assert "others" not in handoff_page.page(manifest)
    manifest["proof"]["policy"]["held_difference"] = 0.25
    manifest["proof"]["critic"] = manifest["proof"]["policy"]
    page = handoff_page.page(manifest)
    assert "## The weights below the adapter are others" in page
    assert "moves the logits by up to 0.25" in page
    assert "`critic/`, read by transformers as a token classifier" in page


def test_weights_of_four_bits_are_bound_again_and_named_as_a_departure(bundle: Path) -> None:
    """Upstream has none: the launch says nothing of them, and the check must compile to the run all the same."""
    recipe = recipes.loads((bundle / "recipe.json").read_text(), "a test")
    report = json.loads((bundle / "report.json").read_text())
    held = replace(
        recipe,
        policy=replace(recipe.policy, quantization="nf4"),
        rollout=replace(recipe.rollout, weights="nf4"),
    )
    compiled = handoff.recompiled(bundle, held, report, "adapter", lambda *_: None)
    assert compiled.recipe is not None
    assert handoff.differences(held, compiled.recipe) == []
    fields = [row["source_field"] for row in handoff.departures(compiled.report)]
    assert "actor_rollout_ref.actor.fsdp_config.model_dtype" in fields
    assert "actor_rollout_ref.rollout.quantization" in fields


def test_the_reward_function_needs_nothing_of_ours_and_scores_as_the_run_did(
    bundle: Path, finished_run: Path
) -> None:
    path = bundle / "reward" / "score.py"
    assert "miniverl." not in path.read_text().replace("miniverl's scorer", "")
    score_of = runpy.run_path(str(path))["compute_score"]
    for response, truth, score in (
        ("= 12", "12", 1.0),
        ("1,200.0.", "1200", 1.0),
        ("3-4", "-4", 0.0),
    ):
        given = {"data_source": "tiny", "solution_str": response, "ground_truth": truth}
        assert score_of(**given, extra_info={}) == score


def test_the_run_goes_on_from_the_bundle(bundle: Path, tmp_path: Path) -> None:
    """Compiled as upstream would compose it, and run here: step 1 samples from the adapter that was handed over."""
    recipe = recipes.loads((bundle / "recipe.json").read_text(), "a test")
    bound = handoff.bindings(bundle, recipe, "adapter")
    command = ["compile", str(bundle / "launch.sh"), "--env", f"HANDOFF_DIR={bundle}"]
    command += [text for each in bound for text in ("--bind", each)]
    assert main([*command, "-o", str(tmp_path / "recipe.json")]) == 0
    inputs = {
        "model": bundle / "model",
        "adapter": bundle / "adapter",
        "train": bundle / "data" / "train.parquet",
    }
    run = ["run", str(tmp_path / "recipe.json"), "--out", str(tmp_path / "run"), "--threads", "1"]
    run += [text for name, path in inputs.items() for text in (f"--{name}", str(path))]
    assert main([*run, "--device", "cpu"]) == 0
    first = json.loads((tmp_path / "run" / "trajectories.jsonl").read_text().splitlines()[0])
    assert first["step"] == 1
    assert first["old_log_probs"] != first["reference_log_probs"]  # the reference has no adapter


def test_the_commands_of_the_docs_do_what_they_say(
    finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (ROOT / "docs" / "handoff.md").read_text()
    commands = [
        shlex.split(line)[1:]
        for line in page.splitlines()
        if line.startswith("    miniverl handoff")
    ]
    assert len(commands) == 2
    shutil.copytree(finished_run, tmp_path / "build" / "run")
    monkeypatch.chdir(tmp_path)
    assert [main(command) for command in commands] == [0, 0]
    assert "make handoff-check VERL_PYTHON=PYTHON" in page
    assert "\nhandoff-check:" in (ROOT / "Makefile").read_text()


def test_an_unfinished_run_and_one_without_its_source_are_told_at_once(
    finished_run: Path, tmp_path: Path, capsys: Capture
) -> None:
    run = shutil.copytree(finished_run, tmp_path / "run")
    shutil.rmtree(run / "adapter")
    (run / "report.json").unlink()
    assert main(["handoff", str(run), "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert "it has not ended: there is no adapter/; its last checkpoint is step-000002" in said
    assert "by --report" in said
    assert not (tmp_path / "out").exists()


def test_an_export_that_computes_something_else_is_refused_and_leaves_nothing(
    finished_run: Path, tmp_path: Path, capsys: Capture
) -> None:
    run = shutil.copytree(finished_run, tmp_path / "run")
    path = run / "adapter" / "adapter_model.safetensors"
    save_file({name: 1.5 * each for name, each in load_file(path).items()}, path)
    assert main(["handoff", str(run), "--out", str(tmp_path / "out")]) == 1
    assert "its logits differ from the engine's" in capsys.readouterr().err
    assert sorted(each.name for each in tmp_path.iterdir()) == ["run"]


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["--target", "verl==0.8.0"], "compiled for verl==0.9.0"),
        (["--report", "pyproject.toml"], "it is no import report"),
        (["--python", "python3"], "not without --check"),
        (["--merged", "--check", "bundle"], "RUN, --out, --merged: not with --check"),
    ],
)
def test_a_call_that_cannot_be_meant_is_a_wrong_call(
    finished_run: Path, tmp_path: Path, capsys: Capture, more: list[str], told: str
) -> None:
    assert main(["handoff", str(finished_run), "--out", str(tmp_path / "out"), *more]) == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_folder_that_is_taken_is_left_as_it_is(
    finished_run: Path, tmp_path: Path, capsys: Capture
) -> None:
    (tmp_path / "theirs.txt").write_text("theirs")
    assert main(["handoff", str(finished_run), "--out", str(tmp_path)]) == 2
    assert "it is taken" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["theirs.txt"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "f=null"),
        (True, "f=True"),
        (1e-06, "f=1e-06"),
        (["a", 1, None], "f=[a,1,null]"),
        ({}, "f={}"),
        ("plain/path-1.0", "f=plain/path-1.0"),
        ("null", "f='null'"),
        ("1_2", "f='1_2'"),
        ("it's", r"f='it\'s'"),
        ("a\\", "f='a\\\\'"),
        ("a,b=c {d}", "f='a,b=c {d}'"),
    ],
)
def test_a_value_is_written_in_hydra_s_grammar_and_read_back_as_it_was(
    value: object, text: str
) -> None:
    from hydra.core.override_parser.overrides_parser import OverridesParser

    written = handoff.override("f", value, True)
    assert written == text
    read = OverridesParser.create().parse_override(written).value()
    assert (read.text if hasattr(read, "text") else read) == value
    assert shlex.split(handoff._quoted(written)) == [written]
