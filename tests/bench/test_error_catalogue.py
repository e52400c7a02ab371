"""Every mistake that a user can make: told with field, value, origin, reason and fix, with its exit code, and without leaving anything.

The text for people and the JSON are compared. What takes a device, a network or a long run is in the tests that ELSEWHERE names.
"""

import hashlib
import json
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from miniverl.bench.answer import refuse
from miniverl.bench.cli import main
from miniverl.engine import recipe as recipes
from miniverl.engine.inputs import Inputs, load_inputs
from miniverl.engine.problem import Problems

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "tests" / "data" / "example_recipe.json"
Capture = pytest.CaptureFixture[str]
SMALL = (
    "launch:grpo",
    "data.train_batch_size=2",
    "actor_rollout_ref.actor.ppo_mini_batch_size=2",
    "actor_rollout_ref.rollout.n=2",
    "actor_rollout_ref.rollout.load_format=safetensors",
    "data.max_prompt_length=16",
    "data.max_response_length=4",
    "actor_rollout_ref.model.lora_rank=2",
    "trainer.total_training_steps=1",
)
BOUND = {
    "model": "model",
    "train": "train.parquet",
    "validation": "none",
    "reward": "last_number",
    "compute_dtype": "float32",
}


def compile_(*overrides: str, **bindings: str) -> list[str]:
    bound = [text for pair in (BOUND | bindings).items() for text in ("--bind", "=".join(pair))]
    return ["compile", *SMALL, *overrides, *bound, "-o", "out/recipe.json"]


# What is typed in a folder that `place` makes, the exit code, and what has to be said: field and a part of the reason.
CALLS: dict[str, tuple[list[str], int, str, str]] = {
    "no command": (["trian"], 2, "command line", "No such command 'trian'"),
    "no option": (["bench", "--gpus", "1"], 2, "command line", "No such option '--gpus'"),
    "no source": (["compile"], 2, "command line", "Missing argument 'SOURCE'"),
    "script is missing": (["compile", "no.sh"], 2, "script", "it cannot be read"),
    "script is broken": (["compile", "broken.sh"], 2, "script", "a quote (') that is never closed"),
    "script starts nothing": (["compile", "idle.sh"], 2, "script", "none of upstream's programs"),
    "YAML is broken": (["compile", "broken.yaml"], 1, "broken.yaml", "not YAML"),
    "key stands twice": (["compile", "twice.yaml"], 1, "a", "stated twice"),
    "override of nothing": (compile_("no.such=1"), 1, "no.such", "Could not override"),
    "override of a wrong kind": (
        compile_("data.train_batch_size=x"),
        1,
        "data.train_batch_size",
        "upstream expects",
    ),
    "override without a name": (compile_("=1"), 1, "override", "it names no field"),
    "override is a sweep": (compile_("data.seed=1,2"), 1, "data.seed", "several launches"),
    "mini-batches do not divide": (
        compile_("actor_rollout_ref.actor.ppo_mini_batch_size=3"),
        1,
        "actor_rollout_ref.actor.ppo_mini_batch_size",
        "do not divide",
    ),
    "estimator is unknown": (
        compile_("algorithm.adv_estimator=nope"),
        1,
        "algorithm.adv_estimator",
        "no estimator of this name",
    ),
    "profile is unknown": (
        [*compile_(), "--profile", "v9"],
        2,
        "profile",
        "there is no such profile",
    ),
    "binding is unknown": (compile_(modle="model"), 2, "modle", "there is no such binding"),
    "model is missing": (compile_(model="nowhere"), 2, "model", "no folder with a config.json"),
    "model without weights": (compile_(model="weightless"), 2, "model", "no *.safetensors file"),
    "data is missing": (compile_(train="no.parquet"), 2, "train", "no such file"),
    "data is something else": (compile_(train="text.parquet"), 2, "train", "not Parquet"),
    "data is empty": (compile_(train="empty.parquet"), 2, "train", "it has no rows"),
    "data lacks the prompts": (
        compile_(train="promptless.parquet"),
        1,
        "data.prompt_key",
        "no such column, but ability",
    ),
    "reward is unknown": (compile_(reward="nope"), 2, "reward", "no reward of that name"),
    "dtype is unknown": (
        compile_(compute_dtype="float8"),
        2,
        "compute_dtype",
        "no compute_dtype of that name",
    ),
    "card is unknown": ([*compile_(), "--gpu", "5090x"], 2, "--gpu", "no such GPU profile"),
    "recipe is missing": (["run", "no.json", "--out", "out"], 2, "recipe", "cannot be read"),
    "recipe is no JSON": (["run", "text.json", "--out", "out"], 2, "recipe", "is not JSON"),
    "recipe lacks fields": (
        ["run", "object.json", "--out", "out"],
        2,
        "recipe.schema_version",
        "missing field",
    ),
    "inputs are not bound": (
        ["run", "recipe.json", "--out", "out"],
        2,
        "model",
        "nothing says where it is",
    ),
    "no run to go on with": (
        ["run", "recipe.json", "--out", "out", "--resume", "--model", "model", "--train", "train.parquet"],
        2,
        "out",
        "no run to go on with",
    ),
    "folder holds another run": (
        ["run", "recipe.json", "--out", "other", "--model", "model", "--train", "train.parquet"],
        2,
        "out",
        "another recipe",
    ),
    "no card in this machine": (
        ["run", "recipe.json", "--out", "out", "--model", "model", "--train", "train.parquet",
         "--device", "cuda"],
        3,
        "gpu",
        "this machine has no NVIDIA card",
    ),
    "workload is unknown": (["bench", "smollm"], 2, "workload", "there is none"),
    "input is unknown": (["fetch", "nope"], 2, "pin", "there is no such pin"),
    "input is not fetched": (["fetch", "--check", "chain-sum"], 1, "chain-sum", "has not been fetched"),
    "leaf is unknown": (["explain", "nope"], 2, "field", "no such leaf"),
    "release is unknown": (["drift", "--against", "latest"], 2, "--against", "names no release"),
    "record is no JSON": (["check", "text.json"], 1, "record", "is not JSON"),
    "record of no version": (["check", "object.json"], 1, "/schema_version", "are known"),
    "record is missing": (["compare", "no.json", "object.json"], 2, "record", "cannot be read"),
    "margin is no number": (
        ["compare", "object.json", "object.json", "--margin", "much"],
        2,
        "command line",
        "write 3% or 0.03",
    ),
    "no run to look at": (["inspect", "model"], 2, "run", "it holds no run"),
    "watched and run at once": (
        ["run", "recipe.json", "--watch", "other"],
        2,
        "command line",
        "it takes no RECIPE",
    ),
    "no run to hand over": (["handoff", "nowhere", "--out", "out"], 2, "run", "no recipe.json"),
    "answer below a file": (
        [*compile_()[:-1], "text.json/recipe.json"],
        2,
        "file",
        "it cannot be written",
    ),
}  # fmt: skip

# What the worker finds before it loads weights: what is bound to a compiled recipe, field and a part of the reason.
STARTS: dict[str, tuple[list[str], Mapping[str, str], str, str]] = {
    "prompts are too long": ([], {"train": "long.parquet"}, "rows", "0 of its 10 prompts are left"),
    "data lacks the truth": (
        [],
        {"train": "truthless.parquet"},
        "row 0: reward_model",
        "no such column",
    ),
    "no chat template": ([], {"model": "templateless"}, "model", "chat template"),
    "no tokenizer": ([], {"model": "tokenless"}, "model", "no tokenizer.json"),
}

# A test that exists, for what cannot be made by a call alone.
ELSEWHERE = {
    "download breaks off": ("bench/test_hub.py", "test_a_download_that_keeps_breaking_off_says_so"),
    "no network": ("bench/test_hub.py", "test_without_a_network_it_says_to_connect"),
    "bytes are not the pinned ones": ("bench/test_hub.py", "test_a_digest_of_the_pin_is_verified_on_top"),
    "cache is damaged": ("bench/test_fetch.py", "test_a_changed_file_stops_a_fetch"),
    "two runs in one folder": (
        "bench/test_single_run.py",
        "test_a_folder_that_another_process_runs_in_is_left_as_it_is",
    ),
    "no such card for a measurement": (
        "bench/test_exit_paths.py",
        "test_a_card_that_is_not_here_blocks_a_record_and_replaces_no_other",
    ),
    "another card": ("bench/test_gpu.py", "test_another_card_is_refused_in_a_sentence"),
    "torch without CUDA": ("bench/test_gpu.py", "test_a_card_without_cuda_in_torch_is_refused_for_the_stack"),
    "driver is too old": ("bench/test_stack.py", "test_a_driver_that_is_too_old_is_told_with_both_versions"),
    "stack is not the locked one": ("bench/test_stack.py", "test_a_stack_that_differs_is_refused_with_every_package"),
    "memory or disk is too small": ("bench/test_exit_paths.py", "test_too_little_disk_or_memory_blocks"),
    "out of memory": ("bench/test_exit_paths.py", "test_a_worker_out_of_memory_says_so_itself"),
    "Ctrl-C in a run": (
        "bench/test_run_folder.py",
        "test_ctrl_c_saves_the_step_twice_ends_at_once_and_resumed_runs_report_all_steps",
    ),
    "signal while measuring": ("bench/test_exit_paths.py", "test_a_signal_to_the_parent_ends_in_a_record"),
    "stdout is closed": ("bench/test_cli.py", "test_when_nobody_reads_on_the_exit_code_is_still_the_answer"),
}  # fmt: skip


@pytest.fixture
def place(tiny_inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with a right model and rows and with everything wrong that a call may name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    shutil.copytree(tiny_inputs / "model", "model")
    shutil.copy(tiny_inputs / "train.parquet", "train.parquet")
    for name, missing in (
        ("weightless", "model.safetensors"),
        ("templateless", "chat_template.jinja"),
        ("tokenless", "tokenizer.json"),
    ):
        shutil.copytree("model", name)
        Path(name, missing).unlink()
    rows = pq.read_table("train.parquet").to_pylist()
    long = [{"role": "user", "content": "1+" * 40}]
    _write_rows("long.parquet", [row | {"prompt": long} for row in rows])
    _write_rows("promptless.parquet", [_without(row, "prompt") for row in rows])
    _write_rows("truthless.parquet", [_without(row, "reward_model") for row in rows])
    pq.write_table(pa.table({"prompt": pa.array([], pa.string())}), "empty.parquet")
    texts = {
        "text.parquet": "no Parquet",
        "text.json": "no JSON",
        "object.json": "{}",
        "broken.sh": "python3 -m verl.trainer.main_ppo a='\n",
        "idle.sh": "echo idle\n",
        "broken.yaml": "a: [1\n",
        "twice.yaml": "a: 1\na: 2\n",
    }
    for name, text in texts.items():
        Path(name).write_text(text)
    shutil.copy(EXAMPLE, "recipe.json")
    other = json.loads(EXAMPLE.read_text("utf-8"))
    other["seeds"]["sampling"] += 1
    Path("other").mkdir()
    Path("other", "recipe.json").write_text(json.dumps(other))
    return tmp_path


def _write_rows(name: str, rows: list[dict[str, Any]]) -> None:
    pq.write_table(pa.Table.from_pylist(rows), name)


def _without(row: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key != name}


def content(folder: Path) -> dict[str, str]:
    """Every file below the folder, by digest."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def require_told(said: str, answer: dict[str, Any], field: str, reason: str) -> None:
    """The text for people and the JSON say the same, in full."""
    told = [each for each in answer["problems"] if reason in each["reason"]]
    assert told, answer
    assert field in {each["field"] or "record" for each in told}
    for each in answer["problems"]:
        assert {"field", "value", "origin", "reason", "fix"} <= set(each)
        assert each["origin"].strip()
        assert each["reason"].strip()
        assert re.match(r"[A-Z`'\"]|make |miniverl |--", each["fix"]), each["fix"]
        assert f"{each['field'] or 'record'} = " in said
        assert f"  why    {each['reason']}" in said
        assert f"  fix    {each['fix']}" in said
    assert said.count("  where  ") == len(answer["problems"])
    assert "Traceback" not in said


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_call_is_told_in_full_and_leaves_nothing(
    place: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    arguments, exit_code, field, reason = CALLS[name]
    if name == "input is not fetched":
        monkeypatch.setenv("MINIVERL_CACHE", str(place / "cache"))
    before = content(place)
    assert main([*arguments, "--json"]) == exit_code
    streams = capsys.readouterr()
    require_told(streams.err, json.loads(streams.out), field, reason)
    assert content(place) == before


@pytest.mark.parametrize("name", STARTS)
def test_what_a_run_cannot_start_with_is_told_in_full(
    place: Path, capsys: Capture, name: str
) -> None:
    overrides, bindings, field, reason = STARTS[name]
    assert main(compile_(*overrides, **bindings)) == 0
    capsys.readouterr()
    recipe = recipes.loads(Path("out/recipe.json").read_text("utf-8"), "out/recipe.json")
    inputs = Inputs.of(recipe, {each: Path((BOUND | bindings)[each]) for each in recipe.inputs})
    with pytest.raises(Problems) as caught:
        load_inputs(recipe, inputs)
    assert refuse(caught.value, as_json=True) == 2
    streams = capsys.readouterr()
    require_told(streams.err, json.loads(streams.out), field, reason)


def test_a_full_disk_exits_3_and_leaves_no_part_of_a_file(place: Path) -> None:
    """A process that may not write a byte more, as on a disk that is full."""
    before = content(place)
    command = [sys.executable, "-m", "miniverl.bench", *compile_(), "--json"]
    ended = subprocess.run(
        command,
        check=False,
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)),
    )
    assert ended.returncode == 3
    require_told(
        ended.stderr, json.loads(ended.stdout), "file", "it cannot be written: File too large"
    )
    assert content(place) == before


def test_where_only_what_compiles_is_installed_a_run_is_refused(tmp_path: Path) -> None:
    """As after `make setup-compile`: pyarrow is the first package that is not there."""
    program = "import sys; sys.modules['pyarrow'] = None; from miniverl.bench.cli import main; "
    program += "sys.exit(main(sys.argv[1:]))"
    ended = subprocess.run(
        [sys.executable, "-c", program, "bench", "tiny-grpo", "--json"],
        check=False,
        capture_output=True,
        cwd=tmp_path,
        text=True,
    )
    assert ended.returncode == 3
    reason = "The package is not installed here"
    require_told(ended.stderr, json.loads(ended.stdout), "package", reason)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ELSEWHERE)
def test_what_is_not_here_is_there(name: str) -> None:
    path, test = ELSEWHERE[name]
    assert f"def {test}(" in (ROOT / "tests" / path).read_text("utf-8")
