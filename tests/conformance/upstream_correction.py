"""Runs the pinned upstream's rollout correction on fixed inputs, and prints inputs and outputs as JSON.

Called by test_correction.py.
"""

from itertools import product
from typing import Any

import torch
from standins import with_upstream
from torch import Tensor

DTYPES = {"float32": torch.float32, "float64": torch.float64}
WEIGHTS = tuple(
    {"level": level, "lower": lower, "upper": upper, "is_batch_normalized": is_normalized}
    for level, (lower, upper), is_normalized in product(
        ("token", "sequence"), ((None, 2.0), (None, 1.05), (0.5, 2.0)), (False, True)
    )
)
K1_BOUNDS = ((0.8, 1.25), (0.3, 1.6))
UPPER_BOUNDS = (0.02, 0.4)
STATISTICS = (
    "token_k1",
    "token_k2",
    "token_k3",
    "seq_sum_k1",
    "seq_sum_k2",
    "seq_sum_k3",
    "seq_mean_k1",
    "seq_mean_k2",
    "seq_mean_k3",
    "seq_max_k2",
    "seq_max_k3",
)


def batches() -> dict[str, dict[str, Tensor]]:
    """`wild`: log-ratios beyond 20; `holes`: tokens that an environment wrote, and rows without any token."""
    random = torch.Generator().manual_seed(31)

    def batch(mask: Tensor, distance: float) -> dict[str, Tensor]:
        sampled = -torch.rand(mask.shape, generator=random, dtype=torch.float64) * 3
        moved = torch.randn(mask.shape, generator=random, dtype=torch.float64) * distance
        return {"mask": mask.long(), "sampled": sampled, "old": sampled + moved}

    ragged = torch.arange(6) < torch.tensor([6, 3, 1, 5, 2, 4, 6, 6])[:, None]
    holes = ragged & (torch.rand(8, 6, generator=random) < 0.6)
    holes[2] = False
    found = {
        "equal": batch(ragged, 0.0),
        "near": batch(ragged, 0.1),
        "far": batch(ragged, 0.7),
        "holes": batch(holes, 0.4),
        "wild": batch(ragged, 12.0),
        "one token": batch(torch.eye(1), 0.3),
    }
    # Not all weights 0, at which upstream divides by 0.
    found["wild"]["old"][2] = found["wild"]["sampled"][2]
    return found


def rejections() -> list[list[dict[str, Any]]]:
    """Each statistic alone, at two bounds, and several together."""
    found = [
        [{"statistic": name, "lower": lower, "upper": upper}]
        for name in STATISTICS
        for lower, upper in (
            K1_BOUNDS if name.endswith("k1") else ((None, upper) for upper in UPPER_BOUNDS)
        )
    ]
    found.append([found[0][0], found[-1][0], found[9][0]])
    return found


def observe() -> dict[str, Any]:
    given = batches()
    return {
        "batches": {
            name: {key: tensor.tolist() for key, tensor in batch.items()}
            for name, batch in given.items()
        },
        "cases": [
            {"batch": name, "dtype": dtype, **case}
            for name, batch in given.items()
            for dtype in DTYPES
            for case in _cases(batch, DTYPES[dtype])
        ],
    }


def _cases(batch: dict[str, Tensor], dtype: torch.dtype) -> list[dict[str, Any]]:
    wanted: list[dict[str, Any]] = [{"weights": each, "rejections": []} for each in WEIGHTS]
    wanted += [{"weights": None, "rejections": each} for each in rejections()]
    wanted.append({"weights": WEIGHTS[-1], "rejections": rejections()[-1]})
    return [each | _corrected(batch, dtype, each["weights"], each["rejections"]) for each in wanted]


def _corrected(
    batch: dict[str, Tensor],
    dtype: torch.dtype,
    weights: dict[str, Any] | None,
    rejections: list[dict[str, Any]],
) -> dict[str, Any]:
    from verl.trainer.ppo import rollout_corr_helper

    named: dict[str, Any] = {}
    if weights is not None:
        named = {
            "rollout_is": weights["level"],
            "rollout_is_threshold": _threshold(weights),
            "rollout_is_batch_normalize": weights["is_batch_normalized"],
        }
    if rejections:
        named["rollout_rs"] = ",".join(each["statistic"] for each in rejections)
        named["rollout_rs_threshold"] = ",".join(str(_threshold(each)) for each in rejections)
    found, mask, metrics = rollout_corr_helper.compute_rollout_correction_and_rejection_mask(
        batch["old"].to(dtype), batch["sampled"].to(dtype), batch["mask"], **named
    )
    return {
        "found_weights": None if found is None else found.batch["rollout_is_weights"].tolist(),
        "found_mask": mask.tolist(),
        "metrics": metrics,
    }


def _threshold(bounds: dict[str, Any]) -> str | float:
    upper: float = bounds["upper"]
    return upper if bounds["lower"] is None else f"{bounds['lower']}_{upper}"


if __name__ == "__main__":
    with_upstream(observe)
