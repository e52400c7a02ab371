"""Runs the pinned upstream's value loss, and prints inputs and outputs as JSON.

On a ragged mini-batch with observation tokens and a row without any trained token, whole and cut; what is compared
is what its micro-batches add up to. Called by test_value_loss.py.
"""

from itertools import product
from typing import Any

import torch
from standins import with_upstream
from torch import Tensor
from upstream_losses import DTYPES, HORIZON, MODES

PROMPT_LENGTH = 2
RESPONSE_LENGTHS = (7, 3, 1, 5, 6, 2)
# One micro-batch, and uneven ones in another order.
SPLITS = (
    ((0, 1, 2, 3, 4, 5),),
    ((5,), (0, 2, 3), (4, 1)),
)
CLIPS = (0.5, 0.0, 20.0)
NUM_TOKENS, NUM_SEQUENCES = 24, 8  # of the mini-batch: all response tokens, and its nominal size
Rows = list[Tensor]


def batches() -> dict[str, dict[str, Rows]]:
    """`near` and `far` values from the returns; `wild` ones up to 1e4; `tied`, where errors and edges are equal."""
    random = torch.Generator().manual_seed(31)

    def normal(scale: float) -> Rows:
        return [
            torch.randn(length, generator=random, dtype=torch.float64) * scale
            for length in RESPONSE_LENGTHS
        ]

    def batch(scale: float) -> dict[str, Rows]:
        old = normal(scale)
        masks = [torch.rand(length, generator=random) < 0.8 for length in RESPONSE_LENGTHS]
        masks[3][:] = False
        return {
            "values": [a + b for a, b in zip(old, normal(scale), strict=True)],
            "old_values": old,
            "returns": [a + b for a, b in zip(old, normal(scale), strict=True)],
            "mask": masks,
        }

    tied = batch(1.0)
    for name in ("values", "old_values", "returns"):
        tied[name] = [(row * 2).round() / 2 for row in tied[name]]
    return {"near": batch(0.3), "far": batch(3.0), "wild": batch(1e4), "tied": tied}


def observe() -> dict[str, Any]:
    given = batches()
    return {
        "horizon": HORIZON,
        "num_tokens": NUM_TOKENS,
        "num_sequences": NUM_SEQUENCES,
        "batches": {
            name: {key: [row.tolist() for row in rows] for key, rows in batch.items()}
            for name, batch in given.items()
        },
        "cases": [
            {"batch": name, "dtype": dtype, "mode": mode, "clip": clip, "split": split, **found}
            for (name, batch), dtype, mode, clip, split in product(
                given.items(), DTYPES, MODES, CLIPS, SPLITS
            )
            for found in [_loss(batch, DTYPES[dtype], mode, clip, split)]
        ],
    }


def _loss(
    batch: dict[str, Rows],
    dtype: torch.dtype,
    mode: str,
    clip: float,
    split: tuple[tuple[int, ...], ...],
) -> dict[str, Any]:
    from verl.workers.config import FSDPCriticConfig
    from verl.workers.utils.losses import value_loss

    config = FSDPCriticConfig(
        ppo_micro_batch_size_per_gpu=1,
        cliprange_value=clip,
        loss_agg_mode=mode,
        loss_scale_factor=HORIZON,
    )
    leaves = [row.to(dtype).requires_grad_(True) for row in batch["values"]]
    total = torch.zeros((), dtype=dtype)
    for part in split:
        # The value of every token: a response's come from the positions before its tokens.
        whole = [
            torch.cat([leaves[row].new_zeros(PROMPT_LENGTH - 1), leaves[row], leaves[row][:1]])
            for row in part
        ]
        total = total + value_loss(config, {"values": _jagged(whole)}, _data(batch, part, dtype))[0]
    gradients = torch.autograd.grad(total, leaves)
    return {"value": total.item(), "gradient": [row.tolist() for row in gradients]}


def _data(batch: dict[str, Rows], part: tuple[int, ...], dtype: torch.dtype) -> Any:
    from tensordict import TensorDict
    from verl.utils import tensordict_utils

    data = TensorDict({}, batch_size=len(part))
    data["prompts"] = _jagged([torch.arange(PROMPT_LENGTH) for _ in part])
    data["responses"] = _jagged([torch.arange(RESPONSE_LENGTHS[row]) for row in part])
    data["response_mask"] = _jagged([batch["mask"][row].long() for row in part])
    data["values"] = _jagged([batch["old_values"][row].to(dtype) for row in part])
    data["returns"] = _jagged([batch["returns"][row].to(dtype) for row in part])
    tensordict_utils.assign_non_tensor(
        data, dp_size=1, batch_num_tokens=NUM_TOKENS, global_batch_size=NUM_SEQUENCES
    )
    return data


def _jagged(rows: Rows) -> Tensor:
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)


if __name__ == "__main__":
    with_upstream(observe)
