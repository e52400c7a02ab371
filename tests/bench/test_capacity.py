"""`compile --gpu`: a row of the answer, for people and in the report, and never a reason to reject."""

import json
from pathlib import Path

import pytest

from miniverl.bench.cli import main
from miniverl.bench.exits import Exit

pytestmark = pytest.mark.slow

QWEN3_8B = {
    "model_type": "qwen3",
    "vocab_size": 151936,
    "hidden_size": 4096,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 12288,
    "head_dim": 128,
}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(QWEN3_8B), encoding="utf-8")
    return path


def test_a_launch_that_does_not_fit_is_accepted_and_says_by_how_much(config, capsys):
    call = ["compile", "launch:grpo", "--gpu", "4080", "--model-config", str(config), "--json"]
    assert main(call) == Exit.DONE
    told = capsys.readouterr()
    execution = json.loads(told.out)["execution"]
    assert execution["status"] == "does_not_fit"
    assert execution["missing"]
    assert execution["capacity"]["free_bytes"] < -100 * 2**30
    assert "GiB too much, and with NF4 and LoRA" in told.err


def test_without_a_model_it_says_which_config_to_give(capsys):
    assert main(["compile", "launch:grpo", "--gpu", "4080"]) == Exit.DONE
    assert "give --model-config model=config.json" in capsys.readouterr().err


def test_a_rejected_launch_has_no_capacity(config, capsys):
    call = ["compile", "hydra:ppo_trainer", "--gpu", "cpu", "--model-config", f"model={config}"]
    assert main([*call, "--json"]) == Exit.NO
    assert "capacity" not in json.loads(capsys.readouterr().out)["execution"]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--gpu", "409"], "there is no such GPU profile"),
        (["--gpu", "cuda"], "whatever its memory"),
        (["--gpu", "4080", "--model-config", "none.json"], "No such file"),
    ],
)
def test_what_names_no_device_or_no_file_is_a_wrong_call(options, reason, capsys):
    assert main(["compile", "launch:grpo", *options]) == Exit.WRONG_CALL
    assert reason in capsys.readouterr().err
