"""How the policy's loss is lowered: clips, aggregation and the KL term."""

import pytest

ACTOR = "actor_rollout_ref.actor"
HORIZON = f"{ACTOR}.loss_scale_factor"


def test_clip_ratio_counts_only_for_a_side_without_a_clip_of_its_own(judge):
    both = judge({f"{ACTOR}.clip_ratio": 0.3})
    assert both.written["policy_loss.arguments.clip_low"] == 0.2
    assert both[f"{ACTOR}.clip_ratio"].warning is not None
    high_only = judge({f"{ACTOR}.clip_ratio": 0.3, f"{ACTOR}.clip_ratio_low": None})
    assert high_only.written["policy_loss.arguments.clip_low"] == 0.3
    assert high_only.written["policy_loss.arguments.clip_high"] == 0.2
    assert high_only[f"{ACTOR}.clip_ratio"].classification == "exact"


def test_a_clip_that_is_left_to_a_faulty_clip_ratio_is_rejected_at_its_source(judge):
    judged = judge({f"{ACTOR}.clip_ratio": "wide", f"{ACTOR}.clip_ratio_low": None})
    assert judged.rejected == {f"{ACTOR}.clip_ratio"}


@pytest.mark.parametrize(
    "mode", ["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean"]
)
def test_other_aggregations_have_no_horizon(judge, mode):
    written = judge({f"{ACTOR}.loss_agg_mode": mode, HORIZON: 7}).written
    assert written["policy_loss.aggregation.mode"] == mode
    assert written["policy_loss.aggregation.horizon"] is None


def test_a_normalised_sum_without_a_divisor_takes_the_response_limit_and_says_so(judge):
    launch = {f"{ACTOR}.loss_agg_mode": "seq-mean-token-sum-norm", "data.max_response_length": 96}
    verdict = judge(launch)[HORIZON]
    assert verdict.lowered == 96
    assert verdict.classification == "semantically_conformant"
    assert verdict.warning is not None


def test_a_stated_divisor_is_exact(judge):
    launch = {f"{ACTOR}.loss_agg_mode": "seq-mean-token-sum-norm", HORIZON: 512}
    verdict = judge(launch)[HORIZON]
    assert (verdict.classification, verdict.lowered) == ("exact", 512)
    assert verdict.warning is None
    assert judge(launch | {HORIZON: 0}).rejected == {HORIZON}


@pytest.mark.parametrize(
    ("upstream", "estimator"),
    [
        ("kl", "k1"),
        ("k1", "k1"),
        ("abs", "abs"),
        ("mse", "k2"),
        ("k2", "k2"),
        ("low_var_kl", "k3"),
        ("k3", "k3"),
        ("kl+", "k1+"),
        ("abs+", "abs+"),
        ("mse+", "k2+"),
        ("low_var_kl+", "k3+"),
    ],
)
def test_every_upstream_name_of_a_kl_estimator(judge, upstream, estimator):
    launch = {f"{ACTOR}.use_kl_loss": True, f"{ACTOR}.kl_loss_type": upstream}
    assert judge(launch).written["kl_loss.estimator"] == estimator


@pytest.mark.parametrize("upstream", ["full", "k4", "k3++", "", None])
def test_a_kl_estimator_that_stops_the_pin_is_rejected(judge, upstream):
    launch = {f"{ACTOR}.use_kl_loss": True, f"{ACTOR}.kl_loss_type": upstream}
    judged = judge(launch)
    assert judged.rejected == {f"{ACTOR}.kl_loss_type"}
    assert judged[f"{ACTOR}.kl_loss_type"].classification == "unsupported"


def test_without_a_kl_term_its_leaves_are_not_read_and_the_recipe_has_none(judge):
    judged = judge({f"{ACTOR}.kl_loss_coef": 0.5, f"{ACTOR}.kl_loss_type": "full"})
    assert judged.rejected == set()
    assert judged.written["kl_loss"] is None
    assert not any(path.startswith("kl_loss.") for path in judged.written)
    assert {f"{ACTOR}.kl_loss_coef", f"{ACTOR}.kl_loss_type"} <= judged.warned


def test_a_known_other_loss_is_not_implemented_and_an_unknown_one_unsupported(judge):
    field = f"{ACTOR}.policy_loss.loss_mode"
    assert judge({field: "gspo"})[field].classification == "not_implemented"
    assert judge({field: "clip-cov"})[field].classification == "unsupported"


def test_parameters_of_a_rejected_loss_add_no_rejection_and_no_warning(judge):
    field = f"{ACTOR}.policy_loss.clip_cov_ratio"
    chosen = judge({f"{ACTOR}.policy_loss.loss_mode": "clip_cov", field: 0.1})
    assert chosen.rejected == {f"{ACTOR}.policy_loss.loss_mode"}
    assert chosen[field].warning is None
    assert judge({field: 0.1})[field].warning is not None
