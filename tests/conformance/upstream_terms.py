"""Runs the pinned upstream's aggregations and KL estimates, and prints inputs and outputs as JSON.

On the mini-batches of upstream_losses.py. Called by test_terms.py.
"""

from typing import Any

import torch
from standins import with_upstream
from torch import Tensor
from upstream_losses import DTYPES, HORIZON, MODES, batches

ESTIMATORS = ("k1", "abs", "k2", "k3", "k1+", "abs+", "k2+", "k3+")
NUM_TOKENS, NUM_SEQUENCES = 50, 16  # of a mini-batch that this is a micro-batch of


def observe() -> dict[str, Any]:
    given = batches()
    return {
        "batches": {
            name: {key: tensor.tolist() for key, tensor in batch.items()}
            for name, batch in given.items()
        },
        "normalisers": {
            "num_tokens": NUM_TOKENS,
            "num_sequences": NUM_SEQUENCES,
            "horizon": HORIZON,
        },
        "cases": [
            {"batch": name, "dtype": dtype, **case}
            for name, batch in given.items()
            for dtype in DTYPES
            for case in (*_aggregated(batch, DTYPES[dtype]), *_estimated(batch, DTYPES[dtype]))
        ],
    }


def _aggregated(batch: dict[str, Tensor], dtype: torch.dtype) -> list[dict[str, Any]]:
    from verl.trainer.ppo.core_algos import agg_loss

    found = []
    for mode in MODES:
        values = batch["log_probs"].to(dtype).requires_grad_(True)
        value = agg_loss(
            values,
            batch["mask"].bool(),
            mode,
            batch_num_tokens=NUM_TOKENS,
            global_batch_size=NUM_SEQUENCES,
            loss_scale_factor=HORIZON,
        )
        (gradient,) = torch.autograd.grad(value, values)
        found.append({"mode": mode, "value": value.item(), "gradient": gradient.tolist()})
    return found


def _estimated(batch: dict[str, Tensor], dtype: torch.dtype) -> list[dict[str, Any]]:
    from verl.trainer.ppo.core_algos import kl_penalty

    found = []
    for estimator in ESTIMATORS:
        log_probs = batch["log_probs"].to(dtype).requires_grad_(True)
        values = kl_penalty(log_probs, batch["old_log_probs"].to(dtype), estimator)
        (gradient,) = torch.autograd.grad(values.sum(), log_probs)
        case = {"estimator": estimator, "value": values.tolist(), "gradient": gradient.tolist()}
        found.append(case)
    return found


if __name__ == "__main__":
    with_upstream(observe)
