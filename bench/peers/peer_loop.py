"""The loop of the published system: row after row, one forward a token, the distribution drawn from on the host.

    python -P peer_loop.py MODEL_FOLDER --dtype float32 --threads 2

A batch there is a loop over its rows, so its rate does not depend on how many they are: it is asked for few. Per
token: a transformers forward with its cache, softmax of the whole vocabulary, `multinomial`, a second log-softmax,
and the text of all tokens so far. A program for the peers' interpreter: it imports only what is installed there.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--dtype", required=True)
    parser.add_argument("--threads", type=int, required=True)
    call = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    torch.set_num_threads(call.threads)
    model = AutoModelForCausalLM.from_pretrained(
        call.model, dtype=getattr(torch, call.dtype), trust_remote_code=False
    )
    model.eval()
    tokenizer = AutoTokenizer.from_pretrained(call.model, trust_remote_code=False)
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        torch.manual_seed(question["round"])
        started = time.perf_counter()
        for prompt in question["prompts"]:
            _row(model, tokenizer, prompt, question["new_tokens"])
        seconds = time.perf_counter() - started
        tokens = len(question["prompts"]) * question["new_tokens"]
        print(json.dumps({"seconds": seconds, "tokens": tokens}), file=answers, flush=True)


@torch.inference_mode()
def _row(model: Any, tokenizer: Any, prompt: Sequence[int], new_tokens: int) -> list[float]:
    """The log-probs of one response."""
    entering, cache, drawn = torch.tensor([prompt]), None, []
    log_probs = []
    for _ in range(new_tokens):
        found = model(input_ids=entering, past_key_values=cache, use_cache=True)
        cache, logits = found.past_key_values, found.logits[0, -1].float()
        token = int(torch.multinomial(torch.softmax(logits, -1), 1).item())
        log_probs.append(torch.log_softmax(logits, -1)[token].item())
        drawn.append(token)
        tokenizer.decode(drawn, skip_special_tokens=True)
        entering = torch.tensor([[token]])
    return log_probs


if __name__ == "__main__":
    main()
