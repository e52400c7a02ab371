"""Scores and their gradients against plain log_softmax in float64, and the bins they are computed in."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from miniverl.engine import score as scores
from miniverl.engine.models import Model, load_policy
from miniverl.engine.packed import pack
from miniverl.engine.recipe import Recipe
from miniverl.engine.score import Entropy, bins, response_scores, score
from miniverl.engine.trajectory import Trajectory


def _trajectory(prompt_id: int, prompt_length: int, response: tuple[int, ...]) -> Trajectory:
    return Trajectory(
        prompt_id=prompt_id,
        sample=0,
        prompt_tokens=tuple(range(5, 5 + prompt_length)),
        response_tokens=response,
        is_finished=True,
        response="",
        reward=0.0,
    )


TRAJECTORIES = (
    _trajectory(0, 4, (4, 9, 3)),
    _trajectory(0, 4, (6,)),
    _trajectory(1, 2, (6, 8, 8, 5, 3)),
)


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """9 response tokens in chunks of 4 over 11 tokens, of 1 over a whole vocabulary."""
    monkeypatch.setattr(scores, "_CHUNK_LOGITS", 44)


def _double(model: Model) -> Model:
    model.network.double()
    model.compute_dtype = torch.float64
    return model


def _plain_scores(model: Model, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies, from all logits of one trajectory at a time."""
    log_probs, entropies = [], []
    for each in TRAJECTORIES:
        tokens_1T = torch.tensor([each.prompt_tokens + each.response_tokens])
        logits_RV = model.network(tokens_1T).logits[0, len(each.prompt_tokens) - 1 : -1]
        log_probs_RV = (logits_RV / temperature).log_softmax(-1)
        targets_R = torch.tensor(each.response_tokens)
        log_probs.append(log_probs_RV.gather(1, targets_R[:, None])[:, 0])
        entropies.append(-(log_probs_RV.exp() * log_probs_RV).sum(-1))
    return torch.cat(log_probs), torch.cat(entropies)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("is_adapted", [True, False])
def test_scores_and_gradients_are_those_of_log_softmax(
    tiny_model: Path, tiny_recipe: Recipe, temperature: float, is_adapted: bool
) -> None:
    recipe = tiny_recipe.policy if is_adapted else replace(tiny_recipe.policy, lora=None)
    model = _double(load_policy(recipe, tiny_model, adapter_seed=3, device="cpu"))
    weights_P = torch.linspace(-1, 2, 9, dtype=torch.float64)
    results = []
    packed = pack(TRAJECTORIES, model.device)
    ours = response_scores(model, packed, temperature=temperature, entropy="trained")
    for log_probs_P, entropy_P in (ours, _plain_scores(model, temperature)):
        loss = (weights_P * log_probs_P).sum() + (weights_P.square() * entropy_P).sum()
        gradients = torch.autograd.grad(loss, list(model.trained().values()))
        results.append([log_probs_P, entropy_P, *gradients])
    for ours_each, plain_each in zip(*results, strict=True):
        # transformers computes its norms in float32 whatever the model's type is
        torch.testing.assert_close(ours_each, plain_each, atol=1e-3, rtol=1e-4)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("num_tokens", [0, 3])
@pytest.mark.parametrize("entropy", ["trained", "none"])
def test_the_head_alone_is_exact_in_float64(entropy: Entropy, num_tokens: int) -> None:
    generator = torch.Generator().manual_seed(0)
    hidden_PH = torch.randn(9, 5, dtype=torch.float64, generator=generator, requires_grad=True)
    head_VH = torch.randn(11, 5, dtype=torch.float64, generator=generator, requires_grad=True)
    targets_P = torch.randint(11, (9,), generator=generator)
    tokens_PK = torch.rand(9, 11, generator=generator).argsort(-1)[:, :num_tokens]
    if num_tokens:
        tokens_PK[0], targets_P[0] = torch.tensor([4, 2, 9]), 2  # the target is one of the tokens

    def all_three(hidden_PH: Tensor, head_VH: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        found: tuple[Tensor, Tensor, Tensor] = scores._HeadScores.apply(  # type: ignore[no-untyped-call]
            hidden_PH, head_VH, targets_P, tokens_PK, 0.7, torch.float64, entropy
        )
        return found

    log_probs_PV = (hidden_PH @ head_VH.T / 0.7).log_softmax(-1)
    log_probs_P, entropy_P, log_probs_PK = all_three(hidden_PH, head_VH)
    torch.testing.assert_close(log_probs_P, log_probs_PV.gather(1, targets_P[:, None])[:, 0])
    torch.testing.assert_close(log_probs_PK, log_probs_PV.gather(1, tokens_PK))
    expected_P = -(log_probs_PV.exp() * log_probs_PV).sum(-1)
    if entropy == "none":
        expected_P = torch.zeros(9).double()
    torch.testing.assert_close(entropy_P, expected_P)
    assert torch.autograd.gradcheck(all_three, (hidden_PH, head_VH))


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("is_head_trained", [True, False])
@pytest.mark.parametrize("entropy", ["none", "told"])
def test_log_probs_of_other_tokens_and_their_gradients_are_those_of_plain_autograd(
    is_head_trained: bool, entropy: Entropy
) -> None:
    """A frozen head takes another way back."""
    generator = torch.Generator().manual_seed(1)
    hidden_PH = torch.randn(9, 5, dtype=torch.float64, generator=generator, requires_grad=True)
    head_VH = torch.randn(11, 5, dtype=torch.float64, generator=generator, requires_grad=True)
    targets_P = torch.randint(11, (9,), generator=generator)
    tokens_PK = torch.rand(9, 11, generator=generator).argsort(-1)[:, :4]
    weights_P5 = torch.randn(9, 5, dtype=torch.float64, generator=generator)
    head_VH.requires_grad_(is_head_trained)
    log_probs_P, entropy_P, ours_PK = scores._HeadScores.apply(  # type: ignore[no-untyped-call]
        hidden_PH, head_VH, targets_P, tokens_PK, 1.3, torch.float64, entropy
    )
    all_PV = (hidden_PH @ head_VH.T / 1.3).log_softmax(-1)
    plain_P5 = torch.cat([all_PV.gather(1, tokens_PK), all_PV.gather(1, targets_P[:, None])], 1)
    of = (hidden_PH, head_VH) if is_head_trained else (hidden_PH,)
    results = [
        [values_P5, *torch.autograd.grad((weights_P5 * values_P5.exp()).sum(), of)]
        for values_P5 in (torch.cat([ours_PK, log_probs_P[:, None]], 1), plain_P5)
    ]
    for ours, plain in zip(*results, strict=True):
        torch.testing.assert_close(ours, plain, atol=1e-12, rtol=1e-12)
    if entropy == "told":
        torch.testing.assert_close(entropy_P, -(all_PV.exp() * all_PV).sum(-1))


def test_a_score_is_one_tensor_for_each_response(tiny_policy: Model) -> None:
    found = score(
        tiny_policy, TRAJECTORIES, temperature=1.0, micro_batch_tokens=8, with_entropy=True
    )
    log_probs_P, entropy_P = _plain_scores(tiny_policy, 1.0)
    assert [len(each) for each in found.log_probs] == [3, 1, 5]
    torch.testing.assert_close(torch.cat(found.log_probs), log_probs_P, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(torch.cat(found.entropy), entropy_P, atol=1e-5, rtol=1e-5)


def test_bins_keep_the_order_and_count_a_shared_prompt_once() -> None:
    # prompt 4, then 2 and 0 more response tokens; prompt 2, then 4 more
    def sizes(budget: int) -> list[int]:
        return [len(members) for members in bins(TRAJECTORIES, budget)]

    assert sizes(12) == [3]
    assert sizes(11) == [2, 1]
    assert sizes(6) == [2, 1]
    assert sizes(5) == [1, 1, 1]
    assert [each for members in bins(TRAJECTORIES, 6) for each in members] == list(TRAJECTORIES)
