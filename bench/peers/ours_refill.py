"""This engine's slots at the lengths that the model gives by itself, refilled, and as a padded batch.

    python -P -m miniverl.bench.peers.ours_refill MODEL_FOLDER --threads 2

Padded: rows in batches of `slots`, each until its longest row ends. Refilled: `generate` with `slots` rows at once.
Both give the same tokens, which the answers carry.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from miniverl.bench.peers.answers import Json, serve
from miniverl.bench.peers.ours_rollout import as_prompts, free, loaded
from miniverl.engine.decoder import Decoder
from miniverl.engine.draw import draw
from miniverl.engine.models import load_tokenizer
from miniverl.engine.sample import Sampling, generate
from miniverl.engine.seeds import noise_key, uniforms
from miniverl.engine.trajectory import Prompt

QUESTIONS = (
    "Say hello.",
    "What is {} plus 17?",
    "Name {} animals.",
    "Explain gravity in one sentence.",
    "Who are you?",
    "Write a short poem about the number {}.",
    "Is {} a prime number?",
    "What colour is the sky?",
)
_SEED = 1

Tokens = list[tuple[int, ...]]
Way = Callable[[Decoder, Sequence[Prompt], Sampling, int], Tokens]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=int, required=True)
    call = parser.parse_args()
    torch.set_num_threads(call.threads)
    decoder = loaded(call.model, "float32")
    tokenizer = load_tokenizer(call.model)

    def measure(question: Json) -> Json:
        prompts = as_prompts(
            [_tokens(tokenizer, number) for number in range(question["num_prompts"])]
        )
        ends = (tokenizer.eos_token_id,)
        sampling = free(question["new_tokens"], samples=question["samples"], end_tokens=ends)
        started = time.perf_counter()
        found = WAYS[question["way"]](decoder, prompts, sampling, question["slots"])
        seconds = time.perf_counter() - started
        return {
            "seconds": seconds,
            "tokens": sum(map(len, found)),
            "prompts": [each.tokens for each in prompts],
            "responses": found,
        }

    serve(measure)


def refilled(decoder: Decoder, prompts: Sequence[Prompt], sampling: Sampling, slots: int) -> Tokens:
    responses = generate(decoder, prompts, sampling, seed=_SEED, policy_version=0, max_rows=slots)
    return [each.tokens for each in responses]


@torch.inference_mode()
def padded(decoder: Decoder, prompts: Sequence[Prompt], sampling: Sampling, slots: int) -> Tokens:
    samples, (end,) = sampling.samples_per_prompt, sampling.end_tokens
    found: Tokens = []
    size = slots // samples
    for start in range(0, len(prompts), size):
        batch = prompts[start : start + size]
        longest = max(len(each.tokens) for each in batch) + sampling.max_tokens
        decoder.open(samples * len(batch), longest)
        prefilled = decoder.prefill([each.tokens for each in batch])
        entering = [each for each in prefilled for _ in range(samples)]
        for row, each in enumerate(entering):
            decoder.enter(each, row)
        logits_BV = torch.stack([each.logits_V for each in entering])
        keys_B = torch.tensor(
            [noise_key(_SEED, each.prompt_id, 0, row) for each in batch for row in range(samples)]
        )
        columns: list[torch.Tensor] = []
        has_ended_B = torch.zeros(len(keys_B), dtype=torch.bool)
        while True:
            uniforms_B = uniforms(keys_B, len(columns))
            tokens_B = draw(logits_BV, uniforms_B, temperature=1.0, top_p=1.0, top_k=0).tokens_B
            columns.append(tokens_B)
            has_ended_B |= tokens_B == end
            if len(columns) == sampling.max_tokens or has_ended_B.all():
                break
            logits_BV = decoder.step(tokens_B)
        rows = torch.stack(columns, 1).tolist()
        found += [tuple(row[: row.index(end) + 1] if end in row else row) for row in rows]
    return found


WAYS: dict[str, Way] = {"refilled": refilled, "padded": padded}


def _tokens(tokenizer: object, number: int) -> list[int]:
    question = QUESTIONS[number % len(QUESTIONS)].format(3 + number // len(QUESTIONS))
    found: list[int] = tokenizer.apply_chat_template(  # type: ignore[attr-defined]
        [{"role": "user", "content": question}],
        add_generation_prompt=True,
        tokenize=True,
        return_dict=False,
    )
    return found


if __name__ == "__main__":
    main()
