"""The value loss by hand, and through a mini-batch that is cut in every way."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from miniverl.engine.algorithm import Aggregation, AggregationMode
from miniverl.engine.critic import load_critic
from miniverl.engine.critic_update import critic_objective, value_loss, value_metrics
from miniverl.engine.experience import Experience
from miniverl.engine.models import Model
from miniverl.engine.recipe import Critic
from miniverl.engine.score import bins
from miniverl.engine.trajectory import Trajectory
from miniverl.engine.update import Normalisers
from miniverl.engine.value import values

LENGTHS = (1, 6, 3, 5, 2, 4)
CUTS = ([0, 3, 6], [0, 1, 3, 5, 6], [0, 1, 5, 6])  # two, four, and uneven ones
TOKEN_BUDGETS = (1, 12, 20)


@pytest.fixture
def critic(tiny_critic: Critic, tiny_model: Path) -> Model:
    return load_critic(replace(tiny_critic, lora=None), tiny_model, seed=3, device="cpu")


@pytest.fixture
def members(critic: Model) -> list[Experience]:
    """Six responses to two prompts; some values have left the clip, some tokens and one response are rejected."""
    random = torch.Generator().manual_seed(7)
    trajectories = [
        Trajectory(
            prompt_id=index // 3,
            sample=index % 3,
            prompt_tokens=((1, 14, 5, 2), (1, 15, 2))[index // 3],
            response_tokens=tuple(torch.randint(34, (length,), generator=random).tolist()),
            is_finished=True,
            response="",
            reward=0.0,
        )
        for index, length in enumerate(LENGTHS)
    ]
    now = values(critic, trajectories, micro_batch_tokens=100)

    def near(values_R: Tensor) -> Tensor:
        return values_R + torch.randn(values_R.shape, generator=random)

    return [
        Experience(
            trajectory=each,
            is_trained_R=(torch.rand(values_R.shape, generator=random) < 0.9) & (index != 4),
            old_log_probs_R=torch.zeros_like(values_R),
            advantages_R=torch.zeros_like(values_R),
            reference_log_probs_R=None,
            importance_weights_R=None,
            values_R=near(values_R),
            returns_R=near(values_R),
            teacher=None,
        )
        for index, (each, values_R) in enumerate(zip(trajectories, now, strict=True))
    ]


def _totals(
    critic: Model, recipe: Critic, members: Sequence[Experience], parts: Sequence[int]
) -> tuple[Tensor, dict[str, float]]:
    """The mini-batch's gradient by all parameters, and its numbers, in micro-batches that begin at `parts`."""
    normalisers = Normalisers(num_tokens=sum(LENGTHS), num_sequences=len(LENGTHS))
    objective = critic_objective(critic, recipe, members)
    for parameter in critic.trained().values():
        parameter.grad = None
    numbers: dict[str, float] = {}
    for first, end in pairwise(parts):
        shares = objective(members[first:end], normalisers)
        shares["loss"].backward()
        numbers = {name: numbers.get(name, 0.0) + each.item() for name, each in shares.items()}
    gradients = [each.grad for each in critic.trained().values()]
    return torch.cat([each.flatten() for each in gradients if each is not None]), numbers


def _edges(members: Sequence[Experience], budget: int) -> list[int]:
    """Where the bins of a token budget begin."""
    found = [0]
    for micro_batch in bins([each.trajectory for each in members], budget):
        found.append(found[-1] + len(micro_batch))
    return found


def test_the_larger_error_counts_and_has_no_gradient_where_the_clip_holds_the_value() -> None:
    """Old values 1, clip 0.5, so that values are kept within [0.5, 1.5]."""
    values_BR = torch.tensor([[1.2, 2.0, 2.0, 0.0]], dtype=torch.float64, requires_grad=True)
    returns_BR = torch.tensor([[2.0, 3.0, 1.0, 2.0]], dtype=torch.float64)
    loss_BR = value_loss(values_BR, torch.ones_like(returns_BR), returns_BR, clip=0.5)
    #        inside: 0.8^2 / 2;  too high, kept at 1.5: 1.5^2 / 2;  away from it: 1 / 2;  too low: 2^2 / 2
    expected = torch.tensor([[0.32, 1.125, 0.5, 2.0]], dtype=torch.float64)
    torch.testing.assert_close(loss_BR, expected)
    (by_value_BR,) = torch.autograd.grad(loss_BR.sum(), values_BR)
    expected = torch.tensor([[-0.8, 0.0, 1.0, -2.0]], dtype=torch.float64)
    torch.testing.assert_close(by_value_BR, expected)


@pytest.mark.parametrize("mode", get_args(AggregationMode))
def test_neither_gradient_nor_numbers_depend_on_micro_batches(
    critic: Model, tiny_critic: Critic, members: list[Experience], mode: Any
) -> None:
    recipe = replace(tiny_critic, aggregation=Aggregation(mode=mode, horizon=6))
    whole, numbers = _totals(critic, recipe, members, [0, len(members)])
    largest = float(whole.abs().max())
    assert largest > 1e-3
    assert 0.1 < numbers["clip_fraction"] < 0.9
    for parts in (*CUTS, *(_edges(members, budget) for budget in TOKEN_BUDGETS)):
        cut, cut_numbers = _totals(critic, recipe, members, parts)
        assert float((cut - whole).abs().max()) <= 1e-6 * max(1.0, largest)
        assert cut_numbers == pytest.approx(numbers, rel=1e-5)


def test_rejected_tokens_teach_the_critic_nothing_and_are_counted_in_the_mean(
    critic: Model, tiny_critic: Critic, members: list[Experience]
) -> None:
    def moved(each: Experience) -> Experience:
        assert each.returns_R is not None
        return replace(each, returns_R=torch.where(each.is_trained_R, each.returns_R, 1e6))

    parts = [0, len(members)]
    gradient, numbers = _totals(critic, tiny_critic, members, parts)
    same, same_numbers = _totals(critic, tiny_critic, [moved(each) for each in members], parts)
    assert torch.equal(gradient, same)
    assert numbers == same_numbers
    losses_R = [
        value_loss(now_R, each.values_R, each.returns_R, clip=tiny_critic.value_clip)
        for each, now_R in zip(
            members,
            values(critic, [each.trajectory for each in members], micro_batch_tokens=100),
            strict=True,
        )
        if each.values_R is not None
        if each.returns_R is not None
    ]
    trained = torch.cat([each.is_trained_R for each in members])
    expected = float(torch.cat(losses_R)[trained].sum()) / sum(LENGTHS)
    assert numbers["loss"] == pytest.approx(expected, rel=1e-5)


def test_values_that_equal_the_returns_explain_all_of_their_variance(
    members: list[Experience],
) -> None:
    exact = [replace(each, values_R=each.returns_R) for each in members]
    assert value_metrics(exact)["value_explained_variance"] == 1.0


def test_explained_variance_by_hand(members: list[Experience]) -> None:
    """Returns 1, 2, 3 have the variance 1; the errors 0.5, 0, -0.5 have 0.25. Another token is rejected."""
    given = replace(
        members[3],
        is_trained_R=torch.tensor([True, True, False, True]),
        values_R=torch.tensor([0.5, 2.0, 9.0, 3.5]),
        returns_R=torch.tensor([1.0, 2.0, 7.0, 3.0]),
    )
    found = value_metrics([given])
    assert found["value_mean"] == 2.0
    assert found["return_mean"] == 2.0
    assert found["value_explained_variance"] == pytest.approx(0.75, abs=1e-5)


def test_where_every_token_is_rejected_there_is_nothing_to_explain(
    members: list[Experience],
) -> None:
    assert value_metrics([members[4]]) == {}
