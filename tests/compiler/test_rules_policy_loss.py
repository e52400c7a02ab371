"""How the policy's loss is lowered: clips, aggregation and the KL term."""

import pytest

from miniverl.engine.bounds import POLICY_LOSS_ARGUMENTS

ACTOR = "actor_rollout_ref.actor"
MODE = f"{ACTOR}.policy_loss.loss_mode"
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


def test_an_unknown_loss_is_refused_before_the_first_update_with_the_known_ones(judge):
    verdict = judge({MODE: "clip-cov"})[MODE]
    assert verdict.classification == "unsupported"
    assert "clip_cov" in str(verdict.fix)
    assert judge({MODE: "bypass_mode"})[MODE].classification == "not_implemented"


@pytest.mark.parametrize("loss", POLICY_LOSS_ARGUMENTS)
def test_each_loss_writes_the_arguments_that_it_reads_and_no_other(judge, loss):
    judged = judge({MODE: loss, f"{ACTOR}.policy_loss.dro_beta": 0.5})
    assert judged.rejected == set()
    written = {path.rpartition(".")[2] for path in judged.written if ".arguments." in path}
    assert written == set(POLICY_LOSS_ARGUMENTS[loss])


@pytest.mark.parametrize("loss", ["geo_mean", "kl_cov", "clip_cov"])
def test_a_loss_that_depends_on_micro_batches_upstream_says_what_is_done_here(judge, loss):
    verdict = judge({MODE: loss})[MODE]
    assert verdict.classification == "semantically_conformant"
    assert "micro-batch" in str(verdict.warning)


@pytest.mark.parametrize(
    ("loss", "field", "value"),
    [
        ("dro", f"{ACTOR}.policy_loss.dro_beta", None),
        ("dro", f"{ACTOR}.policy_loss.dro_beta", 0),
        ("sapo", f"{ACTOR}.tau_pos", 0),
        ("kl_cov", f"{ACTOR}.policy_loss.kl_cov_ratio", 0),
        ("clip_cov", f"{ACTOR}.policy_loss.clip_cov_ratio", 1.5),
        ("clip_cov", f"{ACTOR}.policy_loss.clip_cov_lb", "1"),
        ("dppo_tv", f"{ACTOR}.clip_ratio_c", 0),
        ("gspo", f"{ACTOR}.clip_ratio_low", -1),
    ],
)
def test_an_argument_is_refused_by_the_loss_that_reads_it_alone(judge, loss, field, value):
    assert judge({MODE: loss, field: value}).rejected == {field}
    unread = judge({MODE: "gpg", field: value})
    assert unread.rejected == set()
    assert unread[field].classification == "informational_only"


def test_null_leaves_an_argument_to_upstreams_code(judge):
    written = judge({MODE: "kl_cov", f"{ACTOR}.policy_loss.ppo_kl_coef": None}).written
    assert written["policy_loss.arguments.kl_coefficient"] == 1.0
