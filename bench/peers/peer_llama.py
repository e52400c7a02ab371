"""llama.cpp's batched decoding: one `llama_decode` a token for all rows, over its low-level interface.

    python -P peer_llama.py FILE.gguf --dtype float32 --threads 2

Choosing tokens is not counted against it: the most probable one is taken outside the clock. A program for the
peers' interpreter: it imports only what is installed there.
"""

import argparse
import ctypes
import json
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

import llama_cpp
import numpy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("gguf")
    parser.add_argument(
        "--dtype", required=True, help="of the weights in the file; said for the table"
    )
    parser.add_argument("--threads", type=int, required=True)
    call = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    llama_cpp.llama_log_set(_SILENT, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    settings = llama_cpp.llama_model_default_params()
    model = llama_cpp.llama_model_load_from_file(call.gguf.encode(), settings)
    if not model:
        sys.exit(f"llama.cpp cannot load {call.gguf}")
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        found = _measure(model, json.loads(line), call.threads)
        print(json.dumps(found), file=answers, flush=True)


@llama_cpp.llama_log_callback  # type: ignore[untyped-decorator]
def _SILENT(level: int, text: bytes, data: Any) -> None:
    """llama.cpp tells of every tensor it loads."""


def _measure(model: Any, question: dict[str, Any], threads: int) -> dict[str, float]:
    """The seconds of all `llama_decode` calls; a context, and its cache, is made before."""
    prompts, new_tokens = question["prompts"], question["new_tokens"]
    longest = max(map(len, prompts)) + new_tokens
    settings = llama_cpp.llama_context_default_params()
    settings.n_ctx = len(prompts) * max(longest, 256)
    settings.n_seq_max = len(prompts)
    settings.n_batch = max(512, sum(map(len, prompts)))
    settings.n_ubatch = 512
    settings.n_threads = settings.n_threads_batch = threads
    settings.type_k = settings.type_v = llama_cpp.GGML_TYPE_F16  # its default
    context = llama_cpp.llama_init_from_model(model, settings)
    batch = llama_cpp.llama_batch_init(settings.n_batch, 0, 1)
    vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    rows = [
        (row, place, token)
        for row, tokens in enumerate(prompts)
        for place, token in enumerate(tokens)
    ]
    lengths = [len(tokens) for tokens in prompts]
    seconds = 0.0
    for _ in range(new_tokens):
        ends = _fill(batch, rows, lengths)
        started = time.perf_counter()
        code = llama_cpp.llama_decode(context, batch)
        llama_cpp.llama_synchronize(context)
        seconds += time.perf_counter() - started
        if code != 0:
            sys.exit(f"llama_decode ended with {code}")
        chosen = [_most_probable(context, place, vocabulary) for place in ends]
        rows = [(row, lengths[row], token) for row, token in enumerate(chosen)]
        lengths = [length + 1 for length in lengths]
    llama_cpp.llama_batch_free(batch)
    llama_cpp.llama_free(context)
    return {"seconds": seconds, "tokens": len(prompts) * new_tokens}


def _fill(batch: Any, rows: Sequence[tuple[int, int, int]], lengths: Sequence[int]) -> list[int]:
    """Put (row, place, token) into the batch; the places in it whose logits are asked for, row by row.

    `lengths` are those of prompts while these enter: only their last tokens need logits.
    """
    batch.n_tokens = len(rows)
    ends = []
    for index, (row, place, token) in enumerate(rows):
        batch.token[index], batch.pos[index] = token, place
        batch.n_seq_id[index], batch.seq_id[index][0] = 1, row
        batch.logits[index] = index + 1 == len(rows) or rows[index + 1][0] != row
        if batch.logits[index]:
            ends.append(index)
    return ends


def _most_probable(context: Any, place: int, vocabulary: int) -> int:
    logits = llama_cpp.llama_get_logits_ith(context, place)
    return int(numpy.ctypeslib.as_array(logits, shape=(vocabulary,)).argmax())


if __name__ == "__main__":
    main()
