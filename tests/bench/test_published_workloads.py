"""The published work on Qwen3-0.6B, as workloads of ours: what they keep of it, and what stands in for its weights."""

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from miniverl.bench import stand_in
from miniverl.bench.fetch import fetch
from miniverl.bench.pin import HubPin, ShapePin, TemplatedPin, pin
from miniverl.bench.record import load_strict
from miniverl.bench.workload import compile_arguments, workload
from miniverl.compiler.lower import compile_launch
from miniverl.compiler.upstream import quiet
from miniverl.engine.recipe import Recipe

pytestmark = pytest.mark.slow

PUBLISHED = Path(__file__).parents[1] / "data" / "published_record_rtx4080.json"


def test_the_published_workload_is_the_records() -> None:
    chosen = workload("qwen3-0.6b-opd-k1")
    record = load_strict(PUBLISHED)
    recipe, models = record["recipe"], record["models"]
    settings = dict(one.set.split("=", 1) for one in chosen.overrides)
    student, teacher, rows = (pin(name) for name in chosen.pins)

    assert isinstance(student, HubPin)
    assert isinstance(teacher, HubPin)
    assert isinstance(rows, TemplatedPin)
    for each, role in ((student, "student"), (teacher, "teacher")):
        assert each.repository == models[role]["model_id"]
        assert each.revision == models[role]["revision"]
    assert (chosen.profile, chosen.interrupt_after_update) == (
        record["profile"],
        recipe["interrupt_after_updates"],
    )
    assert chosen.bindings.quantised == {
        "quantization": models["student"]["quantization"],
        "teacher_quantization": models["teacher"]["quantization"],
    }
    assert rows.splits["train"].rows == recipe["prompts_available"] == 64
    assert settings["data.train_batch_size"] == str(recipe["logical_batch"])
    assert settings["data.max_prompt_length"] == str(recipe["prompt_limit"])
    assert settings["data.max_response_length"] == str(recipe["response_limit"])
    assert settings["trainer.total_training_steps"] == str(recipe["optimizer_updates"])
    assert settings["distillation.distillation_loss.loss_mode"] == recipe["estimator"]
    lora = models["student"]["lora"]
    assert settings["actor_rollout_ref.model.lora_rank"] == str(lora["r"])
    assert settings["actor_rollout_ref.model.lora_alpha"] == str(lora["alpha"])
    targets = ",".join(lora["target_modules"])
    assert settings["actor_rollout_ref.model.target_modules"] == f"[{targets}]"
    contract = record["resource_contract"]
    assert chosen.contract.device_hours == contract["gpu_hour_limit"]
    assert chosen.contract.peak_reserved_gib == contract["peak_reserved_limit_gib"]


@pytest.mark.parametrize("name", ["qwen3-0.6b-opd-k1", "qwen3-0.6b-grpo"])
def test_stand_ins_and_small_forms_differ_in_their_models_alone(name: str) -> None:
    chosen = workload(name)
    assert chosen.stand_in is not None
    small = {"qwen3-0.6b-opd-k1": "tiny-opd-k1", "qwen3-0.6b-grpo": "tiny-grpo-nf4"}[name]
    for other in (workload(chosen.stand_in), workload(small)):
        assert other.overrides == chosen.overrides
        assert other.stand_in is None
        for role, named in other.bindings.models.items():
            assert isinstance(pin(named), ShapePin), role
        as_chosen = replace(
            other.bindings, model=chosen.bindings.model, teacher=chosen.bindings.teacher
        )
        assert as_chosen == chosen.bindings
    assert pin(chosen.stand_in and workload(chosen.stand_in).bindings.model).title.startswith(
        pin(chosen.bindings.model).title
    )


def test_without_the_hub_the_same_work_is_measured_with_seeded_weights(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MINIVERL_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nobody listens on it
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    found, told = stand_in.available(workload("qwen3-0.6b-grpo"), quiet)
    assert found.name == "qwen3-0.6b-grpo-shape"
    assert told is not None
    assert told.startswith("The Hub does not give Qwen3-0.6B: qwen3-0.6b-grpo-shape is measured")
    assert stand_in.available(workload("tiny-grpo"), quiet) == (workload("tiny-grpo"), None)


def test_grpo_on_qwen3_is_what_the_published_subset_asks_for(tmp_path: Path) -> None:
    """The subset as its block and sections state it, compiled by its own rules, gives the same recipe but for its data."""
    chosen = workload("tiny-grpo-nf4")
    folders = fetch(chosen.pins, quiet)
    arguments = compile_arguments(chosen, None, folders, "float32")
    ours = compile_launch(arguments.source, arguments.overrides, bindings=arguments.bindings)
    stated = tmp_path / "subset.json"
    stated.write_text(json.dumps(SUBSET))
    theirs = compile_launch(
        str(stated),
        (),
        profile="verl-rl-v0.9-single-gpu-v1",
        bindings=[one for one in arguments.bindings if not one.startswith("quantization")],
    )
    assert theirs.recipe is not None, theirs.execution
    assert ours.recipe is not None
    parts = {
        one.name
        for one in fields(Recipe)
        if getattr(ours.recipe, one.name) != getattr(theirs.recipe, one.name)
    }
    assert parts == {"seeds", "data", "steps", "update"} & parts
    assert ours.recipe.policy == theirs.recipe.policy
    assert ours.recipe.seeds.data == theirs.recipe.seeds.data == 17
    assert ours.recipe.steps.num_steps == theirs.recipe.steps.num_steps == 2
    assert ours.recipe.update.prompts_per_mini_batch == theirs.recipe.update.prompts_per_mini_batch
    assert replace(ours.recipe.data, drops_overlong=False) == replace(
        theirs.recipe.data, drops_overlong=False
    )


# The published subset of GRPO on Qwen3-0.6B, section by section.
SUBSET: dict[str, Any] = {
    "data": {
        "train_files": ["data/rl-prompts.parquet"],
        "val_files": [],
        "prompt_key": "prompt",
        "train_batch_size": 2,
        "max_prompt_length": 128,
        "max_response_length": 24,
        "truncation": "error",
        "shuffle": True,
        "seed": 17,
    },
    "actor_rollout_ref": {
        "model": {
            "path": "Qwen/Qwen3-0.6B",
            "enable_gradient_checkpointing": True,
            "lora_rank": 16,
            "lora_alpha": 32,
            "target_modules": [
                *("q_proj", "k_proj", "v_proj", "o_proj"),
                *("gate_proj", "up_proj", "down_proj"),
            ],
        },
        "actor": {
            "optim": {"lr": 1e-5, "weight_decay": 0.01, "lr_warmup_steps": 0},
            "ppo_mini_batch_size": 8,
            "ppo_epochs": 1,
            "loss_agg_mode": "token-mean",
            "clip_ratio": 0.2,
            "clip_ratio_low": 0.2,
            "clip_ratio_high": 0.2,
            "clip_ratio_c": 3.0,
            "use_kl_loss": False,
            "entropy_coeff": 0.0,
        },
        "rollout": {"name": "vllm", "n": 4, "temperature": 1.0, "top_p": 1.0, "top_k": 0},
    },
    "algorithm": {
        "adv_estimator": "grpo",
        "norm_adv_by_std_in_grpo": True,
        "gamma": 1.0,
        "lam": 1.0,
        "use_kl_in_reward": False,
    },
    "trainer": {
        "total_training_steps": 2,
        "total_epochs": 1,
        "save_freq": 1,
        "test_freq": -1,
        "n_gpus_per_node": 8,
        "nnodes": 2,
    },
    "miniverl": {
        "reward": {"provider": "exact_answer"},
        "actor": {"lora_enabled": True, "quantization": "nf4"},
    },
}
