"""Rollout: responses sampled from the policy, several per prompt.

A response depends on the weights, its prompt and its own noise (see engine/seeds.py), not on what else is
sampled beside it: rows may be batched, dropped and reordered freely.

Axes: B rows being decoded, V vocabulary.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from miniverl.engine.decoder import Decoder
from miniverl.engine.draw import draw
from miniverl.engine.seeds import noise_key, uniforms
from miniverl.engine.trajectory import Prompt

_MAX_ROWS = 256
_MAX_CACHE_TOKENS = 32768  # rows times the longest they can become
_MIN_ROWS = 2  # one row takes another kernel, with other roundings, than many
_TOKENS_BETWEEN_CHECKS = {"cpu": 1, "cuda": 8}  # to ask a GPU which rows ended is to wait for it


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """How tokens are drawn. Temperature 0 is greedy; top_p 1 and top_k 0 are off."""

    samples_per_prompt: int
    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    end_tokens: tuple[int, ...]  # none: every response runs to the limit


@dataclass(frozen=True, kw_only=True, slots=True)
class Response:
    """`log_probs` are those of `draw`, under the decoder's arithmetic. An end token belongs to the response."""

    prompt: Prompt
    sample: int
    tokens: tuple[int, ...]
    log_probs: tuple[float, ...]
    is_finished: bool  # by an end token; False: the limit was reached


def generate(
    decoder: Decoder,
    prompts: Sequence[Prompt],
    sampling: Sampling,
    *,
    seed: int,
    policy_version: int,
    earlier: Sequence[Prompt] = (),
) -> list[Response]:
    """`samples_per_prompt` responses for each prompt, in the order of prompts and sample numbers.

    A prompt that comes again, in `prompts` or after `earlier` ones of this policy version, goes on with the next
    sample numbers, and hence with noise of its own.
    """
    responses = []
    for rows in _batches(_rows(prompts, sampling.samples_per_prompt, earlier), sampling):
        keys = [
            noise_key(seed, prompt.prompt_id, policy_version, sample) for prompt, sample in rows
        ]
        responses += _decode(decoder, rows, keys, sampling)
    return responses


Row = tuple[Prompt, int]


def _rows(
    prompts: Sequence[Prompt], samples_per_prompt: int, earlier: Sequence[Prompt]
) -> list[Row]:
    """(prompt, sample) pairs in order."""
    times_met = Counter(prompt.prompt_id for prompt in earlier)
    rows = []
    for prompt in prompts:
        first = times_met[prompt.prompt_id] * samples_per_prompt
        rows += [(prompt, first + sample) for sample in range(samples_per_prompt)]
        times_met[prompt.prompt_id] += 1
    return rows


def _batches(rows: Sequence[Row], sampling: Sampling) -> Iterator[Sequence[Row]]:
    """The rows in order, as many at once as the cache may hold."""
    longest = max(len(prompt.tokens) for prompt, _ in rows) + sampling.max_tokens
    size = max(_MIN_ROWS, min(_MAX_ROWS, _MAX_CACHE_TOKENS // longest))
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


def _decode(
    decoder: Decoder, rows: Sequence[Row], keys: Sequence[int], sampling: Sampling
) -> list[Response]:
    """Decode one batch; rows that ended make room until only `_MIN_ROWS` are left."""
    batch_rows = [*rows, *rows[: max(0, _MIN_ROWS - len(rows))]]
    batch_keys = [*keys, *keys[: max(0, _MIN_ROWS - len(keys))]]
    distinct = {prompt.prompt_id: prompt for prompt, _ in batch_rows}
    place = {prompt_id: index for index, prompt_id in enumerate(distinct)}
    logits_BV = decoder.start(
        [prompt.tokens for prompt in distinct.values()],
        [place[prompt.prompt_id] for prompt, _ in batch_rows],
        sampling.max_tokens,
    )
    device = logits_BV.device
    keys_B = torch.tensor(batch_keys, device=device)
    end_tokens = torch.tensor(sampling.end_tokens, dtype=torch.int64, device=device)
    has_ended_B = torch.zeros(len(batch_rows), dtype=torch.bool, device=device)
    alive = list(range(len(batch_rows)))  # the number of the response that each row decodes
    tokens: list[list[int]] = [[] for _ in batch_rows]
    log_probs: list[list[float]] = [[] for _ in batch_rows]
    unread: list[tuple[torch.Tensor, torch.Tensor]] = []
    for position in range(sampling.max_tokens):
        tokens_B, log_probs_B = draw(
            logits_BV,
            uniforms(keys_B, position),
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
        )
        unread.append((tokens_B, log_probs_B))
        has_ended_B |= torch.isin(tokens_B, end_tokens)
        is_last = position + 1 == sampling.max_tokens
        if is_last or (position + 1) % _TOKENS_BETWEEN_CHECKS[device.type] == 0:
            _read(unread, alive, tokens, log_probs)
            ended = has_ended_B.tolist()
            if is_last or all(ended):
                break
            kept = _kept_rows(ended)
            if len(kept) < len(alive):
                decoder.keep(kept)
                kept_B = torch.tensor(kept, device=device)
                tokens_B, keys_B = tokens_B[kept_B], keys_B[kept_B]
                has_ended_B = has_ended_B[kept_B]
                alive = [alive[row] for row in kept]
        logits_BV = decoder.step(tokens_B)
    return [
        _response(row, tokens[index], log_probs[index], sampling.end_tokens)
        for index, row in enumerate(rows)
    ]


def _read(
    unread: list[tuple[torch.Tensor, torch.Tensor]],
    alive: Sequence[int],
    tokens: list[list[int]],
    log_probs: list[list[float]],
) -> None:
    """Move what was drawn since the last check to the responses of its rows."""
    for tokens_B, log_probs_B in unread:
        pairs = zip(alive, tokens_B.tolist(), log_probs_B.tolist(), strict=True)
        for index, token, log_prob in pairs:
            tokens[index].append(token)
            log_probs[index].append(log_prob)
    unread.clear()


def _kept_rows(ended: Sequence[bool]) -> list[int]:
    """Old row of each new row: those still going, and ended ones up to `_MIN_ROWS`; few of them move."""
    going = [row for row, has_ended in enumerate(ended) if not has_ended]
    filling = [row for row, has_ended in enumerate(ended) if has_ended]
    going += filling[: max(0, _MIN_ROWS - len(going))]
    movers = iter(row for row in going if row >= len(going))
    staying = {row for row in going if row < len(going)}
    return [row if row in staying else next(movers) for row in range(len(going))]


def _response(
    row: Row, tokens: Sequence[int], log_probs: Sequence[float], end_tokens: Sequence[int]
) -> Response:
    """Cut off what was decoded behind the first end token."""
    ends = (index + 1 for index, token in enumerate(tokens) if token in end_tokens)
    length = next(ends, None)
    return Response(
        prompt=row[0],
        sample=row[1],
        tokens=tuple(tokens[:length]),
        log_probs=tuple(log_probs[:length]),
        is_finished=length is not None,
    )
