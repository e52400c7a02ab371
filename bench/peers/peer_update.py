"""Scoring and an update in plain transformers and peft: rows padded at the right, whole logits, one loss.

    python -P peer_update.py MODEL_FOLDER --dtype float32 --rows-at-once 8 --threads 2

A program for the peers' interpreter: it imports only what is installed there.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--dtype", required=True)
    parser.add_argument("--rows-at-once", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    call = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    torch.set_num_threads(call.threads)
    base = AutoModelForCausalLM.from_pretrained(
        call.model, dtype=getattr(torch, call.dtype), trust_remote_code=False
    )
    lora = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(base, lora)
    trained = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=5e-4)
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        rows, size = question["rows"], call.rows_at_once
        started = time.perf_counter()
        if question["work"] == "score":
            with torch.inference_mode():
                for batch in _batches(rows, size):
                    _log_probs(model, batch)
        else:
            _update(model, trained, optimizer, rows, size)
        seconds = time.perf_counter() - started
        tokens = sum(len(row["response"]) for row in rows)
        found = {"seconds": seconds, "tokens": tokens, "peak_bytes": _peak()}
        print(json.dumps(found), file=answers, flush=True)


def _batches(rows: Sequence[Row], size: int) -> Iterator[Sequence[Row]]:
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


def _log_probs(model: Any, rows: Sequence[Row]) -> tuple[Any, Any]:
    """Log-probs [B, T-1] of every token but the first, and which of them are responses'."""
    longest = max(len(row["prompt"]) + len(row["response"]) for row in rows)
    tokens = torch.zeros(len(rows), longest, dtype=torch.int64)
    is_token = torch.zeros(len(rows), longest, dtype=torch.bool)
    is_response = torch.zeros(len(rows), longest, dtype=torch.bool)
    for index, row in enumerate(rows):
        start, end = len(row["prompt"]), len(row["prompt"]) + len(row["response"])
        tokens[index, :end] = torch.tensor(row["prompt"] + row["response"])
        is_token[index, :end] = True
        is_response[index, start:end] = True
    logits = model(input_ids=tokens, attention_mask=is_token.long()).logits[:, :-1]
    log_probs = torch.log_softmax(logits.float(), -1)
    return log_probs.gather(2, tokens[:, 1:, None])[..., 0], is_response[:, 1:]


def _update(
    model: Any, trained: Sequence[Any], optimizer: Any, rows: Sequence[Row], size: int
) -> None:
    """One step along the gradient of the clipped loss over all rows, a batch after the other."""
    count = sum(len(row["response"]) for row in rows)
    for number, batch in enumerate(_batches(rows, size)):
        log_probs, mask = _log_probs(model, batch)
        signs = [1.0 - 2.0 * ((number * size + index) % 2) for index in range(len(batch))]
        advantages = torch.tensor(signs)[:, None]
        ratio = torch.exp(log_probs + 1.0)
        clipped = ratio.clamp(0.8, 1.2)
        loss = -torch.minimum(ratio * advantages, clipped * advantages)
        ((loss * mask).sum() / count).backward()
    torch.nn.utils.clip_grad_norm_(trained, 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def _peak() -> int:
    """The most resident memory that this process has had."""
    with open("/proc/self/status", encoding="ascii") as status:
        line = next(line for line in status if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    main()
