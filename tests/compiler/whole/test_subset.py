"""A documented subset with its `miniverl` block, against the published report on the same mapping."""

import copy
import hashlib
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from miniverl.compiler import mapping
from miniverl.compiler.leaf import nested
from miniverl.compiler.lower import Compiled, compile_file, compile_launch
from miniverl.compiler.upstream import quiet

DATA = Path(__file__).parents[1] / "data"
SUBSET = DATA / "subset.yaml"
PUBLISHED = json.loads((DATA / "published_import_report.json").read_text(encoding="utf-8"))
V1, V2, V3 = (f"verl-rl-v0.9-single-gpu-v{number}" for number in (1, 2, 3))
MINI_BATCH = "actor_rollout_ref.actor.ppo_mini_batch_size"
STATED = nested(mapping.read(SUBSET).leaves)


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    return dict(compile_launch(str(SUBSET), [], profile=V1).report)


@pytest.fixture
def compile_subset(tmp_path: Path, bound) -> Callable[..., Compiled]:
    """Compiles the subset, without quantisation, with leaves set by dotted path, or taken away (None)."""

    def compile_changed(
        profile: str = V1, reward: str | None = "last_number", **changes: Any
    ) -> Compiled:
        config = copy.deepcopy(STATED)
        changes = {"miniverl.actor.quantization": "none"} | changes.pop("changes", {})
        for field, value in changes.items():
            *sections, name = field.split(".")
            section = config
            for part in sections:
                section = section.setdefault(part, {})
            section[name] = value
            if value is None:
                del section[name]
        path = tmp_path / "subset.json"
        path.write_text(json.dumps(config, indent=1), encoding="utf-8")
        return compile_file(path, replace(bound, reward=reward), profile, quiet)

    return compile_changed


def rows(report: dict[str, Any]) -> dict[str, tuple[Any, ...]]:
    return {
        row["upstream_field"]: (row["classification"], row["local_target"], row["source_value"])
        for row in report["field_classification"]
    }


def test_the_56_rows_are_the_published_ones(report):
    assert rows(report) == rows(PUBLISHED)
    assert Counter(row["classification"] for row in report["field_classification"]) == {
        "exact": 36,
        "semantically_conformant": 11,
        "informational_only": 4,
        "distributed_only": 3,
        "locally_lowered": 2,
    }


def test_reasons_are_our_own_sentences(report):
    published = {row["reason"] for row in PUBLISHED["field_classification"]}
    assert published.isdisjoint(row["reason"] for row in report["field_classification"])


def test_the_report_has_every_published_key_and_the_three_departures(report):
    assert set(report) >= set(PUBLISHED)
    same = ("algorithm", "executable", "profile", "required_user_input", "schema_version")
    assert {key: report[key] for key in same} == {key: PUBLISHED[key] for key in same}
    same = ("source_verl", "status", "unresolved_fields", "unsupported_fields")
    assert {key: report[key] for key in same} == {key: PUBLISHED[key] for key in same}
    assert report["local_lowering"] == PUBLISHED["local_lowering"]


def test_the_digest_of_the_source_is_over_the_files_bytes(report):
    digest = "2c930ee982557a02817ac799660bea9ab46505e4a9ea42ec060d7cde730de772"
    assert report["source_config_sha256"] == digest
    assert hashlib.sha256(SUBSET.read_bytes()).hexdigest() == digest


def test_what_is_not_run_here_is_accepted_and_said_and_makes_no_recipe(compile_subset):
    field = "miniverl.actor.tokenizer_revision"
    result = compile_subset(changes={field: "0" * 40})
    assert (result.status, result.recipe) == ("accepted", None)
    assert result.execution["status"] == "not_assessed"
    assert result.execution["missing"] == []
    assert [one["field"] for one in result.execution["not_run"]] == [field]
    assert result.report["generated_recipe_sha256"] is None


@pytest.mark.parametrize("profile", [V1, V2, V3])
def test_weights_of_4_bits_are_run_and_no_departure_where_the_block_states_them(
    compile_subset, profile
):
    changes = {"miniverl.actor.quantization": "nf4", MINI_BATCH: 2 if profile == V3 else 8}
    result = compile_subset(profile=profile, changes=changes)
    assert result.execution["status"] == "executable"
    assert result.recipe.policy.quantization == "nf4"
    assert result.recipe.rollout.weights is None
    assert not any(row["local_value"] == "nf4" for row in result.report["local_lowering"])
    assert not any("quantization" in warning for warning in result.warnings)


def test_weights_of_4_bits_need_an_adapter(compile_subset):
    rank = "actor_rollout_ref.model.lora_rank"
    changes = {
        "miniverl.actor.quantization": "nf4",
        "miniverl.actor.lora_enabled": False,
        rank: None,
    }
    result = compile_subset(changes=changes)
    assert result.status == "rejected"
    assert [one.field for one in result.problems] == [rank]


def test_what_is_not_bound_is_required_and_never_replaced(compile_subset):
    result = compile_subset(reward=None, changes={"miniverl.reward": None})
    assert result.status == "accepted"
    assert result.execution == {"status": "requires_bindings", "missing": ["reward"]}


@pytest.mark.parametrize("provider", ["exact_answer", "last_number"])
def test_the_provider_scores_where_nothing_is_bound(compile_subset, provider):
    stated = compile_subset(reward=None, changes={"miniverl.reward.provider": provider})
    assert stated.recipe.reward.scorer == provider
    assert not [row for row in stated.report["local_lowering"] if "reward" in row["source_field"]]


def test_another_scorer_in_place_of_the_provider_is_a_row(compile_subset):
    (row,) = [
        row
        for row in compile_subset().report["local_lowering"]
        if row["source_field"] == "miniverl.reward.provider"
    ]
    assert (row["source_value"], row["local_value"]) == ("exact_answer", "last_number")


def test_the_recipe_holds_what_is_stated_and_what_upstream_ships(compile_subset):
    recipe = compile_subset().recipe
    assert (recipe.data.prompts_per_step, recipe.rollout.samples_per_prompt) == (2, 4)
    assert (recipe.data.max_prompt_tokens, recipe.rollout.max_response_tokens) == (128, 24)
    assert recipe.seeds.data == 17
    assert recipe.policy.lora.rank == 16
    assert recipe.policy.checkpoints_activations
    assert (recipe.optimizer.learning_rate, recipe.optimizer.weight_decay) == (1e-5, 0.01)
    assert recipe.update.prompts_per_mini_batch == 2  # 8 trajectories of 4 samples
    assert recipe.update.micro_batch_tokens == 128 + 24  # one trajectory
    assert (recipe.steps.num_steps, recipe.steps.checkpoint_every) == (2, 1)
    assert recipe.seeds.sampling == 42  # upstream's default
    assert recipe.kl_loss is None


def test_the_block_decides_adapter_batch_and_dtype(compile_subset):
    off = {"miniverl.actor.lora_enabled": False}
    assert compile_subset(changes=off).recipe.policy.lora is None
    wide = {"miniverl.update.trajectory_batch_size": 3}
    assert compile_subset(changes=wide).recipe.update.micro_batch_tokens == 3 * 152
    named = {"miniverl.actor.dtype": "float16"}
    assert compile_subset(changes=named).recipe.policy.compute_dtype == "float32"  # bound, and wins


def test_mini_batches_count_trajectories_in_the_first_profiles_with_a_warning(compile_subset):
    assert any("counts trajectories" in one for one in compile_subset(V1).warnings)
    assert compile_subset(V2).recipe == compile_subset(V1).recipe
    (problem,) = compile_subset(V1, changes={MINI_BATCH: 6}).problems
    assert problem.fix == f"Set {MINI_BATCH} to a multiple of 4 that divides 8"


def test_mini_batches_count_prompts_in_the_third_profile(compile_subset):
    assert [problem.field for problem in compile_subset(V3).problems] == [MINI_BATCH]
    result = compile_subset(V3, changes={MINI_BATCH: 2})
    assert result.recipe == compile_subset(V1).recipe
    assert not any("counts trajectories" in one for one in result.warnings)


def test_the_first_profile_has_no_kl_and_the_later_ones_have(compile_subset):
    kl = {
        "actor_rollout_ref.actor.use_kl_loss": True,
        "actor_rollout_ref.actor.kl_loss_coef": 0.01,
    }
    fields = {problem.field for problem in compile_subset(V1, changes=kl).problems}
    assert fields == set(kl)
    assert compile_subset(V2, changes=kl).recipe.kl_loss.coefficient == 0.01


@pytest.mark.parametrize("strategy", ["resident", "swap"])
def test_a_stated_placement_wins_over_hints_of_memory_and_says_so(compile_subset, strategy):
    result = compile_subset(changes={"miniverl.memory.strategy": strategy})
    by_field = {finding.field: finding for finding in result.findings}
    placement = by_field["miniverl.memory.strategy"]
    assert (placement.classification, placement.value) == ("exact", strategy)
    assert "wins over upstream's hints of offloading and memory" in placement.reason
    hint = by_field["actor_rollout_ref.rollout.gpu_memory_utilization"]
    assert hint.classification == "locally_lowered"
    assert result.recipe == compile_subset().recipe


@pytest.mark.parametrize(
    ("field", "value", "fix"),
    [
        ("data.max_prompt_lenght", 3, "Did you mean data.max_prompt_length?"),
        ("trainer.balance_batch", True, "compile the launch itself as hydra:"),
        ("reward_model.reward_manager", "naive", "set reward.reward_manager.name in its place"),
        ("miniverl.actor.quantisation", "nf4", "Did you mean miniverl.actor.quantization?"),
        ("miniverl.actor.quantization", "nf8", "Known: none, nf4"),
        ("miniverl.actor.revision", "main", "the 40 hexadecimal digits of a commit"),
        ("miniverl.reward.provider", "exact_answr", "Did you mean exact_answer?"),
    ],
)
def test_what_the_subset_does_not_document_is_refused(compile_subset, field, value, fix):
    problems = {one.field: one for one in compile_subset(changes={field: value}).problems}
    assert fix in problems[field].fix


def test_no_placeholder_of_upstreams_is_taken_for_an_answer(compile_subset):
    missing = {"data.train_files": None, "actor_rollout_ref.model.path": "<your model>"}
    result = compile_subset(changes=missing | {"data.val_files": None})
    assert result.status == "needs_user_input"
    assert [one.field for one in result.problems] == [
        "data.train_files",
        "data.val_files",
        "actor_rollout_ref.model.path",
    ]
    assert result.report["unresolved_fields"] == sorted(one.field for one in result.problems)
    assert result.recipe is None


def test_epochs_that_end_the_run_before_its_steps_are_warned_about(compile_subset):
    assert not any("total_epochs" in one for one in compile_subset().warnings)
    result = compile_subset(changes={"trainer.total_training_steps": 5000})
    (warning,) = (one for one in result.warnings if "total_epochs" in one)
    assert warning.startswith("trainer.total_epochs ends the run by step 2048; upstream then skips")
