"""Weights of 4 bits by binding: what reaches the recipe, what the report says of it, and what is refused."""

import pytest

from miniverl.compiler.bindings import lowering_rows, parse
from miniverl.compiler.lower import compile_launch
from miniverl.engine.problem import WrongCall

pytestmark = pytest.mark.slow

LORA = (
    "actor_rollout_ref.model.lora_rank=8",
    "actor_rollout_ref.rollout.load_format=safetensors",
    "trainer.total_training_steps=4",
)
DISTILS = (
    "distillation.enabled=True",
    "distillation.nnodes=1",
    "distillation.n_gpus_per_node=2",
    "distillation.teacher_models.teacher_model.model_path=a/teacher",
)


def lowered(*bindings, overrides=LORA):
    return compile_launch("launch:grpo", overrides, bindings=bindings)


def test_without_a_binding_nothing_is_quantised():
    result = lowered()
    assert "quantization" not in result.lowered["policy"]
    assert "weights" not in result.lowered["rollout"]


def test_bindings_reach_the_recipe_a_row_and_a_warning():
    result = lowered("quantization=nf4", "rollout_weights=nf4")
    assert result.lowered["policy"]["quantization"] == "nf4"
    assert result.lowered["rollout"]["weights"] == "nf4"
    rows = {row["source_field"]: row for row in result.report["local_lowering"]}
    stored = rows["actor_rollout_ref.actor.fsdp_config.model_dtype"]
    assert (stored["kind"], stored["source_value"], stored["local_value"]) == (
        "binding",
        "fp32",
        "nf4",
    )
    assert rows["actor_rollout_ref.rollout.quantization"]["local_value"] == "nf4"
    told = [warning for warning in result.warnings if "4 bits" in warning]
    assert len(told) == 2
    assert all("other numbers" in warning for warning in told)


def test_teachers_are_quantised_alone():
    result = lowered("teacher_quantization=nf4", overrides=(*LORA, *DISTILS))
    assert [one["quantization"] for one in result.lowered["distillation"]["teachers"]] == ["nf4"]
    assert "quantization" not in result.lowered["policy"]


@pytest.mark.parametrize("name", ["teacher_quantization", "reward_model_quantization"])
def test_what_the_launch_does_not_have_is_bound_in_vain(name):
    assert any(
        warning.startswith(f"{name} is bound") and "nothing reads it" in warning
        for warning in lowered(f"{name}=nf4").warnings
    )


def test_none_is_what_unbound_is():
    bindings = parse(["quantization=none"])
    assert bindings.quantised == {}
    assert lowering_rows(bindings, {}) == []


def test_all_weights_cannot_be_trained_in_4_bits():
    result = lowered("quantization=nf4", overrides=LORA[2:])
    assert result.status == "rejected"
    (problem,) = result.problems
    assert problem.field == "actor_rollout_ref.model.lora_rank"
    assert "nothing would be trained" in problem.reason


def test_sampling_over_4_bits_needs_weights_of_4_bits():
    result = lowered("rollout_weights=nf4")
    assert result.status == "needs_user_input"
    (problem,) = result.problems
    assert "Bind quantization=nf4 too" in problem.fix


def test_another_format_is_unknown():
    with pytest.raises(WrongCall, match="Known: none, nf4"):
        parse(["quantization=int8"])
