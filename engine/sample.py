"""Rollout: responses sampled from the policy, several per prompt.

A response depends on the weights, its prompt and its own noise (see engine/seeds.py), not on what else is
sampled beside it: a row leaves the batch where it ends, and a waiting one takes its slot.

Axes: B rows being decoded, V vocabulary.
"""

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from miniverl.engine.decoder import Prefilled
from miniverl.engine.decoders import AnyDecoder
from miniverl.engine.draw import Draw, draw
from miniverl.engine.seeds import noise_key, uniforms
from miniverl.engine.trajectory import Prompt

MAX_ROWS = 256
_MAX_PREFILL_TOKENS = 512  # of prompts that run together, and whose keys and values wait
_MAX_CACHE_TOKENS = 32768  # rows times the longest they can become
MIN_ROWS = 2  # one row takes another kernel, with other roundings, than many
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
    """Both log-probs are those of `draw`, under the decoder's arithmetic. An end token belongs to the response."""

    prompt: Prompt
    sample: int
    tokens: tuple[int, ...]
    log_probs: tuple[float, ...]
    filtered_log_probs: tuple[float, ...]  # among the tokens that top-p and top-k left
    is_finished: bool  # by an end token; False: the limit was reached


def generate(
    decoder: AnyDecoder,
    prompts: Sequence[Prompt],
    sampling: Sampling,
    *,
    seed: int,
    policy_version: int,
    earlier: Sequence[Prompt] = (),
    max_rows: int = MAX_ROWS,
) -> list[Response]:
    """`samples_per_prompt` responses for each prompt, in the order of prompts and sample numbers.

    A prompt that comes again, in `prompts` or after `earlier` ones of this policy version, goes on with the next
    sample numbers, and hence with noise of its own. At most `max_rows` are decoded at once.
    """
    rows = _rows(prompts, sampling.samples_per_prompt, earlier)
    keys = [noise_key(seed, prompt.prompt_id, policy_version, sample) for prompt, sample in rows]
    # One row alone is decoded twice.
    padded = [*range(len(rows)), *[0] * max(0, MIN_ROWS - len(rows))]
    drawn = _decode(
        decoder,
        [rows[each] for each in padded],
        [keys[each] for each in padded],
        sampling,
        num_slots(prompts, sampling, max_rows),
    )
    return [
        _response(row, each, sampling) for row, each in zip(rows, drawn[: len(rows)], strict=True)
    ]


def num_slots(prompts: Sequence[Prompt], sampling: Sampling, max_rows: int = MAX_ROWS) -> int:
    """How many rows are decoded at once, at most; never one alone."""
    longest = max(len(prompt.tokens) for prompt in prompts) + sampling.max_tokens
    num_rows = len(prompts) * sampling.samples_per_prompt
    return max(MIN_ROWS, min(max_rows, _MAX_CACHE_TOKENS // longest, num_rows))


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


@dataclass(slots=True)
class _Drawn:
    """Of one row, up to a few tokens behind its end."""

    tokens: list[int]
    log_probs: list[float]
    filtered_log_probs: list[float]


@torch.inference_mode()
def _decode(
    decoder: AnyDecoder,
    rows: Sequence[Row],
    keys: Sequence[int],
    sampling: Sampling,
    slot_count: int,
) -> list[_Drawn]:
    """Decode every row, in that many slots.

    Where a row ends, the next waiting one enters its slot; when none waits, slots are given up until only
    `MIN_ROWS` are left.
    """
    between_checks = _TOKENS_BETWEEN_CHECKS[decoder.device.type]
    longest = max(len(prompt.tokens) for prompt, _ in rows) + sampling.max_tokens
    slots = _Slots(decoder, rows, keys, slot_count, longest + between_checks)
    end_tokens = torch.tensor(sampling.end_tokens, dtype=torch.int64, device=decoder.device)
    drawn = [_Drawn([], [], []) for _ in rows]
    unread: list[Draw] = []
    while True:
        found = draw(
            slots.logits_BV,
            uniforms(slots.keys_B, slots.positions_B),
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
        )
        unread.append(found)
        slots.positions_B += 1
        slots.has_ended_B |= torch.isin(found.tokens_B, end_tokens)
        slots.has_ended_B |= slots.positions_B >= sampling.max_tokens
        if len(unread) == between_checks:
            _read(unread, slots.rows, drawn)
            ended = slots.has_ended_B.tolist()
            if all(ended) and not slots.num_waiting:
                return drawn
            kept = _kept_slots(ended, slots.num_waiting)
            slots.advance(found.tokens_B, kept, [ended[slot] for slot in kept])
        else:
            slots.advance(found.tokens_B, range(len(slots.rows)), [False] * len(slots.rows))


class _Slots:
    """The rows that are being decoded, and those that wait, in order."""

    def __init__(
        self,
        decoder: AnyDecoder,
        rows: Sequence[Row],
        keys: Sequence[int],
        num_slots: int,
        longest: int,
    ) -> None:
        self._decoder = decoder
        self._waiting = deque(range(len(rows)))
        self._all_rows = rows
        self._all_keys = keys
        self._prefilled: dict[
            int, Prefilled
        ] = {}  # by prompt id, from the one that entered last on
        decoder.open(num_slots, longest)
        zeros = partial(torch.zeros, num_slots, dtype=torch.int64, device=decoder.device)
        self.rows = [-1] * num_slots  # which row each slot decodes
        self.keys_B = zeros()
        self.positions_B = zeros()  # of the token that is drawn next, within its response
        self.has_ended_B = zeros().bool()
        entered = [self._enter(slot) for slot in range(num_slots)]
        self.logits_BV = torch.stack(entered)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def advance(self, tokens_B: Tensor, kept: Sequence[int], is_free: Sequence[bool]) -> None:
        """Append the tokens, where new slot i is what slot `kept[i]` was, and let waiting rows enter free slots."""
        if len(kept) < len(self.rows):
            self._decoder.keep(kept)
            kept_B = torch.tensor(kept, device=tokens_B.device)
            tokens_B, self.keys_B = tokens_B[kept_B], self.keys_B[kept_B]
            self.positions_B, self.has_ended_B = self.positions_B[kept_B], self.has_ended_B[kept_B]
            self.rows = [self.rows[slot] for slot in kept]
        self.logits_BV = self._decoder.step(tokens_B)
        for slot, is_it_free in enumerate(is_free):
            if is_it_free and self._waiting:
                self.logits_BV[slot] = self._enter(slot)
            elif is_it_free:
                self._decoder.rewind(slot)

    def _enter(self, slot: int) -> Tensor:
        """The logits behind the prompt that entered. Samples of one prompt wait side by side."""
        row = self._waiting.popleft()
        prompt, _ = self._all_rows[row]
        if prompt.prompt_id not in self._prefilled:
            wanted = self._next_prompts(prompt)
            made = self._decoder.prefill([each.tokens for each in wanted])
            ids = (each.prompt_id for each in wanted)
            self._prefilled = dict(zip(ids, made, strict=True))
        for entered in [*self._prefilled]:
            if entered == prompt.prompt_id:
                break
            del self._prefilled[entered]
        prefilled = self._prefilled[prompt.prompt_id]
        self._decoder.enter(prefilled, slot)
        self.rows[slot] = row
        self.keys_B[slot] = self._all_keys[row]
        self.positions_B[slot] = 0
        self.has_ended_B[slot] = False
        return prefilled.logits_V

    def _next_prompts(self, first: Prompt) -> list[Prompt]:
        """`first`, and those that enter after it as far as they are run together."""
        found = {first.prompt_id: first}
        num_tokens = len(first.tokens)
        for row in self._waiting if self._decoder.prefills_together else ():
            prompt, _ = self._all_rows[row]
            if prompt.prompt_id in found:
                continue
            num_tokens += len(prompt.tokens)
            if num_tokens > _MAX_PREFILL_TOKENS:
                break
            found[prompt.prompt_id] = prompt
        return list(found.values())


def _read(unread: list[Draw], rows: Sequence[int], drawn: Sequence[_Drawn]) -> None:
    """Move what was drawn since the last check to its rows."""
    for each in unread:
        is_filtered = each.filtered_log_probs_B is not each.log_probs_B
        log_probs = filtered_log_probs = each.log_probs_B.tolist()
        if is_filtered:  # else it would be read from the device twice
            filtered_log_probs = each.filtered_log_probs_B.tolist()
        for row, token, log_prob, filtered in zip(
            rows, each.tokens_B.tolist(), log_probs, filtered_log_probs, strict=True
        ):
            drawn[row].tokens.append(token)
            drawn[row].log_probs.append(log_prob)
            drawn[row].filtered_log_probs.append(filtered)
    unread.clear()


def _kept_slots(ended: Sequence[bool], num_waiting: int) -> list[int]:
    """Old slot of each new one: those still going, and ended ones for waiting rows or up to `MIN_ROWS`; few move."""
    going = [slot for slot, has_ended in enumerate(ended) if not has_ended]
    free = [slot for slot, has_ended in enumerate(ended) if has_ended]
    going += free[: max(num_waiting, MIN_ROWS - len(going))]
    movers = iter(slot for slot in going if slot >= len(going))
    staying = {slot for slot in going if slot < len(going)}
    return [slot if slot in staying else next(movers) for slot in range(len(going))]


def _response(row: Row, drawn: _Drawn, sampling: Sampling) -> Response:
    """Cut off what was decoded behind the first end token, or the limit."""
    tokens = drawn.tokens[: sampling.max_tokens]
    ends = (index + 1 for index, token in enumerate(tokens) if token in sampling.end_tokens)
    length = next(ends, None)
    return Response(
        prompt=row[0],
        sample=row[1],
        tokens=tuple(tokens[:length]),
        log_probs=tuple(drawn.log_probs[: sampling.max_tokens][:length]),
        filtered_log_probs=tuple(drawn.filtered_log_probs[: sampling.max_tokens][:length]),
        is_finished=length is not None,
    )
