"""The corpus: upstream's official launches and ours, composed to upstream's configs, judged, and kept as computed."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from miniverl.compiler import corpus_page, upstream
from miniverl.compiler import source as sources
from miniverl.compiler.corpus import files_of, manifest, outcomes
from miniverl.compiler.corpus_cases import Case, Readme, corpus
from miniverl.compiler.corpus_upstream import reread
from miniverl.compiler.leaf import flat
from miniverl.compiler.lower import compile_launch
from miniverl.engine.problem import WrongCall

pytestmark = pytest.mark.slow

HERE = Path(__file__).parents[1]
OFFICIAL = sorted(path.stem for path in (HERE / "launches").glob("*.json"))


@pytest.fixture(scope="module")
def computed() -> dict[str, Any]:
    whole = corpus()
    return manifest(whole, outcomes(whole.cases), outcomes(whole.further))


@pytest.fixture(scope="module")
def rows(computed) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in computed["cases"]}


def test_sixteen_cases_of_which_fourteen_compose_and_twelve_are_accepted(computed):
    assert computed["counts"] == {
        "cases": 16,
        "composed": 14,
        "accepted": 12,
        "semantic_rejections": 2,
        "composition_rejections": 2,
    }
    assert corpus_page.is_as_expected(computed)


def test_manifest_and_page_are_as_computed(computed):
    stored = files_of(computed)
    assert sorted(path.name for path in stored) == ["compatibility.md", "corpus_manifest.json"]
    stale = [path.name for path, text in stored.items() if path.read_text("utf-8") != text]
    assert stale == [], "run miniverl corpus"


def test_an_installed_package_has_no_checkout_to_write_to(monkeypatch, tmp_path):
    from miniverl.compiler import corpus as module

    assert module.checkout() == HERE.parents[1]
    monkeypatch.setattr(module, "_MANIFEST", tmp_path / "miniverl" / "compiler" / "manifest.json")
    assert module.checkout() is None


def test_every_composed_config_is_upstreams_own_by_digest(rows):
    for case in corpus().cases:
        assert rows[case.name]["resolved_sha256"] == case.resolved_sha256, case.name
        assert (case.resolved_sha256 is None) == (case.expected == "does_not_compose")


@pytest.mark.parametrize("name", OFFICIAL)
def test_an_official_launch_is_packaged_with_the_overrides_of_its_script(name):
    read = json.loads((HERE / "launches" / f"{name}.json").read_text(encoding="utf-8"))
    launch = sources.launch(name)
    assert list(launch.overrides) == read["overrides"]
    assert (launch.source_path, launch.source_sha256) == (read["script"], read["script_sha256"])
    assert (launch.verl, launch.commit) == (read["verl"], read["commit"])


def test_the_digest_is_that_of_hydras_own_composition():
    case = next(one for one in corpus().cases if one.name == "grpo_shuffle")
    with initialize_config_dir(str(upstream.tree("0.9.0", upstream.quiet)), version_base=None):
        config = compose("ppo_trainer", overrides=list(case.overrides))
    plain = OmegaConf.to_container(config, resolve=True)
    assert sources.config_sha256(dict(flat(plain))) == case.resolved_sha256


def test_an_official_launch_is_compiled_by_its_name():
    compiled = compile_launch("launch:ppo", ["trainer.total_training_steps=2"])
    assert compiled.status == "accepted"
    assert compiled.execution["missing"] == ["model", "train", "reward", "validation"]


def test_each_leaf_is_in_one_class_and_each_stated_one_has_a_reason(rows):
    for row in rows.values():
        if row["leaves"] is not None:
            assert sum(row["classes"].values()) == row["leaves"] == 855
            assert all(stated["reason"] for stated in row["stated"])
            fields = {text.partition("=")[0] for text in row["overrides"]}
            assert fields == {stated["field"] for stated in row["stated"]}


def test_rejections_say_what_to_change(rows):
    rejected = {name: row["problems"] for name, row in rows.items() if row["status"] != "accepted"}
    assert {name: [one["field"] for one in problems] for name, problems in rejected.items()} == {
        "grpo_group_filter_without_metric": ["algorithm.filter_groups.metric"],
        "ppo_unregistered_loss": ["actor_rollout_ref.actor.policy_loss.loss_mode"],
        "grpo_sweep": ["actor_rollout_ref.actor.optim.lr"],
        "grpo_unresolved_reference": ["data.max_prompt_length"],
    }
    assert all(one["fix"] for problems in rejected.values() for one in problems)


def test_fields_that_nothing_reads_are_accepted_with_a_warning_each(rows):
    row = rows["grpo_no_op_fields"]
    fields = [text.partition("=")[0] for text in row["added_overrides"]]
    assert [field for field in fields if not any(field in one for one in row["warnings"])] == []


def test_the_readme_of_dr_grpo_is_named_with_its_section(rows):
    readme = rows["dr_grpo"]["readme"]
    assert readme["section"] == "## Dr. GRPO"
    assert rows["dr_grpo"]["overrides"][-3:] == readme["overrides"]
    assert rows["dr_grpo"]["source_path"] == rows["grpo"]["source_path"]


def test_earlier_profiles_keep_rejecting_what_they_never_took(computed):
    resolved = computed["earlier"]["verl-rl-v0.9-single-gpu-v4"]
    assert (resolved["cases"], resolved["accepted"], resolved["rejected"]) == (12, 9, 3)
    subset = computed["earlier"]["verl-rl-v0.9-single-gpu-v3"]
    same = ("cases", "executable", "rejected", "sources")
    assert {key: subset["ours"][key] for key in same} == {
        key: subset["published"][key] for key in same
    }
    assert (subset["published"]["unimplemented"], subset["published"]["lowered"]) == (15, 84)


SCRIPT = """#!/usr/bin/env bash
set -x
SIZE=${SIZE:-8}
ACTOR=(
    actor_rollout_ref.actor.optim.lr=1e-6
)
python3 -m verl.trainer.main_ppo \\
    data.train_files=$HOME/train.parquet \\
    data.train_batch_size=$SIZE \\
    "${ACTOR[@]}" \\
    trainer.experiment_name=run_$(date +%Y%m%d) $@
"""
README = "# Launches\n\n## Mine\n\nAdd `algorithm.gamma=0.5`.\n\n## Others\n\n`algorithm.lam=0.5`\n"
OVERRIDES = (
    "data.train_files=/home/user/train.parquet",
    "data.train_batch_size=8",
    "actor_rollout_ref.actor.optim.lr=1e-6",
    "trainer.experiment_name=run_19700101_0000",
)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A tree with a script of ours where upstream has its GRPO script."""
    folder = tmp_path / "examples" / "grpo_trainer"
    folder.mkdir(parents=True)
    (folder / "run_qwen3_8b_fsdp.sh").write_text(SCRIPT, encoding="utf-8")
    (folder / "README.md").write_text(README, encoding="utf-8")
    return tmp_path


@pytest.fixture
def case() -> Case:
    grpo = next(one for one in corpus().cases if one.name == "grpo")
    return replace(grpo, overrides=OVERRIDES)


def test_a_script_of_a_checkout_is_read_again_to_the_same_overrides(checkout, case):
    (read,) = reread([case], checkout)
    assert (read.case, read.differences) == ("grpo", ())
    assert not read.is_same_file


def test_other_overrides_in_a_checkout_are_named(checkout, case):
    changed = replace(case, overrides=(*OVERRIDES[:1], "data.train_batch_size=16", *OVERRIDES[2:]))
    (read,) = reread([changed], checkout)
    assert read.differences == (
        "override 2 is data.train_batch_size=8, and data.train_batch_size=16 in the corpus",
    )


@pytest.mark.parametrize(
    ("section", "override", "differences"),
    [
        ("## Mine", "algorithm.gamma=0.5", 0),
        ("## Mine", "algorithm.lam=0.5", 1),
        ("## Nothing", "algorithm.gamma=0.5", 1),
    ],
)
def test_overrides_of_a_readme_stand_in_its_section(checkout, case, section, override, differences):
    readme = Readme(
        path="examples/grpo_trainer/README.md",
        section=section,
        sha256=hashlib.sha256(README.encode()).hexdigest(),
        overrides=(override,),
    )
    reading = replace(case.reading, readme=readme)
    (read,) = reread([replace(case, overrides=(*OVERRIDES, override), reading=reading)], checkout)
    assert len(read.differences) == differences


def test_a_folder_without_the_scripts_is_no_checkout(tmp_path, case):
    with pytest.raises(WrongCall, match="examples included"):
        reread([case], tmp_path)
