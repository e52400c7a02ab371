"""A user's own config tree: composed as upstream's program composes it, and never reading beyond its folder."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from miniverl.compiler import upstream
from miniverl.compiler.leaf import flat
from miniverl.compiler.lower import compile_tree
from miniverl.compiler.source import Source, compose, numbered
from miniverl.compiler.user_tree import UserTree
from miniverl.engine.problem import Problem, Refused, WrongCall

pytestmark = pytest.mark.slow

VERL = "0.9.0"
MINE = """\
hydra:
  searchpath:
    - file://verl/trainer/config

defaults:
  - ppo_trainer
  - lengths: short
  - _self_

data:
  train_batch_size: 16
  custom: 3
algorithm: {adv_estimator: grpo}
actor_rollout_ref:
  actor: {use_dynamic_bsz: true, ppo_mini_batch_size: 8}
  rollout: {name: vllm, n: 4}
"""
SHORT = "# @package data\nmax_prompt_length: 77\nseed: 5\n"
MAIN = """\
import json, sys, hydra
from omegaconf import OmegaConf

@hydra.main(config_path="config", config_name="ppo_trainer", version_base=None)
def main(config):
    print(json.dumps(OmegaConf.to_container(config, resolve=True)))

main()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "mine"
    (made / "lengths").mkdir(parents=True)
    (made / "config.yaml").write_text(MINE, encoding="utf-8")
    (made / "lengths/short.yaml").write_text(SHORT, encoding="utf-8")
    (tmp_path / "secret.yaml").write_text("password: hunter2\n", encoding="utf-8")
    return made


def composed(folder: Path, *overrides: str, name: str = "config") -> Source:
    return compose(name, numbered(overrides), user_tree=UserTree.at(folder), version=VERL)


def refused(folder: Path, text: str, *overrides: str) -> list[Problem]:
    (folder / "config.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(Refused) as refusal:
        composed(folder, *overrides)
    return list(refusal.value.problems)


def test_it_composes_to_what_upstreams_own_program_sees(folder, tmp_path):
    overrides = ["data.seed=6", "lengths@data=short", "+data.more.x=[1,2]"]
    release = upstream.tree(VERL, upstream.quiet).parents[2]
    (tmp_path / "main.py").write_text(MAIN, encoding="utf-8")
    command = [sys.executable, str(tmp_path / "main.py"), "--config-path", str(folder)]
    command += ["--config-name", "config", "data.seed=6", "+data.more.x=[1,2]"]
    command += [f"hydra.run.dir={tmp_path}/run", "hydra.output_subdir=null"]
    ran = subprocess.run(command, cwd=release, capture_output=True, text=True, check=True)
    del overrides[1]
    assert composed(folder, *overrides).leaves == dict(flat(json.loads(ran.stdout)))


def test_a_leaf_is_traced_to_the_users_file_and_line_and_an_override_wins(folder):
    source = composed(folder, "data.seed=6")
    assert source.leaves["data.max_prompt_length"] == 77
    assert source.origins["data.max_prompt_length"] == "lengths/short.yaml:2"
    assert source.origins["data.train_batch_size"] == "config.yaml:11"
    assert source.origins["actor_rollout_ref.rollout.n"] == "config.yaml:16"
    assert source.origins["data.seed"] == "override 1: data.seed=6"
    assert source.origins["data.shuffle"] == "default"
    assert source.origins["actor_rollout_ref.rollout.prompt_length"].startswith("default ${")
    assert source.notes == ()


def test_a_leaf_that_the_tree_adds_is_judged_as_an_appended_one(folder):
    compiled = compile_tree(folder, "config", ())
    (custom,) = [problem for problem in compiled.problems if problem.field == "data.custom"]
    assert (custom.value, custom.origin) == (3, "config.yaml:12")
    appended = compile_tree(folder, "config", ["~data.custom", "+data.custom=3"])
    (again,) = [problem for problem in appended.problems if problem.field == "data.custom"]
    assert (again.reason, again.fix) == (custom.reason, custom.fix)


def test_a_tree_that_does_not_name_upstreams_gets_it_with_a_warning(folder):
    (folder / "config.yaml").write_text("defaults: [ppo_trainer, _self_]\n", encoding="utf-8")
    source = composed(folder)
    assert source.leaves == source.defaults
    (note,) = source.notes
    assert "hydra.searchpath=[pkg://verl.trainer.config]" in note
    named = composed(folder, "hydra.searchpath=[pkg://verl.trainer.config]")
    assert named.notes == ()


def test_what_no_environment_holds_is_not_resolved(folder, monkeypatch):
    monkeypatch.setenv("TOKEN", "hunter2")
    text = MINE.replace("custom: 3", "custom: ${oc.env:TOKEN}")
    (problem,) = refused(folder, text)
    assert (problem.field, problem.origin) == ("data.custom", "config.yaml:12")
    assert "hunter2" not in problem.reason


@pytest.mark.parametrize("entry", ["../secret@data", "/../secret@data", "link@data", "up/secret"])
def test_a_defaults_list_reads_nothing_outside_of_the_folder(folder, entry):
    os.symlink("../secret.yaml", folder / "link.yaml")
    os.symlink("..", folder / "up")
    (problem,) = refused(folder, MINE.replace("lengths: short", entry))
    assert problem.reason == "the config file secret.yaml lies outside of the config tree"


def test_an_override_reads_nothing_outside_of_the_folder(folder):
    (problem,) = refused(folder, MINE, "lengths=../../secret")
    assert "outside of the pinned tree" in problem.reason


@pytest.mark.parametrize("place", ["file:///tmp", "pkg://os", "${oc.env:HOME}"])
def test_another_search_path_is_refused(folder, place):
    (problem,) = refused(folder, MINE.replace("file://verl/trainer/config", place))
    assert problem.field == "hydra.searchpath"
    (folder / "config.yaml").write_text(MINE, encoding="utf-8")
    with pytest.raises(Refused):
        composed(folder, f"hydra.searchpath=['{place}']")


def test_bombs_of_aliases_and_of_bytes_are_refused(folder):
    rows = "".join(
        f"{name}: &{name} [{','.join([f'*{before}'] * 9)}]\n"
        for before, name in zip("abcdefgh", "bcdefghi", strict=True)
    )
    (problem,) = refused(folder, f"{MINE}a: &a [x, x]\n{rows}")
    assert problem.reason == "config.yaml stands for more than 20000 values"
    (problem,) = refused(folder, f"{MINE}#{'x' * 2**22}\n")
    assert "no config more than 4194304" in problem.reason


@pytest.mark.parametrize("text", ["- 1\n", "a: [\n", "defaults: {a: 1}\n", "a: &b {c: *b}\n", "\0"])
def test_what_is_no_config_is_said_in_a_sentence(folder, text):
    assert refused(folder, text)


def test_a_config_without_upstreams_is_one_problem(folder):
    (problem,) = refused(folder, "hydra: {searchpath: [pkg://verl.trainer.config]}\na: 1\n")
    assert "it has 0 of the 855 leaves" in problem.reason


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "nope", ""])
def test_a_config_name_is_one_of_the_folders(folder, name):
    with pytest.raises(WrongCall, match="there is no such config name"):
        composed(folder, name=name)


def test_what_is_no_folder_is_a_wrong_call(tmp_path):
    with pytest.raises(WrongCall, match="no such folder"):
        UserTree.at(tmp_path / "none")
