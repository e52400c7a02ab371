"""How advantages, KL in the reward, group filters and rollout correction are lowered."""

from typing import get_args

import pytest

from miniverl.engine.algorithm import Estimator
from miniverl.engine.bounds import ESTIMATOR_ARGUMENTS

CORRECTION = "algorithm.rollout_correction"
WEIGHTS = "rollout_correction.importance_weights"
KL = {"algorithm.use_kl_in_reward": True}
CONTROL = "algorithm.kl_ctrl"
FILTER = "algorithm.filter_groups"
ARGUMENTS = {"gamma": "gamma", "lam": "gae_lambda", "norm_adv_by_std_in_grpo": "divides_by_std"}


@pytest.mark.parametrize("name", get_args(Estimator))
def test_each_estimator_writes_what_it_reads_and_the_rest_is_informational(judge, name):
    judged = judge({"algorithm.adv_estimator": name, "actor_rollout_ref.rollout.n": 4})
    assert judged.written["advantage.estimator"] == name
    read = ESTIMATOR_ARGUMENTS.get(name, frozenset())
    for leaf, argument in ARGUMENTS.items():
        verdict = judged[f"algorithm.{leaf}"]
        assert (verdict.target == f"advantage.{argument}") == (argument in read)
        assert verdict.classification == ("exact" if argument in read else "informational_only")


@pytest.mark.parametrize("name", ["remax", "gdpo", "optimal_token_baseline", "grop", 3, None])
def test_an_estimator_that_the_pin_cannot_run_is_refused_at_once(judge, name):
    judged = judge({"algorithm.adv_estimator": name})
    assert judged.rejected == {"algorithm.adv_estimator"}
    assert judged["algorithm.adv_estimator"].classification == "unsupported"


def test_the_best_of_a_group_needs_a_second_one(judge):
    chosen = {"algorithm.adv_estimator": "grpo_passk"}
    assert judge(chosen | {"actor_rollout_ref.rollout.n": 1}).rejected == set(chosen)


def test_fixed_and_adaptive_kl_in_the_reward(judge):
    fixed = judge(KL | {f"{CONTROL}.kl_coef": 0.01, "algorithm.kl_penalty": "low_var_kl"}).written
    assert fixed["kl_reward.estimator"] == "k3"
    assert (fixed["kl_reward.coefficient"], fixed["kl_reward.adaptive"]) == (0.01, None)
    adaptive = judge(KL | {f"{CONTROL}.type": "adaptive", f"{CONTROL}.horizon": 50})
    assert adaptive.written["kl_reward.adaptive.horizon"] == 50
    assert adaptive.written["kl_reward.adaptive.target"] == 0.1
    assert "a resumed run goes on with the last one" in adaptive[f"{CONTROL}.type"].reason
    assert adaptive[f"{CONTROL}.type"].classification == "semantically_conformant"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("algorithm.kl_penalty", "full"),
        (f"{CONTROL}.type", "linear"),
        (f"{CONTROL}.kl_coef", None),
        (f"{CONTROL}.horizon", 0),
        (f"{CONTROL}.target_kl", 0),
    ],
)
def test_a_bad_control_of_the_kl_is_refused_where_it_is_read(judge, field, value):
    adaptive = KL | {f"{CONTROL}.type": "adaptive"}
    assert judge(adaptive | {field: value}).rejected == {field}
    assert judge({field: value}).rejected == set()


def test_kl_in_the_reward_and_in_the_loss_both_count_and_are_told(judge):
    judged = judge(KL | {"actor_rollout_ref.actor.use_kl_loss": True})
    assert "both on" in str(judged["algorithm.use_kl_in_reward"].warning)
    assert {"kl_reward.estimator", "kl_loss.estimator"} <= set(judged.written)


def test_a_group_filter_needs_a_metric_that_the_scorer_gives(judge):
    on = {f"{FILTER}.enable": True}
    assert judge(on).rejected == {f"{FILTER}.metric"}
    unknown = judge(on | {f"{FILTER}.metric": "seq_reward"})
    assert unknown[f"{FILTER}.metric"].fix == f"Set {FILTER}.metric to one of: acc"
    judged = judge(on | {f"{FILTER}.metric": "acc", f"{FILTER}.max_num_gen_batches": 3})
    assert judged.rejected == set()
    assert judged.written["group_filter.metric"] == "reward"
    assert judged.written["group_filter.batches_in_flight"] == 1
    assert judged[f"{FILTER}.max_num_gen_batches"].warning is not None


def test_a_group_filter_is_refused_with_a_reward_model_that_scores_too_late(judge):
    colocated = {
        f"{FILTER}.enable": True,
        f"{FILTER}.metric": "acc",
        "reward.reward_model.enable": True,
        "reward.reward_model.enable_resource_pool": False,
    }
    assert f"{FILTER}.enable" in judge(colocated).rejected


@pytest.mark.parametrize(
    ("threshold", "lower", "upper"), [(2.0, None, 2.0), ("3", None, 3.0), ("0.5_2", 0.5, 2.0)]
)
def test_bounds_of_importance_weights(judge, threshold, lower, upper):
    stated = {f"{CORRECTION}.rollout_is": "token", f"{CORRECTION}.rollout_is_threshold": threshold}
    assert judge(stated).written[WEIGHTS] == {
        "level": "token",
        "lower": lower,
        "upper": upper,
        "is_batch_normalized": False,
    }


def test_two_bounds_that_hydra_read_as_one_number_are_told(judge):
    field = f"{CORRECTION}.rollout_is_threshold"
    judged = judge({f"{CORRECTION}.rollout_is": "sequence", field: 12})
    assert "1_2" in str(judged[field].warning)


@pytest.mark.parametrize("threshold", [0, -1, "a_b", "2_1", "", None, True, [2]])
def test_a_bad_bound_of_importance_weights_is_refused(judge, threshold):
    field = f"{CORRECTION}.rollout_is_threshold"
    assert judge({f"{CORRECTION}.rollout_is": "token", field: threshold}).rejected == {field}


def test_rejections_by_several_statistics_each_have_their_bounds(judge):
    written = judge(
        {
            f"{CORRECTION}.rollout_rs": "token_k1,seq_mean_k3",
            f"{CORRECTION}.rollout_rs_threshold": "2,0.01",
        }
    ).written
    assert written["rollout_correction.rejections"] == [
        {"statistic": "token_k1", "lower": 0.5, "upper": 2.0},
        {"statistic": "seq_mean_k3", "lower": None, "upper": 0.01},
    ]
    assert written[WEIGHTS] is None
    assert written["rollout_correction.bypasses_scoring"] is False


@pytest.mark.parametrize(
    ("names", "threshold"),
    [
        ("token_k1", None),
        ("token_k2", "0.5_2"),
        ("token_k1,token_k2", "1,2,3"),
        ("token_k1", "0"),
        ("token_k1", 0.5),  # 1/0.5 lies above it
    ],
)
def test_a_bad_bound_of_a_rejection_is_refused(judge, names, threshold):
    field = f"{CORRECTION}.rollout_rs_threshold"
    assert judge({f"{CORRECTION}.rollout_rs": names, field: threshold}).rejected == {field}


def test_bypassing_takes_the_samplers_log_probabilities_and_nothing_else(judge):
    bypass = {f"{CORRECTION}.bypass_mode": True}
    assert judge(bypass).written["rollout_correction.bypasses_scoring"] is True
    assert judge(bypass | {f"{CORRECTION}.rollout_is": "token"}).rejected == {
        f"{CORRECTION}.rollout_is"
    }
    assert judge(bypass | {f"{CORRECTION}.loss_type": "reinforce"}).rejected == {
        f"{CORRECTION}.loss_type"
    }


@pytest.mark.parametrize(
    "stated", [{f"{CORRECTION}.bypass_mode": True}, {f"{CORRECTION}.rollout_is": "token"}]
)
def test_a_correction_needs_the_samplers_log_probabilities(judge, stated):
    field = "actor_rollout_ref.rollout.calculate_log_probs"
    assert judge(stated | {field: False}).rejected == {field}
    assert judge({field: False}).rejected == set()
