"""What a user binds: checked when it is named, known by its content, and a row of the report."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from safetensors.numpy import save_file

from miniverl.compiler.bindings import DTYPES, lowering_rows, parse
from miniverl.compiler.bound_reward import REWARDS
from miniverl.engine.digest import rows_sha256, weights_sha256
from miniverl.engine.problem import WrongCall
from miniverl.engine.reward import SCORERS

ROWS = [
    {"prompt": [{"role": "user", "content": f"{n} + 1?"}], "data_source": "sums"} for n in (1, 2, 3)
]


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    parquet.write_table(pa.Table.from_pylist(ROWS), tmp_path / "train.parquet")
    return tmp_path / "train.parquet"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}), encoding="utf-8")
    save_file({"weight": np.zeros(2, dtype=np.float32)}, folder / "model.safetensors")
    return folder


def test_bound_files_are_known_by_their_content(rows, model):
    bindings = parse([f"train={rows}", "validation=none", f"model={model}", "reward=last_number"])
    assert bindings.train is not None
    assert bindings.model is not None
    assert (bindings.train.count, bindings.train.sha256) == (3, rows_sha256(ROWS))
    assert bindings.train.columns == {"prompt", "data_source"}
    assert bindings.model.sha256 == weights_sha256(model)
    assert bindings.validation is None
    assert bindings.without_validation


def test_what_rules_see_holds_no_path(rows, model):
    seen = parse([f"train={rows}", f"model={model}"]).for_rules()
    assert not [value for value in seen.values() if isinstance(value, Path) or str(rows) == value]


def test_unbound_the_compute_dtype_is_upstreams(rows):
    assert parse([]).compute_dtype == "bfloat16"
    assert parse(["compute_dtype=float32"]).compute_dtype == "float32"


def test_names_of_rewards_are_those_of_the_engines_scorers():
    assert set(REWARDS) == set(SCORERS)


def test_every_mistake_in_the_bindings_is_reported_at_once(tmp_path):
    (tmp_path / "broken.parquet").write_text("no parquet", encoding="utf-8")
    with pytest.raises(WrongCall) as wrong:
        parse(
            [
                "modell=x",
                "train",
                f"model={tmp_path}",
                f"validation={tmp_path}/broken.parquet",
                "reward=last_numbr",
                "compute_dtype=int8",
                "compute_dtype=float32",
            ]
        )
    assert [(problem.field, problem.fix) for problem in wrong.value.problems] == [
        ("modell", "Did you mean model?"),
        ("train", "Did you mean train?"),
        ("model", "Give a folder in Hugging Face's layout"),
        ("validation", "Give a Parquet file of rows"),
        ("reward", "Did you mean last_number?"),
        ("compute_dtype", f"Known: {', '.join(DTYPES)}"),
        ("compute_dtype", "Keep one of them"),
    ]


def test_a_missing_file_and_an_empty_one_are_refused(tmp_path):
    parquet.write_table(
        pa.Table.from_pylist([], schema=pa.schema([("prompt", pa.string())])), tmp_path / "e"
    )
    with pytest.raises(WrongCall, match="no such file"):
        parse([f"train={tmp_path}/absent.parquet"])
    with pytest.raises(WrongCall, match="it has no rows"):
        parse([f"train={tmp_path}/e"])


def test_a_model_that_sees_is_refused(model):
    (model / "config.json").write_text('{"vision_config": {}}', encoding="utf-8")
    with pytest.raises(WrongCall, match="only text is trained on here"):
        parse([f"model={model}"])


def test_each_binding_is_a_row_with_what_the_launch_said(rows, model, grpo):
    bindings = parse(
        [
            f"train={rows}",
            "validation=none",
            f"model={model}",
            "reward=last_number",
            "compute_dtype=float32",
        ]
    )
    table = {row["source_field"]: row for row in lowering_rows(bindings, grpo.leaves)}
    assert {row["kind"] for row in table.values()} == {"binding"}
    assert table["data.train_files"]["source_value"] == grpo.leaves["data.train_files"]
    assert table["data.train_files"]["local_value"] == {"rows": 3, "sha256": rows_sha256(ROWS)}
    assert table["data.val_files"]["local_value"] is None
    assert table["actor_rollout_ref.model.path"]["source_value"] == "Qwen/Qwen3-8B"
    assert table["reward.custom_reward_function.path"]["local_value"] == "last_number"
    dtype = table["actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype"]
    assert (dtype["source_value"], dtype["local_value"]) == ("bfloat16", "float32")
