"""Every policy loss with numbers by hand, one token or one response at a time."""

import math

import pytest
import torch
from torch import Tensor

from miniverl.engine.bounds import POLICY_LOSS_ARGUMENTS
from miniverl.engine.covariance import select_clip_cov, select_kl_cov
from miniverl.engine.policy_loss import POLICY_LOSSES, weighted
from miniverl.engine.policy_metrics import policy_metrics

CLIPS = {"clip_low": 0.2, "clip_high": 0.28}


def tensor(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def at(
    name: str, ratios: list[float], advantages: list[float], old: float = -3.0, **arguments: float
) -> tuple[list[float], list[float]]:
    """Losses of one response's tokens, and the gradient of their sum by each log-prob."""
    old_BR = torch.full((1, len(ratios)), old, dtype=torch.float64)
    log_probs_BR = (old_BR + tensor([ratios]).log()).requires_grad_(True)
    mask_BR = torch.ones_like(old_BR).bool()
    loss_BR = POLICY_LOSSES[name].per_token(
        log_probs_BR, old_BR, tensor([advantages]), mask_BR, **arguments
    )
    (gradient_BR,) = torch.autograd.grad(loss_BR.sum(), log_probs_BR)
    return loss_BR[0].tolist(), gradient_BR[0].tolist()


def test_every_loss_that_a_recipe_can_name_is_there():
    assert POLICY_LOSSES.keys() == POLICY_LOSS_ARGUMENTS.keys()


def test_gspo_clips_the_geometric_mean_of_a_responses_ratios():
    # mean log-ratio of 2 and 1/2 is 0, of 2 and 2 it is log 2: beyond 1.28, where no gain is left
    losses, gradient = at("gspo", [2.0, 0.5], [3.0, 3.0], **CLIPS)
    assert losses == pytest.approx([-3.0, -3.0])
    assert gradient == pytest.approx([-3.0, -3.0])  # each token its own
    losses, gradient = at("gspo", [2.0, 2.0], [1.0, 1.0], **CLIPS)
    assert losses == pytest.approx([-1.28, -1.28])
    assert gradient == [0.0, 0.0]


def test_gspo_bounds_the_sequences_ratio_at_exp_10():
    losses, gradient = at("gspo", [math.exp(30)], [-1.0], **CLIPS)
    assert losses == pytest.approx([math.exp(10)])
    assert gradient == [0.0]


def test_sapo_opens_its_gate_by_the_sign_of_the_advantage():
    taus = {"tau_positive": 1.0, "tau_negative": 2.0}
    losses, gradient = at("sapo", [1.0, 1.0], [1.0, -1.0], **taus)
    assert losses == pytest.approx([-0.5 * 4, 0.5 * 2])
    assert gradient == pytest.approx([-1.0, 1.0])  # sigmoid'(0) = 1/4: the plain policy gradient
    far, _ = at("sapo", [5.0, 5.0], [1.0, -1.0], **taus)
    assert far == pytest.approx([-4 / (1 + math.exp(-4)), 2 / (1 + math.exp(-8))])


def test_gpg_is_the_plain_policy_gradient():
    losses, gradient = at("gpg", [1.0, 2.0], [2.0, -1.0])
    assert losses == pytest.approx([6.0, -(3.0 - math.log(2))])
    assert gradient == [-2.0, 1.0]


def test_cispo_keeps_the_gradient_of_a_clipped_token():
    _, gradient = at("cispo", [2.0, 0.5, 1.1], [1.0, 1.0, -1.0], **CLIPS)
    assert gradient == pytest.approx([-1.28, -0.8, 1.1])


@pytest.mark.parametrize(
    ("ratio", "advantage", "gradient"),
    [
        # p_old = 1/2: ratio 1.1 moves it by 0.05, 1.4 by 0.2, 0.6 by -0.2
        (1.1, 1.0, -1.1),
        (1.4, 1.0, 0.0),  # beyond 0.1, the way the advantage pushes
        (1.4, -1.0, 1.3),  # against it; the ratio is capped
        (0.6, -1.0, 0.0),
        (0.6, 1.0, -0.6),
    ],
)
def test_dppo_trains_tokens_whose_probability_moved_little(ratio, advantage, gradient):
    arguments = {"clip_low": 0.1, "clip_high": 0.1, "ratio_cap": 1.3}
    _, found = at("dppo_tv", [ratio], [advantage], old=math.log(0.5), **arguments)
    assert found == pytest.approx([gradient])


@pytest.mark.parametrize(("bound", "gradient"), [(0.088, -1.4), (0.087, 0.0)])
def test_dppo_kl_compares_the_token_with_all_others(bound, gradient):
    # of 0.5 and 0.7: 0.5 log(5/7) + 0.5 log(5/3) = 0.08718
    arguments = {"clip_low": 0.0, "clip_high": bound, "ratio_cap": 3.0}
    _, found = at("dppo_kl", [1.4], [1.0], old=math.log(0.5), **arguments)
    assert found == pytest.approx([gradient])
    _, back = at("dppo_kl", [1.4], [-1.0], old=math.log(0.5), **arguments)
    assert back == pytest.approx([1.4])  # it became more probable: the advantage pulls it back


def test_dro_pulls_back_with_the_square_of_the_change():
    losses, gradient = at("dro", [math.e], [2.0], beta=0.5)
    assert losses == pytest.approx([2 * 2.0 + 0.25])  # log_prob -2, changed by 1
    assert gradient == pytest.approx([-2.0 + 0.5])


def test_geo_mean_clips_the_log_ratio_and_multiplies_over_the_response():
    bounds = {"clip_low": 0.4, "clip_high": 0.4}
    losses, gradient = at("geo_mean", [math.e, math.exp(-0.2)], [1.0, 1.0], **bounds)
    value = -math.exp((0.4 - 0.2) / 2)
    assert losses == pytest.approx([value, value])  # the mean over them is the response's loss
    assert gradient == pytest.approx([0.0, value])
    unclipped, _ = at("geo_mean", [math.e, math.exp(-0.2)], [-2.0, -2.0], **bounds)
    assert unclipped == pytest.approx([2 * math.exp((1 - 0.2) / 2)] * 2)


def test_geo_mean_takes_the_geometric_mean_of_importance_weights():
    kind, loss_BR = POLICY_LOSSES["geo_mean"], tensor([[3.0, 3.0, 3.0]])
    weights_BR, mask_BR = tensor([[4.0, 1.0, 50.0]]), torch.tensor([[True, True, False]])
    assert weighted(loss_BR, weights_BR, mask_BR, kind)[0].tolist() == pytest.approx([6.0] * 3)
    each = weighted(loss_BR, weights_BR, mask_BR, POLICY_LOSSES["vanilla"])
    assert each[0].tolist() == [12.0, 3.0, 150.0]


def test_kl_cov_adds_the_size_of_the_change_to_selected_tokens():
    selected = {"selected_BR": torch.tensor([[True, False]])}
    losses, gradient = at(
        "kl_cov", [0.5, 0.5], [1.0, 1.0], share=0.5, kl_coefficient=0.3, **selected
    )
    assert losses == pytest.approx([-0.5 + 0.3 * math.log(2), -0.5])
    assert gradient == pytest.approx([-0.5 - 0.3, -0.5])


def test_clip_cov_drops_selected_tokens():
    selected = {"selected_BR": torch.tensor([[True, False]])}
    bounds = {"share": 0.5, "covariance_low": 1.0, "covariance_high": 5.0}
    losses, gradient = at("clip_cov", [1.1, 1.1], [1.0, 1.0], **CLIPS, **bounds, **selected)
    assert losses == pytest.approx([0.0, -1.1])
    assert gradient == pytest.approx([0.0, -1.1])


LOG_PROBS = tensor([-1.0, -2.0, -3.0, -4.0])  # mean -2.5
ADVANTAGES = tensor([2.0, 0.0, 0.0, -2.0])  # covariances 3, 0, 0, 3


def test_kl_cov_selects_the_largest_covariances_and_at_least_one():
    def selected(share: float) -> list[bool]:
        return select_kl_cov(
            LOG_PROBS,
            LOG_PROBS,
            tensor([2.5, 0.0, 0.0, -2.0]),
            torch.Generator(),
            share=share,
            kl_coefficient=1.0,
        ).tolist()

    assert selected(0.01) == [True, False, False, False]
    assert selected(0.5) == [True, False, False, True]


def test_clip_cov_draws_among_the_covariances_between_its_bounds():
    def selected(old_T: Tensor, share: float, seed: int = 0) -> list[int]:
        found = select_clip_cov(
            LOG_PROBS,
            old_T,
            ADVANTAGES,
            torch.Generator().manual_seed(seed),
            **CLIPS,
            share=share,
            covariance_low=1.0,
            covariance_high=5.0,
        )
        return found.nonzero()[:, 0].tolist()

    assert selected(LOG_PROBS, 1.0) == [0, 3]
    assert {tuple(selected(LOG_PROBS, 0.01, seed)) for seed in range(20)} == {(0,), (3,)}
    # what the surrogate clips already is no candidate: ratio e, positive advantage
    assert selected(LOG_PROBS - tensor([1.0, 0.0, 0.0, 0.0]), 1.0) == [3]


@pytest.mark.parametrize(
    ("name", "ratios", "advantages", "arguments", "expected"),
    [
        # the response's ratio is 1.4: clipped where the advantage gains by it
        ("gspo", [1.4, 1.4], [1.0, 1.0], CLIPS, {"clip_fraction": 1.0}),
        ("gspo", [1.4, 1.4], [-1.0, -1.0], CLIPS, {"clip_fraction": 0.0}),
        ("cispo", [1.1, 1.4], [-1.0, -1.0], CLIPS, {"clip_fraction": 0.5}),
        # p_old = 1/2: 1.6 moves it by 0.3, too far one way only, and passes the cap
        (
            "dppo_tv",
            [1.6, 1.6],
            [1.0, -1.0],
            {"clip_low": 0.2, "clip_high": 0.2, "ratio_cap": 1.5},
            {"clip_fraction": 0.5, "cap_fraction": 0.5},
        ),
        (
            "dppo_kl",
            [1.6, 1.1],
            [1.0, 1.0],
            {"clip_low": 0.1, "clip_high": 0.1, "ratio_cap": 1.5},
            {"clip_fraction": 0.5, "cap_fraction": 0.0},
        ),
        ("geo_mean", [2.0, 0.1], [1.0, 1.0], CLIPS, {"clip_fraction": 0.5}),
        ("geo_mean", [2.0, 0.1], [-1.0, -1.0], CLIPS, {"clip_fraction": 0.5}),
        ("sapo", [2.0, 0.1], [1.0, 1.0], {"tau_positive": 1.0, "tau_negative": 1.0}, {}),
    ],
)
def test_metrics_tell_what_each_loss_clips(name, ratios, advantages, arguments, expected):
    old_BR = torch.full((1, 2), math.log(0.5), dtype=torch.float64)
    found = policy_metrics(
        old_BR + tensor([ratios]).log(),
        old_BR,
        tensor([advantages]),
        torch.ones(1, 2, dtype=torch.bool),
        name,
        arguments,
        num_tokens=2,
    )
    assert found.pop("approximate_kl").item() == pytest.approx(-math.log(math.prod(ratios)) / 2)
    assert {metric: share.item() for metric, share in found.items()} == expected
