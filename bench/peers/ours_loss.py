"""What the log-probs of a vocabulary and their gradient take at their peak, beside the model.

    python -P -m miniverl.bench.peers.ours_loss --threads 2

One layer of SmolLM2's width under a head of the vocabulary that is asked for; weights are random.
"""

import argparse
import time

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from miniverl.bench.peers.answers import Json, forget_peak, peak_bytes, serve
from miniverl.engine.lora import attach
from miniverl.engine.models import Model
from miniverl.engine.packed import pack
from miniverl.engine.recipe import Lora
from miniverl.engine.score import response_scores
from miniverl.engine.trajectory import Trajectory

_LORA = Lora(rank=16, alpha=32, target_modules=("all-linear",), excluded_modules=())
_ROWS, _PROMPT, _RESPONSE = 8, 16, 256


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--threads", type=int, required=True)
    call = parser.parse_args()
    torch.set_num_threads(call.threads)
    serve(_measure)


def _measure(question: Json) -> Json:
    config = LlamaConfig(
        vocab_size=question["vocabulary"],
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=1,
        num_attention_heads=9,
        num_key_value_heads=3,
        tie_word_embeddings=True,
    )
    network = LlamaForCausalLM(config)
    attach(network, network.get_output_embeddings(), _LORA, seed=0)
    model = Model(network, compute_dtype=torch.float32, checkpoints_activations=False)
    rows = [
        Trajectory(
            prompt_id=number,
            sample=0,
            prompt_tokens=tuple(range(_PROMPT)),
            response_tokens=tuple(range(_RESPONSE)),
            is_finished=True,
            response="",
            reward=0.0,
        )
        for number in range(_ROWS)
    ]
    packed = pack(rows, model.device)
    forget_peak()
    before, started = peak_bytes(), time.perf_counter()
    log_probs_P, _ = response_scores(model, packed, temperature=1.0, entropy="none")
    log_probs_P.sum().backward()
    seconds = time.perf_counter() - started
    return {"seconds": seconds, "peak_bytes": peak_bytes() - before, "tokens": len(log_probs_P)}


if __name__ == "__main__":
    main()
