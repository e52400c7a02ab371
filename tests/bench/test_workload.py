"""Workloads: documents that are valid, what the compiler is told, and what their digest covers."""

from pathlib import Path
from typing import Any

import pytest

from miniverl.bench.comparability import sha256_of
from miniverl.bench.document import load
from miniverl.bench.fetch import fetch
from miniverl.bench.pin import is_light
from miniverl.bench.workload import compile_arguments, extended, names, parse, workload
from miniverl.compiler.lower import compile_launch
from miniverl.compiler.upstream import quiet
from miniverl.engine.problem import WrongCall

pytestmark = pytest.mark.slow

FOLDERS = {"smollm2-135m-instruct": Path("/model"), "chain-sum": Path("/rows")}
DOCUMENTS = Path(__file__).parents[2] / "bench" / "workloads"


@pytest.fixture
def plain() -> dict[str, Any]:
    return load(DOCUMENTS / "smollm2-grpo.yaml")


def _problems(plain: dict[str, Any]) -> dict[str, str]:
    with pytest.raises(WrongCall) as caught:
        parse(plain, "mine.yaml")
    assert {problem.origin for problem in caught.value.problems} == {"mine.yaml"}
    return {problem.field: problem.reason for problem in caught.value.problems}


def _state(plain: dict[str, Any], setting: str) -> None:
    field = setting.partition("=")[0]
    kept = [one for one in plain["overrides"] if not one["set"].startswith(f"{field}=")]
    plain["overrides"] = [*kept, {"set": setting, "why": "a test"}]


def test_every_document_is_valid_and_named_as_its_file() -> None:
    assert names() == [
        "qwen3-0.6b-grpo",
        "qwen3-0.6b-grpo-shape",
        "qwen3-0.6b-opd-k1",
        "qwen3-0.6b-opd-k1-shape",
        "qwen3-0.6b-shape-grpo",
        "smollm2-dr-grpo",
        "smollm2-gpg",
        "smollm2-grpo",
        "smollm2-grpo-ci",
        "smollm2-grpo-learn",
        "smollm2-grpo-nf4",
        "smollm2-grpo-passk",
        "smollm2-grpo-reward-model",
        "smollm2-opd-k1",
        "smollm2-opd-nf4",
        "smollm2-opd-topk",
        "smollm2-opd-two-teachers",
        "smollm2-opo",
        "smollm2-ppo",
        "smollm2-reinforce-plus-plus",
        "smollm2-reinforce-plus-plus-baseline",
        "smollm2-rloo",
        "tiny-grpo",
        "tiny-grpo-nf4",
        "tiny-opd-k1",
    ]
    assert [workload(name).name for name in names()] == names()


def test_what_is_fetched_without_being_named_needs_no_hub_and_no_gigabytes() -> None:
    heavy = {name for name in names() if not all(map(is_light, workload(name).pins))}
    assert heavy == {name for name in names() if name.startswith("qwen3-0.6b")}


@pytest.mark.parametrize(
    "name", [name for name in names() if all(map(is_light, workload(name).pins))]
)
def test_the_compiler_accepts_the_launch_with_every_override(name: str) -> None:
    chosen = workload(name)
    arguments = compile_arguments(chosen, 7, fetch(chosen.pins, quiet), "float32")
    compiled = compile_launch(
        arguments.source,
        arguments.overrides,
        profile=arguments.profile,
        bindings=arguments.bindings,
    )
    assert (compiled.status, compiled.problems) == ("accepted", ())
    assert compiled.recipe is not None
    assert compiled.recipe.steps.num_steps == chosen.num_steps
    seeds = compiled.recipe.seeds
    has_seed_of_sampling = "actor_rollout_ref.rollout.seed" in chosen.seed_overrides
    assert (seeds.data, seeds.parameters) == (7, 7)
    assert seeds.sampling == (7 if has_seed_of_sampling else 0)
    stated = [override.key for override in arguments.overrides]
    origins = {finding.field: finding.origin for finding in compiled.findings}
    assert len(set(stated)) == len(stated)
    assert all(f"workload {name}" in origins[field] for field in stated)


def test_the_default_workload_has_the_published_size(plain: dict[str, Any]) -> None:
    settings = dict(one["set"].split("=", 1) for one in plain["overrides"])
    expected = {
        "data.train_batch_size": "4",
        "actor_rollout_ref.rollout.n": "4",
        "data.max_response_length": "32",
        "actor_rollout_ref.model.lora_rank": "16",
        "actor_rollout_ref.actor.optim.lr": "5e-4",
        "trainer.total_training_steps": "8",
    }
    assert expected.items() <= settings.items()
    assert workload("smollm2-grpo").interrupt_after_update == 4


def test_inputs_are_bound_by_the_folders_of_their_pins() -> None:
    chosen = workload("smollm2-grpo-learn")
    assert chosen.pins == ("smollm2-135m-instruct", "chain-sum")
    assert compile_arguments(chosen, None, FOLDERS, "float32").bindings == (
        "model=/model",
        "train=/rows/train.parquet",
        "validation=/rows/validation.parquet",
        "reward=last_number",
        "compute_dtype=float32",
    )


def test_a_workload_without_validation_binds_none() -> None:
    assert (
        "validation=none"
        in compile_arguments(workload("smollm2-grpo"), 1, FOLDERS, "float32").bindings
    )


def test_the_seed_of_the_call_replaces_the_workloads_own() -> None:
    chosen = workload("smollm2-grpo")
    own = compile_arguments(chosen, None, FOLDERS, "float32").overrides
    other = compile_arguments(chosen, 5, FOLDERS, "float32").overrides
    changed = [(a.text, b.text) for a, b in zip(own, other, strict=True) if a != b]
    assert changed == [(f"{field}=1", f"{field}=5") for field in chosen.seed_overrides]


def test_words_for_people_do_not_change_the_digest(plain: dict[str, Any]) -> None:
    before = parse(plain, "mine.yaml").sha256
    plain["title"] = "another title"
    plain["overrides"][0]["why"] = "another reason"
    assert parse(plain, "mine.yaml").sha256 == before


@pytest.mark.parametrize(
    ("field", "value"), [("version", 2), ("warmup_steps", 2), ("interrupt_after_update", 5)]
)
def test_what_is_computed_changes_the_digest(plain: dict[str, Any], field: str, value: int) -> None:
    before = parse(plain, "mine.yaml").sha256
    assert parse({**plain, field: value}, "mine.yaml").sha256 != before


def test_another_override_changes_the_digest(plain: dict[str, Any]) -> None:
    before = parse(plain, "mine.yaml").sha256
    _state(plain, "actor_rollout_ref.rollout.n=8")
    assert parse(plain, "mine.yaml").sha256 != before


def test_all_ill_formed_fields_are_told_at_once(plain: dict[str, Any]) -> None:
    plain["launches"] = "five"
    plain["bindings"]["compute_dtype"] = "float8"
    plain["contrakt"] = plain.pop("contract")
    reasons = _problems(plain)
    assert set(reasons) == {
        "workload.bindings.compute_dtype",
        "workload.contract",
        "workload.contrakt",
        "workload.launches",
    }
    assert reasons["workload.contract"] == "missing field"


def test_overrides_are_stated_once_and_with_a_reason(plain: dict[str, Any]) -> None:
    plain["overrides"] += [
        {"set": "data.train_batch_size=8", "why": "again"},
        {"set": "data.seed=3", "why": "beside seed_overrides"},
        {"set": "trainer.test_freq", "why": "no value"},
        {"set": "trainer.balance_batch=False", "why": " "},
    ]
    first = len(plain["overrides"]) - 4
    assert _problems(plain) == {
        f"workload.overrides.{first}.set": "data.train_batch_size is set twice",
        f"workload.overrides.{first + 1}.set": "data.seed is set twice",
        f"workload.overrides.{first + 2}.set": "trainer.test_freq is set twice",
        f"workload.overrides.{first + 3}.why": "expected a reason",
    }


def test_bindings_name_pins_of_the_right_kind(plain: dict[str, Any]) -> None:
    plain["bindings"] |= {
        "model": "chain-sum",
        "train": "chain-sum/test",
        "validation": "chain-sum",
    }
    assert set(_problems(plain)) == {
        "workload.bindings.model",
        "workload.bindings.train",
        "workload.bindings.validation",
    }


def test_validating_on_the_training_rows_is_refused(plain: dict[str, Any]) -> None:
    plain["bindings"]["validation"] = plain["bindings"]["train"]
    assert _problems(plain) == {"workload.bindings.validation": "it is the training split"}


def test_kill_and_warm_up_lie_inside_the_run(plain: dict[str, Any]) -> None:
    plain |= {"warmup_steps": 8, "interrupt_after_update": 8}
    assert _problems(plain) == {
        "workload.warmup_steps": "expected 0 to 7",
        "workload.interrupt_after_update": "expected 1 to 7",
    }


def test_a_resume_check_needs_the_update_to_kill_at(plain: dict[str, Any]) -> None:
    plain["interrupt_after_update"] = None
    assert set(_problems(plain)) == {"workload.interrupt_after_update"}


def test_a_run_of_unknown_length_is_refused(plain: dict[str, Any]) -> None:
    plain["overrides"] = [
        one for one in plain["overrides"] if "total_training_steps" not in one["set"]
    ]
    assert set(_problems(plain)) == {"workload.overrides"}


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(WrongCall, match="Did you mean smollm2-grpo-ci"):
        workload("smollm2-grpo-ic")


def test_a_document_that_extends_another_states_what_differs() -> None:
    base = {
        "name": "base",
        "overrides": [{"set": "a=1", "why": "one"}, {"set": "b=2", "why": "two"}],
        "bindings": {"model": "m", "validation": None},
        "seed": 1,
    }
    plain = {
        "name": "other",
        "overrides": [{"set": "c=3", "why": "three"}, {"set": "a=7", "why": "seven"}],
        "bindings": {"validation": "v"},
    }
    assert extended(base, plain) == {
        "name": "other",
        "overrides": [
            {"set": "a=7", "why": "seven"},
            {"set": "b=2", "why": "two"},
            {"set": "c=3", "why": "three"},
        ],
        "bindings": {"model": "m", "validation": "v"},
        "seed": 1,
    }


def test_each_of_several_teachers_is_bound_by_its_key() -> None:
    chosen = workload("smollm2-opd-two-teachers")
    assert chosen.pins == (
        "smollm2-135m-20-layers",
        "smollm2-135m-instruct",
        "smollm2-135m-25-layers",
        "sums-and-products",
    )
    folders = {name: Path("cache") / name for name in chosen.pins}
    bound = compile_arguments(chosen, None, folders, "float32").bindings
    assert bound[1:3] == (
        "teacher.reasoning-gym/chain_sum=cache/smollm2-135m-instruct",
        "teacher.reasoning-gym/products=cache/smollm2-135m-25-layers",
    )


def test_a_workload_has_one_teacher_or_several_by_key(plain: dict[str, Any]) -> None:
    plain["bindings"]["teacher"] = "smollm2-135m-instruct"
    plain["bindings"]["teachers"] = {"sums": "smollm2-135m-instruct"}
    assert set(_problems(plain)) == {"workload.bindings.teachers"}


def test_what_a_workload_leaves_out_is_not_in_its_digest(plain: dict[str, Any]) -> None:
    """So a binding that comes with a later version moves no digest, and older records stay comparable."""
    digest = parse(plain, "mine.yaml").sha256
    assert parse({**plain, "bindings": plain["bindings"] | {"teachers": None}}, "").sha256 == digest
    taught = {**plain, "bindings": plain["bindings"] | {"teacher": "smollm2-135m-instruct"}}
    assert parse(taught, "").sha256 != digest
    stated = {name: value for name, value in plain.items() if name != "title"}
    stated["overrides"] = [one["set"] for one in plain["overrides"]]
    assert digest == sha256_of(stated)


def test_what_is_computed_in_is_left_to_the_device_by_auto_alone() -> None:
    folders = {name: Path(name) for name in workload("tiny-opd-k1").pins}
    auto = compile_arguments(workload("tiny-opd-k1"), None, folders, "bfloat16")
    assert "compute_dtype=bfloat16" in auto.bindings
    stated = compile_arguments(workload("smollm2-grpo"), None, FOLDERS, "bfloat16")
    assert "compute_dtype=float32" in stated.bindings
