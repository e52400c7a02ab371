"""Runs the pinned upstream's scorers, overlong penalty and validation metrics on fixed inputs, printed as JSON.

Called by test_rewards.py.
"""

import asyncio
import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from omegaconf import OmegaConf
from standins import with_upstream

# Of what answers are put together: whatever a rule looks for, and what breaks it.
PIECES = (
    *(
        "\\boxed",
        "\\boxed{",
        "\\boxed ",
        "\\fbox{",
        "{",
        "}",
        "}",
        "$",
        "\\frac",
        "\\sqrt",
        "tfrac",
    ),
    *("\\text{ ", "\\text{", "dfrac", "1", "2", "0.5", "1/2", "-3", "/", "=", "k=", "x = ", "####"),
    *(" ", "#### 12", "#### -1,000", "Answer:", "answer : ", "\n", ".", ",", "\\left(", "\\right)"),
    *("^\\circ", "\\%", "\\\\", "\\!", "\\$", "a ", "an ", "units", "12", "1,000", "km", "frac"),
    *("sqrt", "mbox", "\\textbf{", "\\overline{", "\\;", " .", "{.", "%", "x", "[INVALID]"),
)
NUM_TEXTS = 6000
PENALTIES = ((4, 1.0), (7, 0.5), (20, 2.0), (8, 0.0))  # buffer and factor, of 20 tokens
GROUPS = (1, 2, 3, 4, 7, 16)  # answers to a prompt


def texts() -> list[tuple[str, str]]:
    """Responses and ground truths, some of which agree."""
    chance = random.Random(17)

    def some(most: int) -> str:
        return "".join(chance.choice(PIECES) for _ in range(chance.randint(0, most)))

    found = []
    for _ in range(NUM_TEXTS):
        said = some(6)
        truth = chance.choice([said, some(4), "12", "\\frac{1}{2}", "-1000", "1"])
        long = "y" * chance.choice([0, 289, 300])
        response = chance.choice(
            [
                some(8),
                f"{some(3)}\\boxed{{{said}}}{some(3)}",
                f"{some(3)}Answer: {said}{some(2)}",
                f"{long}#### {truth}",
                f"#### {truth}{long}",
            ]
        )
        found.append((response, truth))
    return found


def samples(size: int) -> dict[str, Any]:
    """Answers to three prompts of each of two sources, with numbers and votes."""
    chance = random.Random(size)
    count = 6 * size
    return {
        "sources": ["left"] * (count // 2) + ["right"] * (count // 2),
        "prompts": [str(number // size) for number in range(count)],
        "reward": [chance.choice([0.0, 1.0, 0.1, -0.7]) for _ in range(count)],
        "acc": [chance.choice([0.0, 1.0]) for _ in range(count)],
        "pred": [chance.choice("xyz") for _ in range(count)],
    }


def observe() -> dict[str, Any]:
    return {
        "texts": [_scored(response, truth) for response, truth in texts()],
        "penalties": [
            {"buffer": buffer, "factor": factor, "tokens": tokens, "given": given}
            for buffer, factor in PENALTIES
            for tokens, given in _penalised(buffer, factor)
        ],
        "validations": [_validated(size, name) for size in GROUPS for name in ("acc", "reward")],
    }


def _scored(response: str, truth: str) -> dict[str, Any]:
    from verl.utils.reward_score import default_compute_score, gsm8k

    by_source = {
        source: default_compute_score(source, response, truth)
        for source in ("openai/gsm8k", "lighteval/MATH", "math_dapo", "aime")
    }
    flexible = float(gsm8k.compute_score(response, truth, method="flexible"))
    return {"response": response, "truth": truth, **by_source, "flexible": flexible}


def _penalised(buffer: int, factor: float) -> list[tuple[int, float]]:
    from verl.experimental.reward_loop.reward_manager.dapo import DAPORewardManager

    config = OmegaConf.create(
        {
            "reward": {
                "reward_kwargs": {
                    "max_resp_len": 20,
                    "overlong_buffer_cfg": {
                        "enable": True,
                        "len": buffer,
                        "penalty_factor": factor,
                        "log": True,
                    },
                }
            }
        }
    )

    class Tokenizer:
        def decode(self, tokens: object, skip_special_tokens: bool) -> str:
            return ""

    async def judge(tokens: int) -> float:
        manager = DAPORewardManager(config, Tokenizer(), lambda **_: 1.0)
        manager.loop = asyncio.get_running_loop()
        item = SimpleNamespace(
            batch={
                "responses": torch.zeros(24, dtype=torch.long),
                "attention_mask": torch.arange(26) < tokens + 2,  # two of the prompt
            },
            non_tensor_batch={"data_source": "here", "reward_model": {"ground_truth": "1"}},
        )
        judged = await manager.run_single([item])
        return float(judged["reward_score"])

    return [(tokens, asyncio.run(judge(tokens))) for tokens in range(1, 25)]


def _validated(size: int, core: str) -> dict[str, Any]:
    """With a scorer that gives acc and an answer, and with one that gives neither."""
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer

    given = samples(size)
    names = ("reward", "acc", "pred") if core == "acc" else ("reward",)
    told = PPOTrainer._val_metrics_update(
        None, given["sources"], given["prompts"], {name: given[name] for name in names}, []
    )
    return {"size": size, "core": core, "given": given, "told": _plain(told)}


def _plain(told: dict[str, Any]) -> dict[str, float]:
    return {name: float(np.float64(value)) for name, value in told.items()}


if __name__ == "__main__":
    with_upstream(observe)
