"""Runs the pinned upstream's advantage estimators and its KL in the reward, and prints inputs and outputs as JSON.

Called by test_advantages.py. Each batch is a whole step; `float32` batches have int64 masks, as upstream's trainer
has, `float64` ones float64 masks. Numbers that JSON has not are written as "nan".
"""

import math
import types
from itertools import product
from typing import Any

import numpy as np
import torch
from standins import with_upstream
from torch import Tensor

DTYPES = {"float32": torch.float32, "float64": torch.float64}
GRPO_STYLE = ("grpo", "grpo_passk")
PLAIN = (
    "grpo_vectorized",
    "rloo",
    "rloo_vectorized",
    "reinforce_plus_plus_baseline",
    "opo",
    "gpg",
)
DISCOUNTS = ((1.0, 1.0), (0.99, 0.95), (0.9, 0.0), (0.0, 1.0))
KL_ESTIMATORS = ("k1", "abs", "k2", "k3", "k1+", "k3+")
CONTROLS = ((0.1, 10_000), (6.0, 100), (0.02, 4))


def batches() -> dict[str, dict[str, Any]]:
    """`mask` may be empty in rows, and has holes where an environment wrote; rewards stand where `rewards` says."""
    random = torch.Generator().manual_seed(20240514)

    def normal(rows: int, width: int) -> Tensor:
        return torch.randn(rows, width, generator=random, dtype=torch.float64)

    def batch(
        mask: Tensor, groups: list[int], rewards: Tensor, scale: float = 1.0
    ) -> dict[str, Any]:
        rows, width = mask.shape
        last = [int(row.nonzero().max()) if row.any() else width - 1 for row in mask]
        token_rewards = torch.zeros(rows, width, dtype=torch.float64)
        token_rewards[torch.arange(rows), last] = rewards
        return {
            "mask": mask.long(),
            "groups": groups,
            "token_rewards": token_rewards,
            "values": normal(rows, width) * scale,
            "old_log_probs": -normal(rows, width).abs() * 3,
            "reference_log_probs": -normal(rows, width).abs() * 3,
        }

    lengths = torch.randint(1, 12, (24,), generator=random)
    ragged = torch.arange(11) < lengths[:, None]
    holes = ragged & (torch.rand(24, 11, generator=random) < 0.7)
    fours = [row // 4 for row in range(24)]
    uneven = [0, 0, 5, 1, 1, 1, 7, 2, 2, 2, 2, 9, 3, 0, 3, 3, 3, 4, 4, 4, 4, 4, 0, 1]
    # Interleaved, groups of one to six, some of them of equal rewards; rows 3, 10 and 16 have no token.
    emptied = holes.clone()
    emptied[[3, 10, 16]] = False
    without_tokens = ragged.clone()
    without_tokens[4:8] = False
    equal = torch.where(torch.tensor(uneven) < 3, 1.0, normal(24, 1)[:, 0])
    rewards = normal(24, 1)[:, 0]
    offset = 1e4 + torch.rand(24, generator=random).double()
    mixed = rewards * torch.logspace(-6, 6, 24, dtype=torch.float64)
    found = {
        "random": batch(ragged, fours, rewards),
        "binary": batch(ragged, fours, (rewards > 0).double()),
        "all equal": batch(ragged, fours, torch.ones(24, dtype=torch.float64)),
        "all zero": batch(ragged, fours, torch.zeros(24, dtype=torch.float64)),
        "observations": batch(holes, fours, rewards),
        "groups of one": batch(ragged, list(range(24)), rewards),
        "uneven groups, empty rows": batch(emptied, uneven, equal),
        "a group without tokens": batch(without_tokens, fours, rewards),
        "one token each": batch(torch.ones(24, 1).bool(), fours, rewards),
        "large offset": batch(ragged, fours, offset),
        "magnitudes 1e-6 to 1e6": batch(holes, fours, mixed, scale=1e3),
        "two tokens": batch(torch.ones(2, 1).bool(), [0, 0], torch.tensor([0.25, 1.0]).double()),
    }
    dense = batch(holes, uneven, rewards)  # with a reward on every token, observations included
    dense["token_rewards"] = normal(24, 11)
    extreme = batch(ragged, fours, rewards)
    extreme["old_log_probs"][:, 0] -= 60
    extreme["reference_log_probs"][0, :] -= 60
    return {**found, "rewards on every token": dense, "extreme log-ratios": extreme}


def estimates(given: dict[str, Any], dtype: torch.dtype) -> list[dict[str, Any]]:
    """Every estimator that can take the batch, with each of its arguments."""
    from verl.trainer.ppo import core_algos

    mask = given["mask"] if dtype == torch.float32 else given["mask"].to(dtype)
    index = np.array([str(group) for group in given["groups"]], dtype=object)
    token_rewards = given["token_rewards"].to(dtype)

    def outcome(name: str, **config: Any) -> tuple[Tensor, Tensor]:
        return core_algos.get_adv_estimator_fn(name)(
            token_level_rewards=token_rewards.clone(),
            response_mask=mask,
            index=index,
            config=Config(**config),
        )

    cases = [({"estimator": name}, outcome(name)) for name in PLAIN]
    sizes = np.unique(index, return_counts=True)[1]
    for divides in (True, False):
        arguments = {"estimator": "grpo", "divides_by_std": divides}
        advantages = core_algos.compute_grpo_outcome_advantage(
            token_rewards.clone(), mask, index, norm_adv_by_std_in_grpo=divides
        )
        cases.append((arguments, advantages))
        if sizes.min() > 1:
            arguments = {"estimator": "grpo_passk", "divides_by_std": divides}
            cases.append((arguments, outcome("grpo_passk", norm_adv_by_std_in_grpo=divides)))
    for gamma, gae_lambda in DISCOUNTS:
        arguments = {"estimator": "gae", "gamma": gamma, "gae_lambda": gae_lambda}
        values = given["values"].to(dtype)
        advantages = core_algos.compute_gae_advantage_return(
            token_rewards, values, mask, gamma, gae_lambda
        )
        cases.append((arguments, advantages))
        arguments = {"estimator": "reinforce_plus_plus", "gamma": gamma}
        cases.append((arguments, outcome("reinforce_plus_plus", gamma=gamma)))
    return [
        {**arguments, "advantages": plain(advantages), "returns": plain(returns)}
        for arguments, (advantages, returns) in cases
    ]


def kl_rewards(given: dict[str, Any], dtype: torch.dtype) -> list[dict[str, Any]]:
    from verl.trainer.ppo import core_algos
    from verl.trainer.ppo.ray_trainer import apply_kl_penalty

    names = {"kl_coef": 0.1}
    cases = []
    for estimator, (target, horizon) in product(KL_ESTIMATORS, CONTROLS):
        control = core_algos.get_kl_controller(
            types.SimpleNamespace(type="adaptive", target_kl=target, horizon=horizon, **names)
        )
        batch = Batch(
            response_mask=given["mask"] if dtype == torch.float32 else given["mask"].to(dtype),
            token_level_scores=given["token_rewards"].to(dtype),
            old_log_probs=given["old_log_probs"].to(dtype),
            ref_log_prob=given["reference_log_probs"].to(dtype),
        )
        batch.batch_size = (len(given["mask"]),)
        data, metrics = apply_kl_penalty(types.SimpleNamespace(batch=batch), control, estimator)
        cases.append(
            {
                "estimator": estimator,
                "coefficient": names["kl_coef"],
                "target": target,
                "horizon": horizon,
                "rewards": plain(data.batch["token_level_rewards"]),
                "current_kl": metrics["actor/reward_kl_penalty"],
                "next_coefficient": float(control.value),
            }
        )
    return cases


class Config(types.SimpleNamespace):
    """Upstream's AlgoConfig is read as attributes and as a mapping."""

    def get(self, name: str, default: Any = None) -> Any:
        return getattr(self, name, default)


class Batch(dict[str, Tensor]):
    """As much of a TensorDict as upstream's KL penalty reads."""

    batch_size: tuple[int, ...]


def plain(values: Tensor) -> Any:
    return [["nan" if math.isnan(value) else value for value in row] for row in values.tolist()]


def stops() -> list[dict[str, Any]]:
    """Steps at which upstream raises an error."""
    from verl.trainer.ppo import core_algos

    cases = []
    for name, rows in product(
        ("gae", "reinforce_plus_plus", "reinforce_plus_plus_baseline"),
        ([[0, 0], [0, 0]], [[0, 1], [0, 0]]),
    ):
        cases.append({"estimator": name, "mask": rows, "groups": [0, 0]})
    cases.append({"estimator": "grpo_passk", "mask": [[1, 1]] * 3, "groups": [4, 4, 7]})
    for case in cases:
        mask = torch.tensor(case["mask"])
        given = {"token_level_rewards": torch.ones(mask.shape), "response_mask": mask}
        if case["estimator"] == "gae":
            given |= {"values": torch.zeros(mask.shape), "gamma": 1.0, "lam": 1.0}
        else:
            given |= {"index": np.array(case["groups"]), "config": Config(gamma=1.0)}
        try:
            core_algos.get_adv_estimator_fn(case["estimator"])(**given)
        except ValueError as error:
            case["error"] = str(error)
    return cases


def observe() -> dict[str, Any]:
    return {
        "stops": stops(),
        "batches": {
            name: {
                "inputs": {
                    field: value.tolist() if isinstance(value, Tensor) else value
                    for field, value in given.items()
                },
                "outputs": {
                    dtype: {
                        "advantages": estimates(given, DTYPES[dtype]),
                        "kl_rewards": kl_rewards(given, DTYPES[dtype]),
                    }
                    for dtype in DTYPES
                },
            }
            for name, given in batches().items()
        },
    }


if __name__ == "__main__":
    with_upstream(observe)
