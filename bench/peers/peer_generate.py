"""transformers' `generate`: sampling from the whole distribution, its dynamic cache, every response to the limit.

    python -P peer_generate.py MODEL_FOLDER --dtype float32 --threads 2

A program for the peers' interpreter: it imports only what is installed there.
"""

import argparse
import json
import os
import sys
import time
from typing import Any

import torch
from transformers import AutoModelForCausalLM


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
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(_measure(model, json.loads(line))), file=answers, flush=True)


def _measure(model: Any, question: dict[str, Any]) -> dict[str, float]:
    tokens = torch.tensor(question["prompts"])
    new_tokens = question["new_tokens"]
    torch.manual_seed(question["round"])
    started = time.perf_counter()
    with torch.inference_mode():
        found = model.generate(
            input_ids=tokens,
            attention_mask=torch.ones_like(tokens),
            do_sample=True,
            temperature=1.0,
            top_p=1.0,
            top_k=0,
            min_new_tokens=new_tokens,
            max_new_tokens=new_tokens,
        )
    seconds = time.perf_counter() - started
    return {"seconds": seconds, "tokens": (found.shape[1] - tokens.shape[1]) * len(tokens)}


if __name__ == "__main__":
    main()
