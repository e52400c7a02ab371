"""Runs the pinned upstream's policy losses, and prints inputs and outputs as JSON.

Called by test_losses.py. Every case is one mini-batch in one micro-batch, with the normalisers of the mini-batch.
"""

import types
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
CLIPS = {"clip_low": 0.2, "clip_high": 0.28}
LOSSES: tuple[tuple[str, dict[str, float]], ...] = (
    ("vanilla", {**CLIPS, "dual_clip": 3.0}),
    ("vanilla", {"clip_low": 0.1, "clip_high": 0.1, "dual_clip": 1.2}),
    ("gspo", CLIPS),
    ("gspo", {"clip_low": 3e-4, "clip_high": 4e-4}),
    ("sapo", {"tau_positive": 1.0, "tau_negative": 1.05}),
    ("gpg", {}),
    ("cispo", CLIPS),
    ("dppo_tv", {"clip_low": 0.15, "clip_high": 0.1, "ratio_cap": 3.0}),
    ("dppo_kl", {"clip_low": 0.05, "clip_high": 0.02, "ratio_cap": 1.5}),
    ("dro", {"beta": 0.3}),
    ("geo_mean", {"clip_low": 0.4, "clip_high": 0.4}),
    ("kl_cov", {"share": 0.2, "kl_coefficient": 1.0}),
    ("kl_cov", {"share": 0.001, "kl_coefficient": 0.5}),
    (
        "clip_cov",
        {**CLIPS, "share": 0.1, "covariance_low": -0.5, "covariance_high": 2.0},
    ),
)
SELECTION_SEED = 5


def batches() -> dict[str, dict[str, Tensor]]:
    """`wild` has log-ratios up to 60, `holes` tokens that an environment wrote, and rows without any token."""
    random = torch.Generator().manual_seed(77)

    def batch(mask: Tensor, distance: float) -> dict[str, Tensor]:
        old = -torch.rand(mask.shape, generator=random, dtype=torch.float64) * 4 - 0.01
        moved = torch.randn(mask.shape, generator=random, dtype=torch.float64) * distance
        advantages = torch.randn(mask.shape[0], 1, generator=random, dtype=torch.float64)
        advantages[1] = 0.0
        return {
            "mask": mask.long(),
            "old_log_probs": old,
            "log_probs": -(
                old + moved
            ).abs(),  # no two equal: where covariances tie, upstream picks any
            "advantages": advantages.expand_as(old).clone(),
            "weights": torch.rand(mask.shape, generator=random, dtype=torch.float64) * 2,
        }

    lengths = torch.tensor([7, 3, 1, 5, 6, 2, 7, 4])
    ragged = torch.arange(7) < lengths[:, None]
    holes = ragged & (torch.rand(8, 7, generator=random) < 0.7)
    holes[2] = False
    return {
        "near": batch(ragged, 0.2),
        "far": batch(ragged, 1.5),
        "holes": batch(holes, 0.8),
        "wild": batch(ragged, 30.0),
    }


def observe() -> dict[str, Any]:
    given = batches()
    return {
        "horizon": HORIZON,
        "selection_seed": SELECTION_SEED,
        "batches": {name: _plain(batch) for name, batch in given.items()},
        "losses": [
            case
            for name, batch in given.items()
            for dtype in DTYPES
            for case in _losses(name, batch, dtype)
        ],
    }


def _losses(name: str, batch: dict[str, Tensor], dtype: str) -> list[dict[str, Any]]:
    from verl.trainer.ppo.core_algos import get_policy_loss_fn
    from verl.workers.config import ActorConfig

    found = []
    for (loss, arguments), mode, is_weighted in product(LOSSES, MODES, (False, True)):
        if mode != "token-mean" and loss in ("gspo", "sapo", "geo_mean"):
            continue  # their own aggregation, whatever is asked for
        mask = batch["mask"]
        log_probs = batch["log_probs"].to(DTYPES[dtype]).requires_grad_(True)
        config = _config(ActorConfig, loss, arguments, mask)
        torch.manual_seed(SELECTION_SEED)
        value, _ = get_policy_loss_fn(loss)(
            old_log_prob=batch["old_log_probs"].to(DTYPES[dtype]),
            log_prob=log_probs,
            advantages=batch["advantages"].to(DTYPES[dtype]),
            response_mask=mask,
            loss_agg_mode=mode,
            config=config,
            rollout_is_weights=batch["weights"].to(DTYPES[dtype]) if is_weighted else None,
        )
        (gradient,) = torch.autograd.grad(value, log_probs)
        found.append(
            {
                "batch": name,
                "dtype": dtype,
                "loss": loss,
                "arguments": arguments,
                "mode": mode,
                "is_weighted": is_weighted,
                "value": value.item(),
                "gradient": _plain({"gradient": gradient})["gradient"],
            }
        )
    return found


def _config(kind: Any, loss: str, arguments: dict[str, float], mask: Tensor) -> Any:
    """An ActorConfig with what the losses read; the mini-batch is this micro-batch."""
    config = object.__new__(kind)
    fields = {
        "clip_ratio": 0.2,
        "clip_ratio_low": arguments.get("clip_low"),
        "clip_ratio_high": arguments.get("clip_high"),
        "clip_ratio_c": arguments.get("dual_clip", arguments.get("ratio_cap", 3.0)),
        "tau_pos": arguments.get("tau_positive"),
        "tau_neg": arguments.get("tau_negative"),
        "policy_loss": types.SimpleNamespace(
            loss_mode=loss,
            dro_beta=arguments.get("beta"),
            kl_cov_ratio=arguments.get("share"),
            ppo_kl_coef=arguments.get("kl_coefficient"),
            clip_cov_ratio=arguments.get("share"),
            clip_cov_lb=arguments.get("covariance_low"),
            clip_cov_ub=arguments.get("covariance_high"),
        ),
        "global_batch_info": {
            "dp_size": 1,
            "batch_num_tokens": int(mask.sum()),
            "global_batch_size": len(mask),
            "loss_scale_factor": HORIZON,
        },
    }
    for field, value in fields.items():
        object.__setattr__(config, field, value)
    return config


def _plain(batch: dict[str, Tensor]) -> dict[str, list[list[float]]]:
    return {name: tensor.tolist() for name, tensor in batch.items()}


if __name__ == "__main__":
    with_upstream(observe)
