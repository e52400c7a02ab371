"""How much faster slots that are refilled are than padded batches, at the lengths that a model gives by itself.

    python tests/engine/measure_refill.py [--slots 16 32] [--prompts 24] [--tokens 192] [--threads 2]

Padded: rows in batches of `slots`, each batch until its longest row ends. Leaving: the same batches, ended rows
leave them. Refilled: `generate` with `slots` rows at once. The ways take turns in one process; the ratios are
those of the best times of two rounds. Exits with 1 where the ways give different tokens.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import fmean

import torch
from transformers import AutoTokenizer

from miniverl.bench.fetch import fetch
from miniverl.compiler.upstream import quiet
from miniverl.engine.decoder import Decoder
from miniverl.engine.draw import draw
from miniverl.engine.models import load_policy
from miniverl.engine.recipe import Policy
from miniverl.engine.sample import Sampling, generate
from miniverl.engine.seeds import noise_key, uniforms
from miniverl.engine.trajectory import Prompt

MODEL = "smollm2-135m-instruct"
POLICY = Policy(
    weights_sha256="",
    parameter_dtype="float32",
    compute_dtype="float32",
    lora=None,
    checkpoints_activations=False,
)
SAMPLES = 4
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

Tokens = list[tuple[int, ...]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--slots", type=int, nargs="+", default=[16, 32])
    parser.add_argument("--prompts", type=int, default=24)
    parser.add_argument("--tokens", type=int, default=192)
    parser.add_argument("--threads", type=int, default=2)
    call = parser.parse_args()
    torch.set_num_threads(call.threads)
    folder = fetch([MODEL], quiet)[MODEL]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    decoder = Decoder(load_policy(POLICY, folder, adapter_seed=0, device="cpu"), torch.float32)
    decoder.load()
    prompts = [_prompt(number, tokenizer) for number in range(call.prompts)]
    sampling = Sampling(
        samples_per_prompt=SAMPLES,
        max_tokens=call.tokens,
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        end_tokens=(tokenizer.eos_token_id,),
    )
    are_equal = [_compare(decoder, prompts, sampling, slots) for slots in call.slots]
    return 0 if all(are_equal) else 1


def _compare(decoder: Decoder, prompts: Sequence[Prompt], sampling: Sampling, slots: int) -> bool:
    ways: dict[str, Callable[[], Tokens]] = {
        "padded": partial(_padded, decoder, prompts, sampling, slots),
        "leaving": partial(_leaving, decoder, prompts, sampling, slots),
        "refilled": partial(_refilled, decoder, prompts, sampling, slots),
    }
    seconds: dict[str, float] = {}
    tokens: dict[str, Tokens] = {}
    for _ in range(2):
        for name, way in ways.items():
            started = time.perf_counter()
            tokens[name] = way()
            elapsed = time.perf_counter() - started
            seconds[name] = min(elapsed, seconds.get(name, elapsed))
    lengths = [len(each) for each in tokens["refilled"]]
    are_equal = tokens["padded"] == tokens["leaving"] == tokens["refilled"]
    print(
        f"{slots} slots, {len(lengths)} responses of {fmean(lengths):.0f} tokens (longest {max(lengths)}): "
        + ", ".join(f"{name} {sum(lengths) / each:.0f}" for name, each in seconds.items())
        + " tokens/s; refilled is "
        + ", ".join(
            f"{seconds[name] / seconds['refilled']:.2f} x {name}" for name in list(ways)[:2]
        )
        + f"; tokens are {'equal' if are_equal else 'NOT equal'}",
        flush=True,
    )
    return are_equal


def _refilled(
    decoder: Decoder, prompts: Sequence[Prompt], sampling: Sampling, slots: int
) -> Tokens:
    responses = generate(decoder, prompts, sampling, seed=1, policy_version=0, max_rows=slots)
    return [each.tokens for each in responses]


def _leaving(decoder: Decoder, prompts: Sequence[Prompt], sampling: Sampling, slots: int) -> Tokens:
    size = slots // SAMPLES
    batches = [prompts[start : start + size] for start in range(0, len(prompts), size)]
    return [tokens for batch in batches for tokens in _refilled(decoder, batch, sampling, slots)]


@torch.inference_mode()
def _padded(decoder: Decoder, prompts: Sequence[Prompt], sampling: Sampling, slots: int) -> Tokens:
    (end,) = sampling.end_tokens
    found: Tokens = []
    size = slots // SAMPLES
    for start in range(0, len(prompts), size):
        batch = prompts[start : start + size]
        decoder.open(
            SAMPLES * len(batch), max(len(each.tokens) for each in batch) + sampling.max_tokens
        )
        entering = [each for prompt in batch for each in [decoder.prefill(prompt.tokens)] * SAMPLES]
        for row, each in enumerate(entering):
            decoder.enter(each, row)
        logits_BV = torch.stack([each.logits_V for each in entering])
        keys = [
            noise_key(1, each.prompt_id, 0, sample) for each in batch for sample in range(SAMPLES)
        ]
        keys_B, columns, has_ended_B = (
            torch.tensor(keys),
            [],
            torch.zeros(len(keys), dtype=torch.bool),
        )
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


def _prompt(number: int, tokenizer: AutoTokenizer) -> Prompt:
    question = QUESTIONS[number % len(QUESTIONS)].format(3 + number // len(QUESTIONS))
    tokens = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}],
        add_generation_prompt=True,
        tokenize=True,
        return_dict=False,
    )
    return Prompt(
        prompt_id=number,
        messages=(),
        tokens=tuple(tokens),
        ground_truth=None,
        data_source="questions",
        extra={},
    )


if __name__ == "__main__":
    sys.exit(main())
