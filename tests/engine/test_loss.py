"""Losses: values by hand, values of the pinned upstream, and sums that no split into micro-batches moves."""

import json
import math
from itertools import pairwise
from pathlib import Path
from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from miniverl.engine import loss
from miniverl.engine.algorithm import AggregationMode, KlEstimator
from miniverl.engine.policy_loss import vanilla
from miniverl.engine.policy_metrics import policy_metrics

UPSTREAM = json.loads((Path(__file__).parents[1] / "data" / "upstream_v0.9.0.json").read_text())
MODES = get_args(AggregationMode)
INSIDE = torch.ones(1, 1, dtype=torch.bool)
CLIPS = {"clip_low": 0.2, "clip_high": 0.28, "dual_clip": 3.0}


def tensor(values: object) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def vanilla_at(ratio: float, advantage: float) -> float:
    return vanilla(
        tensor([[math.log(ratio)]]), tensor([[0.0]]), tensor([[advantage]]), INSIDE, **CLIPS
    ).item()


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected"),
    [
        (1.1, 2.0, -2.2),  # inside the clip range
        (1.5, 2.0, -2.56),  # gains stop at 1.28
        (0.5, 2.0, -1.0),  # losses do not
        (0.5, -2.0, 1.6),  # gains stop at 0.8
        (1.5, -2.0, 3.0),  # losses do not,
        (5.0, -2.0, 6.0),  # but for the dual clip at 3
        (5.0, 0.0, 0.0),
    ],
)
def test_the_clipped_surrogate_in_each_of_its_regions(ratio, advantage, expected):
    assert vanilla_at(ratio, advantage) == pytest.approx(expected, abs=1e-12)


def test_the_log_ratio_is_held_within_20():
    assert vanilla_at(math.exp(50), 1.0) == pytest.approx(-1.28)
    extreme = vanilla(tensor([[-1e30]]), tensor([[0.0]]), tensor([[1.0]]), INSIDE, **CLIPS)
    assert extreme.item() == pytest.approx(-math.exp(-20))


def test_float32_losses_agree_with_upstreams_float64_numbers():
    given_ = UPSTREAM["inputs"]
    mask_BR = torch.tensor(given_["mask"]).bool()
    for case in UPSTREAM["policy_losses"]:
        log_probs_BR = torch.tensor(given_["log_probs"]).requires_grad_(True)
        values_BR = vanilla(
            log_probs_BR,
            torch.tensor(given_["old_log_probs"]),
            torch.tensor(given_["advantages"]),
            mask_BR,
            **case["clips"],
        )
        total = values_BR[mask_BR].mean()
        (gradient_BR,) = torch.autograd.grad(total, log_probs_BR)
        assert total.item() == pytest.approx(case["loss"], rel=1e-4)
        torch.testing.assert_close(
            gradient_BR, torch.tensor(case["gradient"]), atol=1e-4, rtol=1e-4
        )


@pytest.mark.parametrize(
    ("estimator", "value", "gradient"),
    [
        ("k1", 0.5, 1.0),
        ("abs", 0.5, 1.0),
        ("k2", 0.125, 0.5),
        ("k3", math.exp(-0.5) - 0.5, 1 - math.exp(-0.5)),
        ("k1+", 0.5, 0.5),
        ("abs+", 0.5, 0.5),
        ("k2+", 0.125, 0.5),
        ("k3+", math.exp(-0.5) - 0.5, 0.5),
    ],
)
def test_a_kl_estimate_ending_in_plus_has_the_gradient_of_k2(estimator, value, gradient):
    log_probs_BR = tensor([[-1.0]]).requires_grad_(True)
    estimate_BR = loss.kl_estimate(log_probs_BR, tensor([[-1.5]]), estimator)
    (found_BR,) = torch.autograd.grad(estimate_BR.sum(), log_probs_BR)
    assert estimate_BR.item() == pytest.approx(value, abs=1e-12)
    assert found_BR.item() == pytest.approx(gradient, abs=1e-12)


def test_k3_is_held_at_10():
    assert loss.kl_estimate(tensor([[-50.0]]), tensor([[0.0]]), "k3").item() == 10.0


def test_every_estimator_of_the_recipe_exists():
    for estimator in get_args(KlEstimator):
        assert loss.kl_estimate(tensor([[0.0]]), tensor([[0.0]]), estimator).item() == 0.0


VALUES = [[1.0, 2.0, 3.0], [10.0, 0.0, 0.0], [7.0, 7.0, 7.0]]
MASK = [[1, 1, 1], [1, 0, 0], [0, 0, 0]]


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("token-mean", 16 / 4),
        ("token-sum", 16.0),
        ("seq-mean-token-sum", 16 / 3),  # the empty row counts
        ("seq-mean-token-mean", (2 + 10) / 3),
        ("seq-mean-token-sum-norm", 16 / 3 / 8),
    ],
)
def test_each_aggregation_with_its_normaliser(mode, expected):
    found = loss.aggregate(
        tensor(VALUES),
        torch.tensor(MASK).bool(),
        mode=mode,
        num_tokens=4,
        num_sequences=3,
        horizon=8,
    )
    assert found.item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("mode", MODES)
def test_what_lies_outside_the_mask_never_reaches_the_loss(mode):
    mask_BR = torch.tensor(MASK).bool()

    def whole(outside: float) -> tuple[float, torch.Tensor]:
        log_probs_BR = torch.where(mask_BR, -tensor(VALUES) / 7, outside).requires_grad_(True)
        advantages_BR = torch.where(mask_BR, tensor(VALUES) - 3, outside)
        old_BR = torch.where(mask_BR, -tensor(VALUES) / 8, outside)
        values_BR = vanilla(log_probs_BR, old_BR, advantages_BR, mask_BR, **CLIPS)
        values_BR = values_BR + loss.kl_estimate(log_probs_BR, old_BR, "k3")
        total = loss.aggregate(
            values_BR, mask_BR, mode=mode, num_tokens=4, num_sequences=3, horizon=8
        )
        (gradient_BR,) = torch.autograd.grad(total, log_probs_BR)
        return total.item(), gradient_BR[mask_BR]

    clean, clean_gradient = whole(0.0)
    for outside in (math.nan, math.inf):
        spoiled, spoiled_gradient = whole(outside)
        assert spoiled == clean
        assert torch.equal(spoiled_gradient, clean_gradient)


@settings(deadline=None)
@given(
    lengths=st.lists(st.integers(0, 6), min_size=1, max_size=9).filter(any),
    cuts=st.lists(st.integers(0, 9), max_size=4),
    seed=st.integers(0, 2**31),
    mode=st.sampled_from(MODES),
    dtype=st.sampled_from([torch.float64, torch.float32]),
)
def test_micro_batches_add_up_to_the_mini_batch(lengths, cuts, seed, mode, dtype):
    random = torch.Generator().manual_seed(seed)
    shape = (len(lengths), 6)
    log_probs_BR = -torch.rand(shape, generator=random, dtype=dtype).requires_grad_(True)
    old_BR = -torch.rand(shape, generator=random, dtype=dtype)
    advantages_BR = torch.randn(shape, generator=random, dtype=dtype)
    mask_BR = torch.arange(6) < torch.tensor(lengths)[:, None]
    normalisers = {
        "mode": mode,
        "num_tokens": sum(lengths),
        "num_sequences": len(lengths),
        "horizon": 6,
    }

    def share(rows: slice) -> torch.Tensor:
        width = max(lengths[rows])  # a micro-batch is padded to its own longest response
        parts = [each[rows, :width] for each in (log_probs_BR, old_BR, advantages_BR, mask_BR)]
        values_BR = vanilla(*parts, **CLIPS) + loss.kl_estimate(*parts[:2], "k3")
        return loss.aggregate(values_BR, parts[3], **normalisers)

    edges = sorted({0, len(lengths), *(cut for cut in cuts if cut < len(lengths))})
    whole = share(slice(0, len(lengths)))
    summed = sum(share(slice(*pair)) for pair in pairwise(edges))
    tolerance = 1e-6 * max(1.0, abs(whole.item()))
    torch.testing.assert_close(summed, whole, atol=tolerance, rtol=0)
    gradients = [torch.autograd.grad(total, log_probs_BR)[0] for total in (summed, whole)]
    torch.testing.assert_close(*gradients, atol=1e-6, rtol=1e-6)


def test_clip_metrics_are_shares_of_the_mini_batch_and_carry_no_gradient():
    log_probs_BR = tensor([[0.5, 0.0, 2.0, 9.0]]).requires_grad_(True)
    metrics = policy_metrics(
        log_probs_BR,
        tensor([[0.0, 0.0, 0.0, math.nan]]),
        tensor([[1.0, 1.0, -1.0, 1.0]]),
        torch.tensor([[True, True, True, False]]),
        "vanilla",
        CLIPS,
        num_tokens=6,  # three more are in other micro-batches
    )
    assert metrics["clip_fraction"].item() == pytest.approx(1 / 6)
    assert metrics["dual_clip_fraction"].item() == pytest.approx(1 / 6)
    assert metrics["approximate_kl"].item() == pytest.approx(-2.5 / 6)
    assert not any(value.requires_grad for value in metrics.values())
