"""Rollout correction, with numbers by hand: log-ratios are logarithms of 1/2, 2, 3, so weights are these numbers."""

import math
from dataclasses import replace
from typing import get_args

import pytest
import torch

from miniverl.engine.algorithm import (
    ImportanceWeights,
    Rejection,
    RejectionStatistic,
    RolloutCorrection,
)
from miniverl.engine.correction import Correction, correct
from miniverl.engine.problem import Refused

# policy over sampler; the last column of the first row is an observation, the last row is empty
RATIOS = [[2.0, 0.5, 100.0], [3.0, 1.0, 1.0], [7.0, 7.0, 7.0]]
MASK = [[1, 1, 0], [1, 1, 1], [0, 0, 0]]
NOTHING = RolloutCorrection(bypasses_scoring=False, importance_weights=None, rejections=())
TOKENS = ImportanceWeights(level="token", lower=None, upper=2.5, is_batch_normalized=False)


def corrected(recipe: RolloutCorrection, outside: float = 0.0) -> Correction:
    mask_NR = torch.tensor(MASK).bool()
    old_NR = torch.tensor(RATIOS, dtype=torch.float64).log() - 1.5
    sampled_NR = torch.full_like(old_NR, -1.5)
    return correct(
        torch.where(mask_NR, sampled_NR, outside),
        torch.where(mask_NR, old_NR, outside),
        mask_NR,
        recipe,
    )


def weights(wanted: ImportanceWeights, outside: float = 0.0) -> list[list[float]]:
    found = corrected(replace(NOTHING, importance_weights=wanted), outside)
    assert found.weights_NR is not None
    assert torch.equal(found.mask_NR, torch.tensor(MASK).bool())
    return found.weights_NR.tolist()


def kept(statistic: RejectionStatistic, lower: float | None, upper: float) -> list[list[int]]:
    rejection = Rejection(statistic=statistic, lower=lower, upper=upper)
    found = corrected(replace(NOTHING, rejections=(rejection,)))
    assert found.weights_NR is None
    return found.mask_NR.int().tolist()


def test_a_tokens_weight_is_its_ratio_up_to_the_bound():
    expected = [[2.0, 0.5, 0.0], [2.5, 1.0, 1.0], [0.0] * 3]
    for row, other in zip(weights(TOKENS), expected, strict=True):
        assert row == pytest.approx(other)


def test_with_two_bounds_what_is_outside_of_them_weighs_nothing():
    found = weights(replace(TOKENS, lower=0.75))
    for row, other in zip(found, [[2.0, 0.0, 0.0], [0.0, 1.0, 1.0], [0.0] * 3], strict=True):
        assert row == pytest.approx(other)


def test_a_responses_weight_is_the_product_of_its_ratios():
    found = weights(replace(TOKENS, level="sequence"))
    for row, other in zip(found, [[1.0, 1.0, 0.0], [2.5, 2.5, 2.5], [0.0] * 3], strict=True):
        assert row == pytest.approx(other)


def test_normalised_weights_have_the_mean_1_over_tokens():
    found = weights(replace(TOKENS, is_batch_normalized=True))
    mean = (2 + 0.5 + 2.5 + 1 + 1) / 5
    assert found[1] == pytest.approx([2.5 / mean, 1 / mean, 1 / mean])


def test_normalised_weights_have_the_mean_1_over_responses_that_have_a_token():
    found = weights(replace(TOKENS, level="sequence", is_batch_normalized=True))
    assert found[0] == pytest.approx([1 / 1.75, 1 / 1.75, 0.0])  # mean of 1 and 2.5


def test_weights_that_are_all_0_are_not_divided_by_their_mean():
    found = weights(replace(TOKENS, lower=20.0, upper=30.0, is_batch_normalized=True))
    assert found == [[0.0] * 3] * 3


@pytest.mark.parametrize(
    ("statistic", "lower", "upper", "expected"),
    [
        # k1 = -log r: only the 1/2 is as high as log 1.9, only the 3 as low as log 0.4
        ("token_k1", 0.4, 1.9, [[1, 0, 0], [0, 1, 1], [0, 0, 0]]),
        (
            "token_k2",
            None,
            0.3,
            [[1, 1, 0], [0, 1, 1], [0, 0, 0]],
        ),  # log(2)^2 / 2 = 0.24, of 3: 0.6
        ("token_k3", None, 0.2, [[0, 1, 0], [0, 1, 1], [0, 0, 0]]),  # of 2: 0.307, of 1/2: 0.193
        ("seq_sum_k1", 0.9, 1.1, [[1, 1, 0], [0, 0, 0], [0, 0, 0]]),  # products 1 and 3
        ("seq_mean_k1", 0.6, 1.5, [[1, 1, 0], [1, 1, 1], [0, 0, 0]]),  # 3^(-1/3) = 0.69
        ("seq_sum_k2", None, 0.5, [[1, 1, 0], [0, 0, 0], [0, 0, 0]]),  # 0.48 and 0.60
        ("seq_mean_k2", None, 0.22, [[0, 0, 0], [1, 1, 1], [0, 0, 0]]),  # 0.24 and 0.20
        ("seq_sum_k3", None, 0.6, [[1, 1, 0], [0, 0, 0], [0, 0, 0]]),  # 0.50 and 0.90
        ("seq_mean_k3", None, 0.26, [[1, 1, 0], [0, 0, 0], [0, 0, 0]]),  # 0.25 and 0.30
        ("seq_max_k2", None, 0.3, [[1, 1, 0], [0, 0, 0], [0, 0, 0]]),
        ("seq_max_k3", None, 0.4, [[1, 1, 0], [0, 0, 0], [0, 0, 0]]),
    ],
)
def test_what_leaves_the_bounds_of_each_statistic_is_masked(statistic, lower, upper, expected):
    assert kept(statistic, lower, upper) == expected


def test_what_lies_outside_the_mask_never_matters():
    for statistic in get_args(RejectionStatistic):
        rejection = Rejection(statistic=statistic, lower=0.4, upper=1.9)
        recipe = RolloutCorrection(
            bypasses_scoring=False,
            importance_weights=replace(TOKENS, level="sequence", is_batch_normalized=True),
            rejections=(rejection,),
        )
        one, other = corrected(recipe), corrected(recipe, math.nan)
        assert torch.equal(one.mask_NR, other.mask_NR)
        assert torch.equal(one.weights_NR, other.weights_NR)
        assert one.metrics == other.metrics


def test_every_rejection_has_to_pass_and_each_is_told():
    recipe = replace(
        NOTHING,
        rejections=(
            Rejection(statistic="token_k3", lower=None, upper=0.2),
            Rejection(statistic="seq_mean_k1", lower=0.75, upper=1.5),
        ),
    )
    found = corrected(recipe)
    assert found.mask_NR.int().tolist() == [[0, 1, 0], [0, 0, 0], [0, 0, 0]]
    assert found.metrics["correction_rejected_tokens_token_k3"] == pytest.approx(2 / 5)
    assert found.metrics["correction_rejected_tokens_seq_mean_k1"] == pytest.approx(3 / 5)
    assert found.metrics["correction_rejected_tokens_any"] == pytest.approx(4 / 5)
    assert found.metrics["correction_rejected_responses_any"] == pytest.approx(2 / 3)


def test_how_far_the_sampler_is():
    found = corrected(replace(NOTHING, importance_weights=TOKENS)).metrics
    assert found["correction_kl"] == pytest.approx(-math.log(3) / 5)  # 2 * 1/2 * 3 * 1 * 1
    assert found["correction_k3"] == pytest.approx((7.5 - math.log(3) - 5) / 5)
    assert found["correction_chi2"] == pytest.approx((4 + 0.25 + 9 + 1 + 1) / 5 - 1)
    assert found["correction_max_ratio"] == pytest.approx(3.0)
    assert found["correction_weight_high_share"] == pytest.approx(1 / 5)  # 3 > 2.5
    assert found["correction_weight_low_share"] == 0.0  # none below 1 / 2.5
    squares = (4 + 0.25 + 2.5**2 + 1 + 1) / 5
    assert found["correction_weight_effective_share"] == pytest.approx(1.4**2 / squares)


def test_where_sampler_and_policy_agree_nothing_changes():
    log_probs_NR = torch.tensor([[-1.0, -2.0]])
    mask_NR = torch.ones(1, 2, dtype=torch.bool)
    recipe = RolloutCorrection(
        bypasses_scoring=False,
        importance_weights=TOKENS,
        rejections=(Rejection(statistic="seq_max_k3", lower=None, upper=0.001),),
    )
    found = correct(log_probs_NR, log_probs_NR, mask_NR, recipe)
    assert found.weights_NR.tolist() == [[1.0, 1.0]]
    assert found.mask_NR.all()
    assert found.metrics["correction_weight_effective_share"] == 1.0


def test_a_step_without_any_token_is_refused():
    nothing_NR = torch.zeros(2, 3)
    with pytest.raises(Refused, match="none of them has a token"):
        correct(nothing_NR, nothing_NR, nothing_NR.bool(), NOTHING)
