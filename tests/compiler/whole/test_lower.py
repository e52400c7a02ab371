"""From the judged launch to a recipe: what is accepted, what is missing, and what every change does."""

import subprocess
import sys
from dataclasses import replace

import pytest

from miniverl.compiler import profiles
from miniverl.compiler.lower import (
    Compiled,
    compile_launch,
    compile_source,
)
from miniverl.compiler.source import numbered
from miniverl.engine import recipe as recipes
from miniverl.engine.algorithm import Advantage, KlLoss
from miniverl.engine.problem import Refused, WrongCall

pytestmark = pytest.mark.slow

OPTIM = "actor_rollout_ref.actor.optim"
STEPS = "trainer.total_training_steps"


def test_the_official_grpo_launch_is_accepted_and_names_what_is_not_bound(compiled, unbound):
    result = compiled(bindings=unbound)
    assert result.status == "accepted"
    assert result.execution == {
        "status": "requires_bindings",
        "missing": ["model", "train", "reward", "validation"],
    }
    assert result.recipe is None
    assert (result.problems, result.warnings) == ((), ())
    assert len(result.findings) == 855


def test_bound_the_official_launch_becomes_a_recipe(compiled):
    recipe = compiled().recipe
    assert recipe.data.prompts_per_step == 1024
    assert (recipe.data.max_prompt_tokens, recipe.rollout.max_response_tokens) == (1024, 2048)
    assert (recipe.data.train_sha256, recipe.data.validation_sha256) == ("b" * 64, "c" * 64)
    assert (recipe.data.shuffles, recipe.data.first_permutation) == (True, 2)
    assert recipe.seeds.data == 67280421310721
    assert recipe.policy.weights_sha256 == "a" * 64
    assert recipe.policy.lora is None
    assert recipe.rollout.samples_per_prompt == 5
    assert recipe.advantage == Advantage(
        estimator="grpo", divides_by_std=True, gamma=None, gae_lambda=None
    )
    assert recipe.kl_loss == KlLoss(estimator="k3", coefficient=0.001)
    assert recipe.optimizer.learning_rate == 1e-6
    assert recipe.update.prompts_per_mini_batch == 256
    assert recipe.validation is not None
    assert (recipe.validation.before_training, recipe.validation.every_steps) == (True, 5)
    assert (recipe.steps.num_steps, recipe.steps.num_epochs) == (None, 15)
    assert recipe.steps.checkpoint_every == 20
    assert recipe.learning_rate_schedule.total_steps == 4 * 15
    assert recipes.loads(recipes.dumps(recipe), "a test") == recipe


def test_compiling_twice_gives_equal_recipes_and_reports(compiled):
    assert compiled().recipe == compiled().recipe
    assert compiled().report == compiled().report


def test_stated_steps_bound_the_run_and_its_schedule(compiled):
    recipe = compiled({STEPS: 8}).recipe
    assert (recipe.steps.num_steps, recipe.learning_rate_schedule.total_steps) == (8, 8)


def test_a_schedule_over_an_unknown_number_of_steps_asks_for_it(compiled):
    result = compiled({f"{OPTIM}.lr_scheduler_type": "cosine"})
    assert result.status == "needs_user_input"
    assert [problem.field for problem in result.problems] == [STEPS]
    assert result.report["unresolved_fields"] == [STEPS]
    assert compiled({f"{OPTIM}.lr_warmup_steps_ratio": 0.1}).status == "needs_user_input"
    assert compiled({f"{OPTIM}.lr_scheduler_type": "cosine", STEPS: 8}).status == "accepted"


def test_without_a_length_filter_the_rows_give_the_number_of_steps(compiled):
    result = compiled(
        {"data.filter_overlong_prompts": False, f"{OPTIM}.lr_warmup_steps_ratio": 0.1}
    )
    assert result.status == "accepted"
    assert result.recipe.learning_rate_schedule.total_steps == 60
    assert result.recipe.learning_rate_schedule.warmup_steps == 6


def test_all_problems_are_reported_at_once_with_field_origin_reason_and_fix(compiled):
    result = compiled(
        {"algorithm.adv_estimator": "remax", "trainer.use_v1": False, "data.nonsense": 1}
    )
    assert result.status == "rejected"
    assert result.execution == {"status": "not_assessed"}
    assert result.recipe is None
    assert {problem.field for problem in result.problems} == {
        "algorithm.adv_estimator",
        "data.nonsense",
        "trainer.use_v1",
    }
    assert all(problem.origin == "a test" for problem in result.problems)
    assert all(problem.reason and problem.fix for problem in result.problems)


def test_a_leaf_that_no_rule_covers_is_refused_with_the_nearest_name(compiled):
    (problem,) = compiled({"data.max_prompt_lenght": 64}).problems
    assert problem.reason == "no rule covers this field"
    assert problem.fix == "Did you mean data.max_prompt_length?"


def test_a_leaf_that_was_taken_away_is_refused(compiled):
    (problem,) = compiled(without=("trainer.test_freq",)).problems
    assert (problem.field, problem.fix) == ("trainer.test_freq", "Drop that override")


def test_another_model_engine_is_one_problem_and_not_hundreds(compiled):
    result = compiled(
        {"model_engine": "megatron", "actor_rollout_ref.actor.megatron.seed": 42},
        without=("actor_rollout_ref.actor.grad_clip",),
    )
    assert [problem.field for problem in result.problems] == ["model_engine"]


def test_rows_that_are_bound_to_none_need_no_validation(compiled, bound):
    bindings = replace(bound, validation=None, without_validation=True)
    result = compiled(bindings=bindings)
    assert result.execution == {"status": "executable"}
    assert result.recipe.validation is None
    assert result.recipe.data.validation_sha256 is None


def test_a_launch_without_validation_files_validates_nothing(compiled, bound):
    result = compiled({"data.val_files": []}, bindings=replace(bound, validation=None))
    assert result.execution == {"status": "executable"}
    assert result.recipe.validation is None


def test_a_launch_that_never_validates_needs_no_rows_for_it(compiled, bound):
    never = {"trainer.test_freq": -1, "trainer.val_before_train": False}
    assert compiled(never).recipe.data.validation_sha256 is None
    result = compiled(never, bindings=replace(bound, validation=None))
    assert result.execution == {"status": "executable"}
    assert result.recipe.validation is None


def test_equal_content_gives_equal_recipes_wherever_it_lies(compiled, bound):
    elsewhere = replace(bound, model=replace(bound.model, path=bound.model.path / "elsewhere"))
    assert compiled(bindings=elsewhere).recipe.sha256 == compiled().recipe.sha256
    other = replace(bound, model=replace(bound.model, sha256="d" * 64))
    assert compiled(bindings=other).recipe.sha256 != compiled().recipe.sha256


def compile_grpo(*overrides: str) -> Compiled:
    return compile_launch("launch:grpo", overrides)


def test_what_is_stated_on_top_of_a_launch_is_a_row_of_the_report():
    result = compile_grpo(f"{OPTIM}.lr=5e-4", "data.seed=1", "trainer.save_freq=20")
    rows = [row for row in result.report["local_lowering"] if row["kind"] == "override"]
    assert [(row["source_field"], row["source_value"], row["local_value"]) for row in rows] == [
        (f"{OPTIM}.lr", 1e-6, 5e-4),
        ("data.seed", None, 1),
    ]
    origins = {
        row["upstream_field"]: row["origin"] for row in result.report["field_classification"]
    }
    assert origins["data.seed"] == "override 2: data.seed=1"
    assert origins["data.train_batch_size"] == (
        "launches/grpo.yaml override 5: data.train_batch_size=1024"
    )


def test_a_users_own_overrides_are_the_launch_itself(grpo):
    plain = compile_launch("hydra:ppo_trainer", ["algorithm.adv_estimator=grpo"])
    assert not [row for row in plain.report["local_lowering"] if row["kind"] == "override"]
    assert {problem.field for problem in plain.problems} == {
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu",
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu",
        "actor_rollout_ref.rollout.name",
    }


def test_a_call_that_is_wrong_is_not_compiled():
    with pytest.raises(WrongCall, match="not a source that can be compiled"):
        compile_launch("ppo_trainer", [])
    with pytest.raises(WrongCall, match="covers ppo_trainer only"):
        compile_launch("hydra:ppo_megatron_trainer", [])
    with pytest.raises(WrongCall, match=r"Did you mean verl-rl-v0\.9-single-gpu-v5\?"):
        compile_launch("launch:grpo", [], profile="verl-rl-v0.9-single-gpu-v55")
    with pytest.raises(WrongCall, match=r"Did you mean model\?"):
        compile_launch("launch:grpo", [], bindings=["modle=x"])


def test_a_launch_that_does_not_compose_is_refused():
    with pytest.raises(Refused, match=r"algorithm\.adv_estimtor"):
        compile_launch(
            "launch:grpo", numbered(["algorithm.adv_estimtor=rloo"], "workload override")
        )


def test_a_compiled_source_says_where_its_files_lie(change, bound):
    paths = compile_source(change({}), bound, profiles.named(None)).paths
    assert {name: str(path) for name, path in paths.items()} == {
        "model": "bound/model",
        "train": "bound/train.parquet",
        "validation": "bound/test.parquet",
    }


def test_compiling_loads_neither_torch_nor_arrow_nor_hydra():
    program = (
        "import sys\n"
        "from miniverl.compiler.lower import compile_launch\n"
        "compile_launch('launch:grpo', [])\n"
        "print(sorted({'torch', 'pyarrow', 'hydra', 'transformers'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
