"""Drawing a token: the right distribution, whatever the row's company."""

import pytest
import torch

from miniverl.engine.draw import draw
from miniverl.engine.seeds import noise_key, uniforms

pytestmark = pytest.mark.slow

VOCABULARY = 300


def uniform_numbers(count: int) -> torch.Tensor:
    return uniforms(torch.arange(count) * 7919 + noise_key(0, 0, 0, 0), 0)


def random_logits(rows: int, vocabulary: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, vocabulary, generator=generator) * 3


@pytest.fixture
def _threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("temperature", [1.0, 0.6, 1.7])
def test_frequencies_follow_the_softmax_at_the_temperature(temperature):
    logits_V = torch.full((VOCABULARY,), -torch.inf)
    support = torch.arange(0, VOCABULARY, 6)  # 50 tokens over three blocks
    logits_V[support] = random_logits(1, 50, seed=1)[0] / 2
    count = 200_000
    tokens_B, _, _ = draw(
        logits_V.expand(count, -1),
        uniform_numbers(count),
        temperature=temperature,
        top_p=1.0,
        top_k=0,
    )
    observed_V = torch.bincount(tokens_B, minlength=VOCABULARY).double()
    expected_V = count * (logits_V.double() / temperature).softmax(-1)
    chi_square = ((observed_V - expected_V)[support] ** 2 / expected_V[support]).sum().item()
    assert observed_V[support].sum() == count  # no token of probability 0
    assert chi_square < 85.4  # 49 degrees of freedom, p = 0.001


def test_log_probs_are_those_of_the_scaled_logits_over_the_whole_vocabulary():
    logits_BV = random_logits(64, 1000, seed=2)
    for top_p, top_k in ((1.0, 0), (0.9, 0), (1.0, 5), (0.8, 20)):
        tokens_B, log_probs_B, _ = draw(
            logits_BV, uniform_numbers(64), temperature=0.7, top_p=top_p, top_k=top_k
        )
        expected_BV = (logits_BV.double() / 0.7).log_softmax(-1)
        expected_B = expected_BV.gather(1, tokens_B[:, None])[:, 0]
        torch.testing.assert_close(log_probs_B.double(), expected_B, atol=2e-6, rtol=0)


@pytest.mark.parametrize(
    ("top_p", "top_k", "allowed"),
    [(1.0, 0, [0, 1, 2, 3]), (1.0, 2, [1, 3]), (0.6, 0, [1, 3]), (0.75, 0, [1, 2, 3])],
)
def test_filtered_log_probs_are_those_among_the_tokens_that_could_be_drawn(top_p, top_k, allowed):
    probabilities_V = torch.tensor([0.1, 0.4, 0.2, 0.3], dtype=torch.float64)
    found = draw(
        probabilities_V.log().expand(200, -1),
        uniform_numbers(200),
        temperature=1.0,
        top_p=top_p,
        top_k=top_k,
    )
    chosen_B = probabilities_V[found.tokens_B]
    expected_B = (chosen_B / probabilities_V[allowed].sum()).log()
    torch.testing.assert_close(found.filtered_log_probs_B.double(), expected_B, atol=1e-6, rtol=0)
    torch.testing.assert_close(found.log_probs_B.double(), chosen_B.log(), atol=1e-6, rtol=0)


@pytest.mark.parametrize(("temperature", "top_p", "top_k"), [(0.7, 1.0, 0), (0.0, 0.5, 3)])
def test_where_nothing_is_filtered_both_log_probs_are_one_tensor(temperature, top_p, top_k):
    found = draw(
        random_logits(4, 50, seed=5),
        uniform_numbers(4),
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
    )
    assert found.filtered_log_probs_B is found.log_probs_B


def test_temperature_0_takes_the_first_largest_logit():
    logits_BV = torch.tensor([[0.0, 2.0, 2.0, 1.0], [3.0, 0.0, 0.0, 3.0]])
    tokens_B, log_probs_B, _ = draw(
        logits_BV, torch.tensor([0.9, 0.9]), temperature=0.0, top_p=0.5, top_k=1
    )
    assert tokens_B.tolist() == [1, 0]
    torch.testing.assert_close(log_probs_B, logits_BV.log_softmax(-1)[[0, 1], [1, 0]])


def test_the_uniform_number_falls_into_intervals_in_the_order_of_the_vocabulary():
    logits_BV = torch.tensor([0.5, 0.25, 0.0, 0.25]).log().expand(6, -1)
    uniforms_B = torch.tensor([0.0, 0.49, 0.5, 0.74, 0.75, 1 - 2**-53], dtype=torch.float64)
    tokens_B, _, _ = draw(logits_BV, uniforms_B, temperature=1.0, top_p=1.0, top_k=0)
    assert tokens_B.tolist() == [0, 0, 1, 1, 3, 3]


@pytest.mark.parametrize("vocabulary", [1, 2, 127, 128, 129, 4000])
def test_a_token_of_probability_0_is_never_drawn_not_even_at_the_ends(vocabulary):
    logits_V = torch.full((vocabulary,), -torch.inf)
    logits_V[vocabulary // 2] = -1000.0
    edges_B = torch.tensor([0.0, 2**-53, 0.5, 1 - 2**-53], dtype=torch.float64)
    tokens_B, log_probs_B, _ = draw(
        logits_V.expand(4, -1), edges_B, temperature=1.0, top_p=1.0, top_k=0
    )
    assert tokens_B.tolist() == [vocabulary // 2] * 4
    assert log_probs_B.tolist() == [0.0] * 4


def test_top_k_draws_from_the_k_largest_in_their_proportions():
    logits_V = torch.tensor([0.1, 0.4, 0.2, 0.3]).log()
    tokens_B, _, _ = draw(
        logits_V.expand(50_000, -1), uniform_numbers(50_000), temperature=1.0, top_p=1.0, top_k=2
    )
    share_V = torch.bincount(tokens_B, minlength=4) / 50_000
    assert share_V[[0, 2]].tolist() == [0.0, 0.0]
    assert abs(share_V[1].item() - 4 / 7) < 5 * (0.25 / 50_000) ** 0.5


def test_top_p_keeps_the_fewest_tokens_that_reach_it():
    logits_V = torch.tensor([0.1, 0.4, 0.2, 0.3]).log()

    def kept(top_p: float) -> set[int]:
        tokens_B, _, _ = draw(
            logits_V.expand(2000, -1),
            uniform_numbers(2000),
            temperature=1.0,
            top_p=top_p,
            top_k=0,
        )
        return set(tokens_B.tolist())

    assert kept(0.05) == {1}
    assert kept(0.6) == {1, 3}
    assert kept(0.75) == {1, 2, 3}
    assert kept(0.95) == {0, 1, 2, 3}


def test_top_p_counts_what_top_k_left():
    # Of the two largest, 0.4 and 0.3, the first alone holds 4/7 > 0.5.
    logits_V = torch.tensor([0.1, 0.4, 0.2, 0.3]).log()
    tokens_B, _, _ = draw(
        logits_V.expand(2000, -1), uniform_numbers(2000), temperature=1.0, top_p=0.5, top_k=2
    )
    assert set(tokens_B.tolist()) == {1}


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize(("top_p", "top_k"), [(1.0, 0), (0.9, 50)])
def test_a_row_does_not_depend_on_its_company_nor_on_the_threads(top_p, top_k):
    logits_BV = random_logits(33, 5000, seed=3)
    uniforms_B = uniform_numbers(33)
    torch.set_num_threads(1)
    tokens_B, log_probs_B, _ = draw(
        logits_BV, uniforms_B, temperature=0.8, top_p=top_p, top_k=top_k
    )
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for rows in ([0], [1, 0], [5, 6, 7, 8, 9], [*range(32, 15, -1)], [*range(33)]):
            some_B, some_log_probs_B, _ = draw(
                logits_BV[rows], uniforms_B[rows], temperature=0.8, top_p=top_p, top_k=top_k
            )
            assert torch.equal(some_B, tokens_B[rows])
            assert some_log_probs_B.numpy().tobytes() == log_probs_B[rows].numpy().tobytes()


def test_a_row_with_a_nan_logit_has_the_log_prob_nan_and_spoils_no_other_row():
    logits_BV = random_logits(2, VOCABULARY, seed=4)
    alone_B, _, _ = draw(logits_BV, torch.tensor([0.3, 0.3]), temperature=1.0, top_p=1.0, top_k=0)
    logits_BV[0, 7] = torch.nan
    tokens_B, log_probs_B, _ = draw(
        logits_BV, torch.tensor([0.3, 0.3]), temperature=1.0, top_p=1.0, top_k=0
    )
    assert log_probs_B.isnan().tolist() == [True, False]
    assert tokens_B[1] == alone_B[1]
    assert 0 <= tokens_B[0] < VOCABULARY


@pytest.mark.parametrize(("top_p", "top_k"), [(1.0, 0), (0.9, 0), (1.0, 3)])
def test_a_row_of_nothing_but_nan_draws_a_token_of_the_vocabulary(top_p, top_k):
    logits_BV = torch.full((1, 5), torch.nan)
    tokens_B, log_probs_B, _ = draw(
        logits_BV, torch.tensor([0.3]), temperature=1.0, top_p=top_p, top_k=top_k
    )
    assert 0 <= tokens_B[0] < 5
    assert log_probs_B.isnan().all()
