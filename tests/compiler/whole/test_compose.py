"""Hydra's composition of the pinned tree: equal to upstream's, typed by Hydra, with every fault named at once."""

import json
from pathlib import Path

import pytest

from miniverl.compiler import source as sources
from miniverl.compiler.source import compose, config_sha256, numbered
from miniverl.engine.problem import Problem, Refused, WrongCall

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
VERL = "0.9.0"


def composed(*overrides: str) -> sources.Source:
    return compose("ppo_trainer", numbered(overrides), version=VERL)


def refused(*overrides: str) -> tuple[Problem, ...]:
    with pytest.raises(Refused) as refusal:
        composed(*overrides)
    return refusal.value.problems


def test_the_official_grpo_launch_composes_to_upstreams_config_leaf_for_leaf(grpo):
    expected = json.loads((HERE / "grpo_leaves.json").read_text(encoding="utf-8"))
    unlike = {field: value for field, value in grpo.leaves.items() if grpo.defaults[field] != value}
    assert unlike == expected["unlike_the_defaults"]
    assert len(grpo.leaves) == expected["leaves"] == 855
    assert grpo.sha256 == expected["sha256"]


def test_defaults_are_those_of_the_pinned_tree(grpo):
    leaves = json.loads((HERE.parent / "default_leaves.json").read_text(encoding="utf-8"))
    assert grpo.defaults == leaves
    assert config_sha256(grpo.defaults) == (
        "e454ed47ec2cb708abf95fe04ed85c2b67e85792b76438f7c72880094db1b07e"
    )


def test_values_are_typed_as_hydra_types_them():
    leaves = composed(
        "data.seed=7",
        "actor_rollout_ref.actor.optim.lr=5e-4",
        "data.shuffle=False",
        "data.train_files=[a.parquet,'b c.parquet']",
        "trainer.project_name='1,2'",
        "data.val_batch_size=null",
        "+reward.reward_kwargs={limit:3}",
        "++algorithm.gamma=0.5",
        "+data.apply_chat_template_kwargs.enable_thinking=False",
        "~actor_rollout_ref.actor.profiler",
    ).leaves
    assert leaves["data.seed"] == 7
    assert leaves["actor_rollout_ref.actor.optim.lr"] == 5e-4
    assert leaves["data.shuffle"] is False
    assert leaves["data.train_files"] == ["a.parquet", "b c.parquet"]
    assert leaves["trainer.project_name"] == "1,2"
    assert leaves["data.val_batch_size"] is None
    assert leaves["reward.reward_kwargs.limit"] == 3
    assert leaves["algorithm.gamma"] == 0.5
    assert leaves["data.apply_chat_template_kwargs.enable_thinking"] is False
    assert "data.apply_chat_template_kwargs" not in leaves
    assert not [field for field in leaves if field.startswith("actor_rollout_ref.actor.profiler")]


def test_an_empty_mapping_and_a_whole_list_are_one_leaf_each(grpo):
    assert grpo.leaves["actor_rollout_ref.model.override_config"] == {}
    assert grpo.leaves["actor_rollout_ref.actor.optim.betas"] == [0.9, 0.999]


def test_a_mandatory_value_that_nothing_here_reads_stays_open(grpo):
    assert grpo.leaves["reward.reward_model.rollout.name"] == "???"


def test_origins_name_the_last_override_the_default_or_what_a_leaf_follows():
    origins = composed(
        "data.max_prompt_length=64",
        "data.max_prompt_length=128",
        "+reward.reward_kwargs={limit:3}",
        "~data.return_raw_chat",
    ).origins
    assert origins["data.max_prompt_length"] == "override 2: data.max_prompt_length=128"
    assert origins["reward.reward_kwargs.limit"] == "override 3: +reward.reward_kwargs={limit:3}"
    assert origins["data.return_raw_chat"] == "override 4: ~data.return_raw_chat"
    assert origins["data.seed"] == "default"
    assert origins["actor_rollout_ref.rollout.prompt_length"] == (
        "default ${oc.select:data.max_prompt_length,512}"
    )


def test_a_launch_knows_what_was_stated_on_top_of_it():
    launch = numbered(["data.seed=1", "data.shuffle=True"], "launch")
    stated = numbered(["data.seed=2"], "stated")
    source = compose("ppo_trainer", stated, launched=launch, version=VERL)
    assert source.launched["data.seed"] == 1
    assert source.leaves["data.seed"] == 2
    assert source.origins["data.seed"] == "stated 1: data.seed=2"
    assert source.origins["data.shuffle"] == "launch 2: data.shuffle=True"


def test_overrides_of_hydra_itself_are_noted_and_change_nothing(grpo):
    source = composed("hydra.run.dir=/elsewhere")
    assert source.leaves == grpo.defaults
    assert source.notes == (
        "override 1: hydra.run.dir=/elsewhere: it sets Hydra itself, and nothing here reads it",
    )


FAULTS = [
    (
        "algorithm.adv_estimtor=grpo",
        "algorithm.adv_estimtor",
        "Could not override 'algorithm.adv_estimtor'",
        "Did you mean algorithm.adv_estimator?",
    ),
    (
        "rollout.nope=1",
        "rollout.nope",
        "Could not override 'rollout.nope'",
        "Write +rollout.nope=1 if upstream reads such a key",
    ),
    (
        "+algorithm.gamma=2",
        "algorithm.gamma",
        "Could not append to config. An item is already at 'algorithm.gamma'",
        "Write algorithm.gamma=2 without the +",
    ),
    (
        "~nothing",
        "nothing",
        "Could not delete from config. 'nothing' does not exist",
        "Drop the override: there is nothing to take away",
    ),
    (
        "model_engine=dpp",
        "model_engine",
        (
            "In 'ppo_trainer': Could not find 'model_engine/dpp' "
            "Available options in 'model_engine': dp megatron mindspeed torchtitan veomni"
        ),
        "Did you mean dp?",
    ),
    (
        "data=3",
        "data",
        "Config group override must be a string or a list. Got int",
        "Take one of legacy_data",
    ),
    (
        "data.seed=1,2",
        "data.seed",
        "a sweep stands for several launches",
        "Give one value; a list is data.seed=[a,b], a string with commas data.seed='a,b'",
    ),
    (
        "data.seed=choice(1,2)",
        "data.seed",
        "a sweep stands for several launches",
        "Give one value; a list is data.seed=[a,b], a string with commas data.seed='a,b'",
    ),
    (
        "data.seed=[1",
        "data.seed",
        "no viable alternative at input '[1'",
        "Follow Hydra's grammar: data.seed=value, strings with special characters in quotes",
    ),
    (
        "data.val_files=${data.trainfiles}",
        "data.val_files",
        "${data.trainfiles} does not resolve: Interpolation key 'data.trainfiles' not found",
        "Did you mean ${data.train_files}?",
    ),
    (
        "data.train_files=???",
        "data.train_files",
        "??? marks a mandatory value that nobody has set",
        "Give data.train_files a value",
    ),
    ("algorithm.lam=nan", "algorithm.lam", "not a finite number", "Give a finite number"),
]


@pytest.fixture(scope="module")
def faults() -> list[Problem]:
    """One launch with all of them, since each composition takes most of a second."""
    return list(refused(*(override for override, *_ in FAULTS)))


@pytest.mark.parametrize(("override", "field", "reason", "fix"), FAULTS)
def test_a_fault_names_its_override_the_reason_and_the_fix(faults, override, field, reason, fix):
    number = [one for one, *_ in FAULTS].index(override) + 1
    (problem,) = [one for one in faults if one.origin == f"override {number}: {override}"]
    assert (problem.field, problem.reason, problem.fix) == (field, reason, fix)


def test_all_faults_are_reported_at_once(faults):
    assert len(faults) == len(FAULTS)


def test_leaves_that_only_follow_a_faulty_one_are_not_reported():
    (problem,) = refused("data.max_prompt_length=${nowhere}")
    assert problem.field == "data.max_prompt_length"


def test_the_users_environment_is_not_seen(monkeypatch):
    monkeypatch.setenv("MY_SEED", "3")
    (problem,) = refused("data.seed=${oc.env:MY_SEED}")
    assert "Environment variable 'MY_SEED' not found" in problem.reason


def test_composing_writes_nothing_where_it_is_called(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    composed("hydra.job.chdir=True")
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_config_or_launch_is_a_wrong_call():
    with pytest.raises(WrongCall, match=r"Did you mean ppo_trainer\?"):
        compose("ppo_trainr", [], version=VERL)
    with pytest.raises(WrongCall, match=r"Did you mean grpo\?"):
        sources.launch("grppo")


def test_the_kept_launch_is_upstreams_script_with_its_forty_overrides():
    launch = sources.launch("grpo")
    assert len(launch.overrides) == 40
    assert (launch.verl, launch.entry_point) == ("v0.9.0", "verl.trainer.main_ppo")
    assert launch.source_path == "examples/grpo_trainer/run_qwen3_8b_fsdp.sh"
