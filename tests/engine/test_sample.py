"""Rollouts: the decoder against transformers, and that nothing but its own noise reaches a response."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, Qwen2Config, Qwen3Config

from miniverl.engine.decoder import Decoder
from miniverl.engine.models import Model, load_policy
from miniverl.engine.recipe import Recipe
from miniverl.engine.sample import Response, Sampling, generate
from miniverl.engine.trajectory import Prompt

PROMPTS = ([1, 14, 5, 7, 2], [1, 15, 2], [1, 14, 6, 8, 9, 4, 2], [1, 15, 9, 2])
SAMPLING = Sampling(
    samples_per_prompt=3, max_tokens=12, temperature=1.0, top_p=1.0, top_k=0, end_tokens=(3,)
)


@pytest.fixture
def decoder(tiny_policy: Model) -> Decoder:
    decoder = Decoder(tiny_policy, torch.float32)
    decoder.load()
    return decoder


def _prompt(number: int) -> Prompt:
    return Prompt(
        prompt_id=number,
        messages=(),
        tokens=tuple(PROMPTS[number]),
        ground_truth=None,
        data_source="tiny",
        extra={},
    )


def _generate(
    decoder: Decoder, numbers: Sequence[int], sampling: Sampling = SAMPLING, version: int = 0
) -> list[Response]:
    prompts = [_prompt(number) for number in numbers]
    return generate(decoder, prompts, sampling, seed=5, policy_version=version)


def _started(decoder: Decoder, numbers: Sequence[int], max_new_tokens: int) -> Tensor:
    """A row for each number of a prompt; their logits."""
    decoder.open(len(numbers), max(len(PROMPTS[number]) for number in numbers) + max_new_tokens)
    entering = [each for number in numbers for each in decoder.prefill([PROMPTS[number]])]
    for row, prompt in enumerate(entering):
        decoder.enter(prompt, row)
    return torch.stack([prompt.logits_V for prompt in entering])


def _next_logits(model: Model, tokens: Sequence[int]) -> Tensor:
    with torch.no_grad():
        logits_V: Tensor = model.network(torch.tensor([tokens])).logits[0, -1]
    return logits_V


@pytest.mark.parametrize("config_class", [LlamaConfig, Qwen2Config, Qwen3Config])
def test_the_decoder_gives_the_logits_of_transformers(
    make_model: Callable[..., Path], tiny_recipe: Recipe, config_class: type
) -> None:
    model = load_policy(tiny_recipe.policy, make_model(config_class), adapter_seed=1, device="cpu")
    for name, parameter in model.trained().items():
        if name.endswith("lora_B"):
            torch.nn.init.normal_(parameter, std=0.2, generator=torch.Generator().manual_seed(2))
    decoder = Decoder(model, torch.float32)
    decoder.load()
    rows = [0, 0, 1, 2]
    sequences = [list(PROMPTS[index]) for index in rows]
    logits_BV = _started(decoder, rows, max_new_tokens=70)
    for _ in range(66):  # beyond the 64 columns that attention reads first
        expected_BV = torch.stack([_next_logits(model, tokens) for tokens in sequences])
        torch.testing.assert_close(logits_BV, expected_BV, atol=1e-4, rtol=1e-4)
        tokens_B = torch.stack(
            [logits_V.topk(row + 1).indices[-1] for row, logits_V in enumerate(logits_BV)]
        )
        for tokens, token in zip(sequences, tokens_B.tolist(), strict=True):
            tokens.append(token)
        logits_BV = decoder.step(tokens_B)


def test_rows_go_on_unchanged_when_others_leave(decoder: Decoder) -> None:
    tokens_B = torch.tensor([5, 6, 7, 8])
    _started(decoder, [0, 1, 2, 3], max_new_tokens=4)
    decoder.step(tokens_B)
    expected_BV = decoder.step(tokens_B)
    _started(decoder, [0, 1, 2, 3], max_new_tokens=4)
    decoder.step(tokens_B)
    decoder.keep([0, 3, 2])
    assert torch.equal(decoder.step(tokens_B[[0, 3, 2]]), expected_BV[[0, 3, 2]])


def test_a_row_that_enters_later_decodes_as_one_that_was_there_from_the_start(
    decoder: Decoder,
) -> None:
    tokens_B = torch.tensor([5, 6])
    expected = _started(decoder, [3, 1], max_new_tokens=40)
    expected = [expected, *(decoder.step(tokens_B) for _ in range(3))]
    _started(decoder, [0, 2], max_new_tokens=40)
    for _ in range(35):  # longer than the prompts that come: what it leaves behind must not count
        decoder.step(tokens_B)
    logits = [[], []]
    for row, number in enumerate([3, 1]):
        (prompt,) = decoder.prefill([PROMPTS[number]])
        decoder.enter(prompt, row)
        logits[row].append(prompt.logits_V)
    for _ in range(3):
        for row, logits_V in enumerate(decoder.step(tokens_B)):
            logits[row].append(logits_V)
    for row in (0, 1):
        assert torch.equal(torch.stack(logits[row]), torch.stack([each[row] for each in expected]))


def test_loading_takes_the_present_weights(tiny_policy: Model, decoder: Decoder) -> None:
    before_BV = _started(decoder, [0, 1], max_new_tokens=1)
    for parameter in tiny_policy.trained().values():
        parameter.data.mul_(0.5)
    assert torch.equal(_started(decoder, [0, 1], max_new_tokens=1), before_BV)
    decoder.load()
    assert not torch.equal(_started(decoder, [0, 1], max_new_tokens=1), before_BV)


def test_sampling_leaves_the_policy_as_it_was(tiny_policy: Model, decoder: Decoder) -> None:
    before = {name: each.clone() for name, each in tiny_policy.network.named_parameters()}
    _generate(decoder, [0, 1])
    for name, each in tiny_policy.network.named_parameters():
        assert torch.equal(each, before[name])


def test_responses_come_by_prompt_and_sample(decoder: Decoder) -> None:
    responses = _generate(decoder, [2, 0])
    assert [(each.prompt.prompt_id, each.sample) for each in responses] == [
        (2, 0), (2, 1), (2, 2), (0, 0), (0, 1), (0, 2)
    ]  # fmt: skip


def test_a_prompt_met_again_goes_on_with_samples_of_its_own(decoder: Decoder) -> None:
    responses = _generate(decoder, [1, 2, 1])
    assert [each.sample for each in responses] == [0, 1, 2, 0, 1, 2, 3, 4, 5]
    again = {(each.sample, each.tokens) for each in responses if each.prompt.prompt_id == 1}
    assert len({tokens for _, tokens in again}) > 3
    alone = generate(
        decoder, [_prompt(1)], SAMPLING, seed=5, policy_version=0, earlier=[_prompt(1), _prompt(2)]
    )
    assert alone == responses[6:]
    six = replace(SAMPLING, samples_per_prompt=6)
    assert _generate(decoder, [1], six) == [*responses[:3], *responses[6:]]


def test_a_response_ends_with_its_first_end_token_or_at_the_limit(decoder: Decoder) -> None:
    responses = _generate(decoder, [0, 1, 2, 3])
    assert {each.is_finished for each in responses} == {True, False}
    for each in responses:
        assert 3 not in each.tokens[:-1]
        assert each.is_finished == (each.tokens[-1] == 3)
        assert each.is_finished or len(each.tokens) == SAMPLING.max_tokens
        assert len(each.log_probs) == len(each.tokens)


def test_without_end_tokens_every_response_reaches_the_limit(decoder: Decoder) -> None:
    responses = _generate(decoder, [0, 1, 2, 3], replace(SAMPLING, end_tokens=()))
    assert {len(each.tokens) for each in responses} == {SAMPLING.max_tokens}
    assert any(3 in each.tokens for each in responses)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_response_does_not_depend_on_what_is_sampled_beside_it(
    decoder: Decoder, threads: int
) -> None:
    together = {
        (each.prompt.prompt_id, each.sample): each for each in _generate(decoder, [0, 1, 2, 3])
    }
    torch.set_num_threads(threads)
    for numbers in ([3, 1], [2], [0]):
        for each in _generate(decoder, numbers):
            assert each == together[each.prompt.prompt_id, each.sample]
    torch.set_num_threads(1)
    single = replace(SAMPLING, samples_per_prompt=1)
    assert _generate(decoder, [1], single) == [together[1, 0]]


@pytest.mark.parametrize("max_rows", [2, 3, 5, 11])
@pytest.mark.parametrize("max_tokens", [12, 40])
def test_waiting_rows_take_the_slots_of_ended_ones_and_nothing_else_changes(
    decoder: Decoder, max_rows: int, max_tokens: int
) -> None:
    sampling = replace(SAMPLING, max_tokens=max_tokens)
    prompts = [_prompt(number) for number in (0, 1, 2, 3, 1)]
    at_once = generate(decoder, prompts, sampling, seed=5, policy_version=0)
    assert len({len(each.tokens) for each in at_once}) > 3
    refilled = generate(decoder, prompts, sampling, seed=5, policy_version=0, max_rows=max_rows)
    assert refilled == at_once


def test_noise_differs_between_samples_and_policy_versions(decoder: Decoder) -> None:
    first, second = _generate(decoder, [0]), _generate(decoder, [0], version=1)
    assert len({each.tokens for each in first}) == 3
    assert [each.tokens for each in first] != [each.tokens for each in second]


def test_greedy_takes_the_largest_logit(tiny_policy: Model, decoder: Decoder) -> None:
    greedy = replace(SAMPLING, temperature=0.0, samples_per_prompt=2)
    first, second = _generate(decoder, [0], greedy)
    assert first.tokens == second.tokens
    tokens = list(PROMPTS[0])
    for token in first.tokens:
        assert token == int(_next_logits(tiny_policy, tokens).argmax())
        tokens.append(token)


def test_log_probs_are_those_of_the_drawn_tokens(tiny_policy: Model, decoder: Decoder) -> None:
    response = _generate(decoder, [0], replace(SAMPLING, temperature=0.7))[0]
    tokens = list(PROMPTS[0])
    for token, log_prob in zip(response.tokens, response.log_probs, strict=True):
        expected_V = (_next_logits(tiny_policy, tokens) / 0.7).log_softmax(-1)
        assert log_prob == pytest.approx(expected_V[token].item(), abs=1e-4)
        tokens.append(token)


def test_filtered_log_probs_are_those_among_the_tokens_that_top_k_left(
    tiny_policy: Model, decoder: Decoder
) -> None:
    response = _generate(decoder, [0], replace(SAMPLING, top_k=2))[0]
    tokens = list(PROMPTS[0])
    pairs = zip(response.log_probs, response.filtered_log_probs, strict=True)
    for token, (log_prob, filtered) in zip(response.tokens, pairs, strict=True):
        probabilities_V = _next_logits(tiny_policy, tokens).softmax(-1)
        kept = probabilities_V.topk(2).values.sum().log().item()
        assert filtered == pytest.approx(log_prob - kept, abs=1e-4)
        tokens.append(token)


def test_where_nothing_is_filtered_both_log_probs_are_equal(decoder: Decoder) -> None:
    for response in _generate(decoder, [0, 1]):
        assert response.filtered_log_probs == response.log_probs


def test_prompts_that_run_together_leave_what_each_leaves_alone(decoder: Decoder) -> None:
    decoder.open(1, 32)
    together = decoder.prefill(PROMPTS)
    for tokens, found in zip(PROMPTS, together, strict=True):
        (alone,) = decoder.prefill([tokens])
        assert torch.equal(found.logits_V, alone.logits_V)
        for ours, expected in zip(
            [*found.keys, *found.values], [*alone.keys, *alone.values], strict=True
        ):
            assert torch.equal(ours, expected)
