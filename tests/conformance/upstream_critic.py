"""Runs the pinned upstream's value loss, and prints inputs and outputs as JSON.

Called by test_critic.py. Every case is one mini-batch in one micro-batch, with the normalisers of the mini-batch.
"""

from itertools import product
from typing import Any

import torch
from standins import with_upstream
from torch import Tensor

DTYPES = {"float32": torch.float32, "float64": torch.float64}
MODES = (
    "token-mean",
    "token-sum",
    "seq-mean-token-sum",
    "seq-mean-token-mean",
    "seq-mean-token-sum-norm",
)
HORIZON = 7
CLIPS = (0.0, 0.2, 0.5, 1e3)


def batches() -> dict[str, dict[str, Tensor]]:
    """`equal`: values that have not moved; `edges`: values on a bound of the clip, and on the return;
    `holes`: tokens that an environment wrote, and a row without any token; `far`: errors in the thousands."""
    random = torch.Generator().manual_seed(53)

    def noise(mask: Tensor, size: float) -> Tensor:
        return torch.randn(mask.shape, generator=random, dtype=torch.float64) * size

    def batch(mask: Tensor, moved: float, missed: float) -> dict[str, Tensor]:
        old = noise(mask, 1.0)
        return {
            "mask": mask.long(),
            "old_values": old,
            "values": old + noise(mask, moved),
            "returns": old + noise(mask, missed),
        }

    lengths = torch.tensor([7, 3, 1, 5, 6, 2, 7, 4])
    ragged = torch.arange(7) < lengths[:, None]
    holes = ragged & (torch.rand(8, 7, generator=random) < 0.7)
    holes[2] = False
    # Halves and quarters: sums of them are exact.
    edges = batch(ragged, 0.0, 0.0)
    edges["old_values"] = (edges["old_values"] * 4).round() / 4
    steps = torch.tensor([-0.75, -0.5, -0.25, 0.0, 0.25, 0.5, 0.75], dtype=torch.float64)
    edges["values"] = edges["old_values"] + steps
    edges["returns"] = edges["old_values"] + steps.flip(0).roll(2)
    return {
        "equal": batch(ragged, 0.0, 0.5),
        "near": batch(ragged, 0.1, 0.5),
        "moved": batch(ragged, 1.0, 1.0),
        "edges": edges,
        "holes": batch(holes, 1.0, 1.0),
        "far": batch(ragged, 50.0, 2000.0),
        "one token": batch(torch.ones(1, 1).bool(), 1.0, 1.0),
    }


def observe() -> dict[str, Any]:
    given = batches()
    return {
        "horizon": HORIZON,
        "batches": {
            name: {key: tensor.tolist() for key, tensor in batch.items()}
            for name, batch in given.items()
        },
        "cases": [
            {"batch": name, "dtype": dtype, "mode": mode, "clip": clip}
            | _loss(batch, DTYPES[dtype], mode, clip)
            for (name, batch), dtype, mode, clip in product(given.items(), DTYPES, MODES, CLIPS)
        ],
    }


def _loss(batch: dict[str, Tensor], dtype: torch.dtype, mode: str, clip: float) -> dict[str, Any]:
    """What verl/workers/utils/losses.py:147 hands on, with the mini-batch's normalisers."""
    from verl.trainer.ppo.core_algos import compute_value_loss

    mask, values = batch["mask"].bool(), batch["values"].to(dtype).requires_grad_(True)
    loss, clip_fraction = compute_value_loss(
        vpreds=values,
        values=batch["old_values"].to(dtype),
        returns=batch["returns"].to(dtype),
        response_mask=mask,
        cliprange_value=clip,
        loss_agg_mode=mode,
        dp_size=1,
        batch_num_tokens=int(mask.sum()),
        global_batch_size=len(mask),
        loss_scale_factor=HORIZON,
    )
    (gradient,) = torch.autograd.grad(loss, values)
    return {
        "value": loss.item(),
        "gradient": gradient.tolist(),
        "clip_fraction": clip_fraction.item(),
    }


if __name__ == "__main__":
    with_upstream(observe)
