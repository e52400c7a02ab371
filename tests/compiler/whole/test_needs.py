"""What a launch asks for besides itself: critics and teachers bound, and numbers that it leaves open."""

from dataclasses import replace
from pathlib import Path

import pytest

from miniverl.compiler.bindings import Bindings, Model, lowering_rows, parse
from miniverl.engine.problem import WrongCall

POLICY = "Qwen/Qwen3-8B"
PPO = {"algorithm.adv_estimator": "gae", "critic.model.path": "another/model"}
MODELS = "distillation.teacher_models"
TEACHERS = {
    "distillation.enabled": True,
    "distillation.nnodes": 1,
    "distillation.n_gpus_per_node": 4,
    **{
        f"{MODELS}.{name}.{leaf}": value
        for name, key in (("one", "sums"), ("two", "words"))
        for leaf, value in (
            ("key", key),
            ("model_path", name),
            ("num_replicas", 1),
            ("inference.name", "vllm"),
            ("inference.tensor_model_parallel_size", 2),
        )
    },
}


def model(letter: str) -> Model:
    return Model(path=Path(f"bound/{letter}"), sha256=letter * 64)


@pytest.fixture
def with_critic(bound: Bindings) -> Bindings:
    return replace(bound, critic=model("d"))


def test_a_critic_of_another_path_is_bound_by_itself(compiled, bound, with_critic):
    assert compiled(PPO).execution["missing"] == ["critic"]
    result = compiled(PPO, bindings=with_critic)
    assert result.recipe.critic.weights_sha256 == "d" * 64
    assert result.paths["critic"] == Path("bound/d")
    assert "critic" in result.recipe.inputs


def test_a_critic_of_the_policys_path_is_the_bound_model_unless_it_is_bound(
    compiled, bound, with_critic
):
    same = PPO | {"critic.model.path": POLICY}
    result = compiled(same)
    assert result.recipe.critic.weights_sha256 == bound.model.sha256
    assert result.paths["critic"] == bound.model.path
    assert compiled(same, bindings=with_critic).recipe.critic.weights_sha256 == "d" * 64
    assert not [one for one in compiled(same, bindings=with_critic).warnings if "critic" in one]


def test_upstreams_default_critic_is_never_taken_in_silence(compiled):
    result = compiled({"algorithm.adv_estimator": "gae"})
    assert result.status == "needs_user_input"
    (problem,) = result.problems
    assert (problem.field, problem.fix) == (
        "critic.model.path",
        f"State critic.model.path, such as critic.model.path={POLICY}",
    )


def test_a_critic_on_a_cosine_needs_the_number_of_steps(compiled, with_critic):
    cosine = PPO | {"critic.optim.lr_scheduler_type": "cosine"}
    result = compiled(cosine, bindings=with_critic)
    assert [problem.field for problem in result.problems] == ["trainer.total_training_steps"]
    stated = cosine | {"trainer.total_training_steps": 8}
    critic = compiled(stated, bindings=with_critic).recipe.critic
    assert critic.learning_rate_schedule.total_steps == 8


def test_each_of_several_teachers_is_bound_by_its_key(compiled, bound):
    assert compiled(TEACHERS).execution["missing"] == ["teacher.sums", "teacher.words"]
    both = replace(bound, teachers={"sums": model("e"), "words": model("f")})
    result = compiled(TEACHERS, bindings=both)
    teachers = result.recipe.distillation.teachers
    assert [(one.key, one.weights_sha256[0]) for one in teachers] == [("sums", "e"), ("words", "f")]
    assert result.paths["teacher.words"] == Path("bound/f")
    lowered = result.report["local_lowering"]
    rows = {row["source_field"]: row for row in lowered if row["kind"] == "binding"}
    assert rows[f"{MODELS}.two.model_path"]["local_value"] == {"sha256": "f" * 64}


def test_a_model_bound_to_a_role_that_is_not_there_is_told(compiled, bound):
    surplus = replace(bound, critic=model("d"), teachers={None: model("e")})
    assert compiled(bindings=surplus).warnings[-2:] == (
        "critic is bound, and the launch has none of that name: nothing reads it",
        "teacher is bound, and the launch has none of that name: nothing reads it",
    )


def test_the_bindings_of_critic_and_teacher_are_rows(grpo, bound):
    all_bound = replace(bound, critic=model("d"), teachers={None: model("e")})
    fields = {row["source_field"] for row in lowering_rows(all_bound, grpo.leaves)}
    assert {"critic.model.path", f"{MODELS}.teacher_model.model_path"} <= fields


def test_a_teacher_is_bound_by_its_key_and_nothing_else_has_one(tmp_path):
    with pytest.raises(WrongCall) as wrong:
        parse([f"teacher.sums={tmp_path}", "critic.sums=x", "teacher.=x"])
    told = [(problem.field, problem.reason) for problem in wrong.value.problems]
    assert told == [
        ("teacher.sums", "no folder with a config.json"),
        ("critic.sums", "there is no such binding"),
        ("teacher.", "there is no such binding"),
    ]


def test_a_reward_model_takes_the_place_of_a_scorer(compiled, bound):
    section = "reward.reward_model"
    scored = {
        f"{section}.enable": True,
        f"{section}.model_path": "m",
        f"{section}.rollout.name": "vllm",
    }
    assert compiled(scored).execution["missing"] == ["reward_model"]
    result = compiled(scored, bindings=replace(bound, reward_model=model("d")))
    assert result.execution["status"] == "executable"
    assert result.recipe.reward.scorer == "reward_model"
    assert result.recipe.reward.model.weights_sha256 == "d" * 64
    assert result.paths["reward_model"] == Path("bound/d")
    told = [one for one in result.warnings if "nothing reads it" in one and "reward" in one]
    assert told == ["reward is bound, and the launch has none of that name: nothing reads it"]
