"""A whole resolved config in one file: the same recipe as the launch that it was composed from."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from miniverl.compiler.leaf import nested
from miniverl.compiler.lower import Compiled, compile_file, compile_launch
from miniverl.compiler.rule import Class
from miniverl.compiler.source import Source
from miniverl.compiler.upstream import quiet
from miniverl.engine.problem import Refused, WrongCall

pytestmark = pytest.mark.slow

Change = Callable[[dict[str, Any]], None]


@pytest.fixture
def compile_config(grpo: Source, bound, tmp_path: Path) -> Callable[..., Compiled]:
    """Compiles the official GRPO launch, composed and written to a file, with changes to the mapping."""

    def compiled_file(change: Change = lambda config: None, name: str = "config.json") -> Compiled:
        config = json.loads(json.dumps(nested(grpo.leaves)))
        change(config)
        path = tmp_path / name
        is_json = path.suffix == ".json"
        text = json.dumps(config) if is_json else OmegaConf.to_yaml(OmegaConf.create(config))
        path.write_text(text, encoding="utf-8")
        return compile_file(path, bound, None, quiet)

    return compiled_file


@pytest.mark.parametrize("name", ["config.yaml", "config.yml", "config.json"])
def test_a_composed_launch_in_a_file_gives_the_recipe_of_the_launch(compile_config, compiled, name):
    result = compile_config(name=name)
    assert result.status == "accepted"
    assert result.recipe.sha256 == compiled().recipe.sha256
    assert [one.classification for one in result.findings] == [
        one.classification for one in compiled().findings
    ]
    assert result.report["profile"] == "verl-rl-v0.9-single-gpu-v4"
    assert result.report["source"]["description"] == f"the resolved config {name} with 855 leaves"


def test_rows_name_file_and_line(compile_config):
    (row,) = [
        row
        for row in compile_config(name="config.yaml").report["field_classification"]
        if row["upstream_field"] == "data.train_batch_size"
    ]
    name, line = row["origin"].split(":")
    assert name == "config.yaml"
    assert int(line) > 1


def test_missing_and_unknown_leaves_are_problems_all_at_once(compile_config):
    def change(config: dict[str, Any]) -> None:
        del config["trainer"]["test_freq"]
        config["data"]["max_prompt_lenght"] = 3
        config["ray_init"] = {"num_cpus": 4}
        config["algorithm"]["adv_estimator"] = "remax"

    result = compile_config(change)
    assert result.status == "rejected"
    found = {problem.field: problem for problem in result.problems}
    assert set(found) == {
        "trainer.test_freq",
        "data.max_prompt_lenght",
        "ray_init.num_cpus",
        "algorithm.adv_estimator",
    }
    assert found["trainer.test_freq"].reason == "it is missing, and upstream reads it"
    assert found["data.max_prompt_lenght"].fix == "Did you mean data.max_prompt_length?"
    assert "ray_kwargs.ray_init.num_cpus" in found["ray_init.num_cpus"].fix


def test_another_class_of_a_section_is_refused(compile_config):
    def change(config: dict[str, Any]) -> None:
        config["actor_rollout_ref"]["actor"]["_target_"] = "os.system"

    (problem,) = compile_config(change).problems
    assert problem.field == "actor_rollout_ref.actor._target_"


def test_a_value_left_open_is_refused_with_its_line(compile_config):
    def change(config: dict[str, Any]) -> None:
        config["data"]["train_files"] = "???"

    with pytest.raises(Refused, match=r"data\.train_files = '\?\?\?' \(config\.json:1\)"):
        compile_config(change)


@pytest.mark.parametrize(
    ("section", "field", "value"),
    [
        ("actor_rollout_ref.actor", "shuffle", True),
        ("actor_rollout_ref.rollout", "over_sample_rate", 0.2),
        ("algorithm.filter_groups", "enable", True),
        ("trainer.v1.sampler", "sync_refill_failed_groups", True),
    ],
)
def test_the_profile_of_files_keeps_what_it_never_took(compile_config, section, field, value):
    def change(config: dict[str, Any]) -> None:
        for part in section.split("."):
            config = config[part]
        config[field] = value

    rejected = {one.field: one for one in compile_config(change).findings if one.fix}
    assert rejected[f"{section}.{field}"].classification is Class.NOT_IMPLEMENTED


def test_a_file_of_something_else_is_one_sentence(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text("apiVersion: ray.io/v1\nkind: RayJob\n", encoding="utf-8")
    with pytest.raises(Refused, match="none of the sections of an upstream config"):
        compile_launch(str(path), [])


def test_overrides_on_top_of_a_file_are_a_wrong_call(tmp_path):
    with pytest.raises(WrongCall, match=r"data\.seed=1 comes on top"):
        compile_launch(str(tmp_path / "config.yaml"), ["data.seed=1"])


@pytest.mark.parametrize(
    ("section", "field", "value"),
    [
        ("algorithm", "adv_estimator", ["grpo"]),
        ("reward.reward_manager", "name", ["naive"]),
        ("trainer", "total_training_steps", 10**20),
        ("trainer", "total_epochs", 10**20),
        ("actor_rollout_ref.actor", "ppo_max_token_len_per_gpu", 10**20),
    ],
)
def test_a_value_of_no_use_is_a_problem_of_its_leaf(compile_config, section, field, value):
    def change(config: dict[str, Any]) -> None:
        for part in section.split("."):
            config = config[part]
        config[field] = value

    problems = compile_config(change).problems
    assert f"{section}.{field}" in {problem.field for problem in problems}


def test_a_placeholder_needs_user_input_and_never_upstreams_own_value(compile_config):
    def change(config: dict[str, Any]) -> None:
        config["actor_rollout_ref"]["model"]["path"] = "<your model>"
        config["data"]["train_files"] = ["<path/to/train.parquet>"]
        config["actor_rollout_ref"]["actor"]["optim"]["lr"] = "<LR>"

    result = compile_config(change, name="config.yaml")
    assert result.status == "needs_user_input"
    assert result.recipe is None
    required = {row["field"]: row for row in result.report["required_user_input"]}
    assert set(required) == {
        "actor_rollout_ref.model.path",
        "actor_rollout_ref.actor.optim.lr",
        "data.train_files",
    }
    assert required["data.train_files"]["origin"].startswith("config.yaml:")
    assert result.report["unresolved_fields"] == sorted(required)


def test_a_placeholder_in_an_override_needs_user_input():
    result = compile_launch("launch:grpo", ["actor_rollout_ref.model.path='<your model>'"])
    assert result.status == "needs_user_input"
    assert [one.origin for one in result.problems] == [
        "override 1: actor_rollout_ref.model.path='<your model>'"
    ]


@pytest.mark.parametrize("value", ["a < b > c", "<>", "<3>", "x<y>"])
def test_text_with_angles_is_no_placeholder(compile_config, value):
    def change(config: dict[str, Any]) -> None:
        config["trainer"]["project_name"] = value

    assert compile_config(change).status == "accepted"
