"""`explain`: one leaf, as upstream ships it and as it is judged here."""

import pytest

from miniverl.compiler import source as sources
from miniverl.compiler.explain import explain, text
from miniverl.engine.problem import WrongCall

ACTOR = "actor_rollout_ref.actor"


def test_a_leaf_is_explained_by_default_class_reason_recipe_path_and_readers():
    explained = explain("data.seed")
    classes = {f"verl-rl-v0.9-single-gpu-v{number}": "exact" for number in range(1, 6)}
    assert explained == {
        "classes": classes,
        "classification": "exact",
        "counts_with": None,
        "default": None,
        "example": "data.seed=1",
        "field": "data.seed",
        "fix": None,
        "follows": None,
        "local_target": "seeds.data",
        "readers": ["verl/trainer/ppo/utils.py:160"],
        "reason": "null is torch's default seed, so that the order is the same in every run",
        "recipe_path": "seeds.data",
        "type": "null|int",
        "unit": None,
        "verl": "v0.9.0",
    }


def test_a_leaf_that_follows_another_says_so():
    assert explain("actor_rollout_ref.rollout.prompt_length")["follows"] == "data.max_prompt_length"


def test_a_leaf_that_nothing_reads_says_so():
    explained = explain("data.truncation")
    assert explained["readers"] == []
    assert "read by   nothing" in text(explained)


@pytest.mark.parametrize(
    ("field", "overrides", "classification"),
    [
        (f"{ACTOR}.kl_loss_coef", f"{ACTOR}.use_kl_loss=True", "exact"),
        (
            "algorithm.kl_ctrl.horizon",
            "algorithm.use_kl_in_reward=True algorithm.kl_ctrl.type=adaptive",
            "exact",
        ),
        (f"{ACTOR}.tau_pos", f"{ACTOR}.policy_loss.loss_mode=sapo", "exact"),
        (
            "critic.optim.min_lr_ratio",
            "critic.enable=True critic.optim.lr_scheduler_type=cosine",
            "exact",
        ),
        ("trainer.esi_redundant_time", None, None),
    ],
)
def test_a_leaf_that_a_switch_selects_says_which_and_what_it_then_means(
    field, overrides, classification
):
    explained = explain(field)
    counts = explained["counts_with"]
    assert (counts and counts["overrides"], counts and counts["classification"]) == (
        overrides,
        classification,
    )
    assert (f"  counts    with {overrides}, as " in text(explained)) == (overrides is not None)


def test_text_for_people_names_default_class_and_fix():
    field = "actor_rollout_ref.rollout.name"
    lines = text(explain(field)).splitlines()
    assert lines[0] == f"{field}  (verl v0.9.0)"
    assert lines[1].startswith("  default   ")
    assert lines[2].startswith("  here      unsupported: ")
    assert f"  fix       Set {field} to one of: vllm, sglang, trtllm" in lines


@pytest.mark.parametrize(
    ("field", "unit", "example"),
    [
        ("data.train_batch_size", "prompts", "1024"),
        ("actor_rollout_ref.rollout.n", "responses to each prompt", "1"),
        ("data.max_response_length", "tokens", "512"),
        ("data.shuffle", None, "False"),
        ("algorithm.adv_estimator", None, "grpo"),
        ("actor_rollout_ref.actor.optim.betas", None, "[0.9,0.999]"),
        ("actor_rollout_ref.actor.policy_loss.dro_beta", None, "1.0"),
    ],
)
def test_a_leaf_has_a_unit_and_an_override_that_hydra_takes(field, unit, example):
    explained = explain(field)
    assert (explained["unit"], explained["example"]) == (unit, f"{field}={example}")


def test_every_example_composes(grpo):
    examples = [explain(field)["example"] for field in sorted(grpo.defaults)[::40]]
    assert len(sources.compose("ppo_trainer", sources.numbered(examples), version="0.9.0").leaves)


def test_the_class_of_each_profile_of_the_release_is_told():
    classes = explain("critic.optim.lr")["classes"]
    assert classes["verl-rl-v0.9-single-gpu-v1"] == "not stated"
    assert set(classes) == {f"verl-rl-v0.9-single-gpu-v{number}" for number in range(1, 6)}
    older = explain("actor_rollout_ref.rollout.skip.enable", profile="verl-opd-v0.8-single-gpu-v1")
    assert older["verl"] == "v0.8.0"
    assert set(older["classes"]) == {
        "verl-opd-v0.8-single-gpu-v1",
        "verl-opd-v0.8-single-gpu-pg-k1-v1",
    }


def test_leaves_of_every_section_can_be_explained(grpo):
    for field in sorted(grpo.defaults)[::20]:
        assert text(explain(field)).startswith(field)


@pytest.mark.parametrize(
    ("field", "fix"),
    [
        ("rollout.n", "Did you mean actor_rollout_ref.rollout.n?"),
        ("data.sed", "Did you mean data.seed?"),
        ("zzz", "Give a dotted path such as actor_rollout_ref.rollout.n"),
        ("algorithm.kl_ctrl", "Ask for one of them, such as algorithm.kl_ctrl._target_"),
    ],
)
def test_what_is_no_leaf_is_a_wrong_call_with_the_nearest_name(field, fix):
    with pytest.raises(WrongCall) as wrong:
        explain(field)
    assert [problem.fix for problem in wrong.value.problems] == [fix]
