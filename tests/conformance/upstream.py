"""Runs functions of the pinned upstream on fixed inputs, and prints inputs and outputs as JSON.

    python tests/conformance/upstream.py UNPACKED_WHEEL > tests/data/upstream_v0.9.0.json

Programs like it, each of one topic, are beside it; standins.py says how they get at upstream.
"""

from itertools import product
from typing import Any

import numpy as np
import torch
from standins import with_upstream
from torch import Tensor

# Six responses of up to five tokens; the first has a token that the policy did not write.
MASK = [
    [1, 1, 0, 1, 1],
    [1, 1, 1, 0, 0],
    [1, 1, 1, 1, 0],
    [1, 0, 0, 0, 0],
    [1, 1, 1, 1, 1],
    [1, 1, 0, 0, 0],
]
GROUPS = [0, 0, 0, 1, 1, 2]
MODES = (
    "token-mean",
    "token-sum",
    "seq-mean-token-sum",
    "seq-mean-token-mean",
    "seq-mean-token-sum-norm",
)
KL_ESTIMATORS = ("k1", "abs", "k2", "k3", "k1+", "abs+", "k2+", "k3+")
CLIPS = (
    {"clip_low": 0.2, "clip_high": 0.2, "dual_clip": 3.0},
    {"clip_low": 0.1, "clip_high": 0.28, "dual_clip": 1.2},
)
PROMPT_LENGTH = 2
RESPONSE_LENGTHS = (2, 5, 3, 1)
SPLITS = ([[0, 1, 2, 3]], [[0, 1], [2, 3]], [[2], [0], [3], [1]])
SCHEDULES = (
    {"kind": "constant", "warmup_steps": 0, "min_ratio": 0.0, "num_cycles": 0.5},
    {"kind": "constant", "warmup_steps": 3, "min_ratio": 0.0, "num_cycles": 0.5},
    {"kind": "cosine", "warmup_steps": 0, "min_ratio": 0.0, "num_cycles": 0.5},
    {"kind": "cosine", "warmup_steps": 2, "min_ratio": 0.1, "num_cycles": 0.5},
    {"kind": "cosine", "warmup_steps": 3, "min_ratio": 0.2, "num_cycles": 1.5},
    {"kind": "cosine", "warmup_steps": 10, "min_ratio": 0.0, "num_cycles": 0.5},
)
TOTAL_STEPS = 10


def inputs() -> dict[str, Tensor]:
    """float64; every branch is met: clipped, dual-clipped, beyond the clamps, zero advantage."""
    random = torch.Generator().manual_seed(20240513)

    def normal() -> Tensor:
        return torch.randn(6, 5, generator=random, dtype=torch.float64)

    old = -normal().abs() * 2
    log_probs = old + 0.4 * normal()
    log_probs[4, 1], log_probs[4, 3] = old[4, 1] - 40, old[4, 3] + 25
    reference = log_probs + 0.3 * normal()
    reference[2, 0], reference[2, 1] = log_probs[2, 0] + 30, log_probs[2, 1] - 30
    advantages = normal()
    advantages[1, 1] = 0.0
    rewards = torch.zeros(6, 5, dtype=torch.float64)
    rewards[torch.arange(6), [4, 2, 3, 0, 4, 1]] = torch.tensor(
        [1.0, 0.0, 0.5, 0.0, 2.0, -1.0], dtype=torch.float64
    )
    return {
        "mask": torch.tensor(MASK, dtype=torch.float64),
        "old_log_probs": old,
        "log_probs": log_probs,
        "reference_log_probs": reference,
        "advantages": advantages,
        "rewards": rewards,
        "values": normal(),
    }


def grpo(given: dict[str, Tensor]) -> list[dict[str, Any]]:
    from verl.trainer.ppo import core_algos

    cases = []
    for divide_by_std in (True, False):
        advantages, _ = core_algos.compute_grpo_outcome_advantage(
            given["rewards"].clone(),
            given["mask"],
            np.array(GROUPS, dtype=object),
            norm_adv_by_std_in_grpo=divide_by_std,
        )
        cases.append({"divide_by_std": divide_by_std, "advantages": advantages.tolist()})
    return cases


def kl(given: dict[str, Tensor]) -> list[dict[str, Any]]:
    from verl.trainer.ppo import core_algos

    cases = []
    for estimator in KL_ESTIMATORS:
        log_probs = given["log_probs"].clone().requires_grad_(True)
        values = core_algos.kl_penalty(log_probs, given["reference_log_probs"], estimator)
        (gradient,) = torch.autograd.grad(values.sum(), log_probs)
        case = {"estimator": estimator, "values": values.tolist(), "gradient": gradient.tolist()}
        cases.append(case)
    return cases


def aggregates(given: dict[str, Tensor]) -> list[dict[str, Any]]:
    from verl.trainer.ppo import core_algos

    mask = given["mask"].clone()
    mask[3] = 0  # a response without a trained token
    normalisers = {"num_tokens": 40, "num_sequences": 12, "horizon": 7}
    values = [
        core_algos.agg_loss(
            given["values"],
            mask,
            mode,
            batch_num_tokens=normalisers["num_tokens"],
            global_batch_size=normalisers["num_sequences"],
            loss_scale_factor=normalisers["horizon"],
        ).item()
        for mode in MODES
    ]
    return [
        {"mode": mode, "mask": mask.tolist(), **normalisers, "value": value}
        for mode, value in zip(MODES, values, strict=True)
    ]


def policy_losses(given: dict[str, Tensor]) -> list[dict[str, Any]]:
    from verl.trainer.ppo import core_algos

    cases = []
    for clips in CLIPS:
        config = actor_config(clips)
        log_probs = given["log_probs"].clone().requires_grad_(True)
        loss, metrics = core_algos.get_policy_loss_fn("vanilla")(
            old_log_prob=given["old_log_probs"],
            log_prob=log_probs,
            advantages=given["advantages"],
            response_mask=given["mask"],
            loss_agg_mode="token-mean",
            config=config,
        )
        (gradient,) = torch.autograd.grad(loss, log_probs)
        case = {"loss": loss.item(), "gradient": gradient.tolist(), "metrics": metrics}
        cases.append({"clips": clips, **case})
    return cases


def whole_losses(given: dict[str, Tensor]) -> dict[str, Any]:
    """Policy loss - 0.01 entropy + 0.1 KL of a ragged mini-batch, as the sum over its micro-batches."""
    widths = [PROMPT_LENGTH + length for length in RESPONSE_LENGTHS]
    random = torch.Generator().manual_seed(7)

    def rows(lengths: tuple[int, ...] | list[int], scale: float) -> list[Tensor]:
        return [torch.randn(size, generator=random).double() * scale for size in lengths]

    whole = [row - 2 for row in rows(widths, 1.0)]  # log-probs of every token, shifted by one
    entropies = [row.abs() for row in rows(widths, 1.0)]
    current = [row[1 : 1 + n] for row, n in zip(whole, RESPONSE_LENGTHS, strict=True)]
    old = [a + b for a, b in zip(current, rows(RESPONSE_LENGTHS, 0.3), strict=True)]
    reference = [a + b for a, b in zip(current, rows(RESPONSE_LENGTHS, 0.3), strict=True)]
    advantages = rows(RESPONSE_LENGTHS, 1.0)
    response = slice(1, None)
    cases = []
    for mode, estimator in product(MODES, ("k3", "k3+")):
        totals = []
        for split in SPLITS:
            leaves = [row.clone().requires_grad_(True) for row in whole]
            total = sum(
                micro_batch_loss(
                    part, leaves, entropies, old, reference, advantages, mode, estimator
                )
                for part in split
            )
            gradients = torch.autograd.grad(total, leaves)
            totals.append(
                {
                    "split": split,
                    "loss": total.item(),
                    "gradient": [
                        row[1 : 1 + n].tolist()
                        for row, n in zip(gradients, RESPONSE_LENGTHS, strict=True)
                    ],
                }
            )
        cases.append({"mode": mode, "kl": estimator, "horizon": 8, "splits": totals})
    return {
        "log_probs": [row.tolist() for row in current],
        "old_log_probs": [row.tolist() for row in old],
        "reference_log_probs": [row.tolist() for row in reference],
        "advantages": [row.tolist() for row in advantages],
        "entropies": [
            row[response][:n].tolist() for row, n in zip(entropies, RESPONSE_LENGTHS, strict=True)
        ],
        "clips": CLIPS[0],
        "entropy_coefficient": 0.01,
        "kl_coefficient": 0.1,
        "cases": cases,
    }


def micro_batch_loss(
    part: list[int],
    log_probs: list[Tensor],
    entropies: list[Tensor],
    old: list[Tensor],
    reference: list[Tensor],
    advantages: list[Tensor],
    mode: str,
    estimator: str,
) -> Tensor:
    from tensordict import TensorDict
    from verl.utils import tensordict_utils
    from verl.workers.utils.losses import ppo_loss

    def jagged(values: list[Tensor]) -> Tensor:
        return torch.nested.as_nested_tensor(values, layout=torch.jagged)

    lengths = [RESPONSE_LENGTHS[row] for row in part]
    data = TensorDict({}, batch_size=len(part))
    data["prompts"] = jagged([torch.arange(PROMPT_LENGTH) for _ in part])
    data["responses"] = jagged([torch.arange(length) for length in lengths])
    data["response_mask"] = jagged([torch.ones(length, dtype=torch.int64) for length in lengths])
    data["old_log_probs"] = jagged([old[row] for row in part])
    data["ref_log_prob"] = jagged([reference[row] for row in part])
    data["advantages"] = jagged([advantages[row] for row in part])
    tensordict_utils.assign_non_tensor(
        data,
        dp_size=1,
        batch_num_tokens=sum(RESPONSE_LENGTHS),
        global_batch_size=len(RESPONSE_LENGTHS),
    )
    config = actor_config(
        CLIPS[0],
        entropy_coeff=0.01,
        use_kl_loss=True,
        kl_loss_coef=0.1,
        kl_loss_type=estimator,
        loss_agg_mode=mode,
        loss_scale_factor=8,
    )
    output = {
        "log_probs": jagged([log_probs[row] for row in part]),
        "entropy": jagged([entropies[row] for row in part]),
    }
    return ppo_loss(config, output, data)[0]


def actor_config(clips: dict[str, float], **others: Any) -> Any:
    from verl.workers.config import FSDPActorConfig

    return FSDPActorConfig(
        strategy="fsdp",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        clip_ratio_low=clips["clip_low"],
        clip_ratio_high=clips["clip_high"],
        clip_ratio_c=clips["dual_clip"],
        **others,
    )


def schedules() -> list[dict[str, Any]]:
    from verl.utils import torch_functional

    cases = []
    for schedule, zero_indexed in product(SCHEDULES, (True, False)):
        optimizer = torch.optim.AdamW([torch.zeros(1, requires_grad=True)], lr=1.0)
        if schedule["kind"] == "constant":
            scheduler = torch_functional.get_constant_schedule_with_warmup(
                optimizer, num_warmup_steps=schedule["warmup_steps"]
            )
        else:
            scheduler = torch_functional.get_cosine_schedule_with_warmup(
                optimizer,
                num_warmup_steps=schedule["warmup_steps"],
                num_training_steps=TOTAL_STEPS,
                min_lr_ratio=schedule["min_ratio"],
                num_cycles=schedule["num_cycles"],
                zero_indexed_step=zero_indexed,
            )
        factors = []
        for _ in range(TOTAL_STEPS + 3):
            factors.append(scheduler.get_last_lr()[0])
            optimizer.step()
            scheduler.step()
        fields = {**schedule, "total_steps": TOTAL_STEPS, "zero_indexed": zero_indexed}
        cases.append({"schedule": fields, "factors": factors})
    return cases


def observe() -> dict[str, Any]:
    given = inputs()
    return {
        "upstream": "verl v0.9.0 483b8a009ba3a97563edee3a19887e4862b8094a",
        "inputs": {**{name: value.tolist() for name, value in given.items()}, "groups": GROUPS},
        "grpo": grpo(given),
        "kl": kl(given),
        "aggregates": aggregates(given),
        "policy_losses": policy_losses(given),
        "whole_losses": whole_losses(given),
        "schedules": schedules(),
    }


if __name__ == "__main__":
    with_upstream(observe)
