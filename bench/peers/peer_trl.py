"""TRL's GRPOTrainer: each step waits for its turn, the first one warms up.

    python -P peer_trl.py MODEL_FOLDER --rows rows.json --out FOLDER --dtype float32 --kl 0.001 --threads 2

2 prompts with 4 samples each, LoRA of rank 16 on every linear layer, every response to the limit. A program for the
peers' interpreter: it imports only what is installed there.
"""

import argparse
import json
import os
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer


class _Turns(TrainerCallback):
    """A step's time is from its turn to its end."""

    def __init__(self, answers: Any) -> None:
        self._answers = answers
        self._started = 0.0

    def on_step_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        if state.global_step == 1:
            self._tell({"ready": True})
        if state.global_step > 0 and not sys.stdin.readline():
            os._exit(0)  # nobody asks any more
        self._started = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        if state.global_step > 1:
            self._tell({"seconds": time.perf_counter() - self._started, "peak_bytes": _peak()})

    def _tell(self, answer: dict[str, Any]) -> None:
        print(json.dumps(answer), file=self._answers, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--dtype", required=True)
    parser.add_argument("--kl", type=float, required=True)
    parser.add_argument("--new-tokens", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    call = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    warnings.filterwarnings("ignore")
    torch.set_num_threads(call.threads)
    tokenizer = AutoTokenizer.from_pretrained(call.model, trust_remote_code=False)
    model = AutoModelForCausalLM.from_pretrained(
        call.model, dtype=getattr(torch, call.dtype), trust_remote_code=False
    )
    settings = GRPOConfig(
        output_dir=call.out,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=1,
        num_generations=4,
        max_completion_length=call.new_tokens,
        generation_kwargs={"min_new_tokens": call.new_tokens},
        max_steps=1000,
        learning_rate=5e-4,
        beta=call.kl,
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        gradient_checkpointing=False,
        bf16=False,  # it would cast a second time: the weights have the type already
        use_cpu=True,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        seed=1,
    )
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=_rewards,
        args=settings,
        train_dataset=Dataset.from_list(json.loads(call.rows.read_text("utf-8"))),
        processing_class=tokenizer,
        peft_config=LoraConfig(
            r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM"
        ),
        callbacks=[_Turns(answers)],
    )
    trainer.train()


def _rewards(completions: Sequence[Any], answer: Sequence[str], **others: Any) -> list[float]:
    """1 where the last word is the answer."""
    texts = [each[0]["content"].split() for each in completions]
    return [float(text[-1:] == [right]) for text, right in zip(texts, answer, strict=True)]


def _peak() -> int:
    """The most resident memory that this process has had."""
    with open("/proc/self/status", encoding="ascii") as status:
        line = next(line for line in status if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    main()
