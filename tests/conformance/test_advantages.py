"""Every advantage estimator and the KL in the reward, against the pinned wheel's own functions.

In float32 and float64, on batches of ragged rows, observation tokens, empty rows, groups of one, equal rewards and
extreme numbers: to 1e-6, absolute below 1 and relative above. What upstream gives *outside* the mask is compared
too, but where it is NaN (0 divided by 0, times a mask of 0), which nothing reads.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

from miniverl.engine.advantage import ADVANTAGES, Outcomes
from miniverl.engine.algorithm import AdaptiveKl, Advantage, KlReward
from miniverl.engine.kl_reward import kl_rewards, next_coefficient
from miniverl.engine.problem import Refused

pytestmark = pytest.mark.slow

CORE = "verl/trainer/ppo/core_algos.py"
UPSTREAM = {
    "gae": f"{CORE}:216",
    "grpo": f"{CORE}:268",
    "grpo_vectorized": f"{CORE}:335",
    "grpo_passk": f"{CORE}:472",
    "reinforce_plus_plus_baseline": f"{CORE}:536",
    "rloo": f"{CORE}:588",
    "opo": f"{CORE}:640",
    "reinforce_plus_plus": f"{CORE}:694",
    "gpg": f"{CORE}:771",
    "rloo_vectorized": f"{CORE}:834",
}
DTYPES = {"float32": torch.float32, "float64": torch.float64}


@pytest.fixture(scope="module")
def found(run_upstream) -> dict[str, Any]:
    return run_upstream("upstream_advantages.py")


def tensor(rows: list[list[float | str]], dtype: torch.dtype) -> Tensor:
    return torch.tensor([[float(value) for value in row] for row in rows], dtype=dtype)


def outcomes(inputs: dict[str, Any], dtype: torch.dtype) -> Outcomes:
    return Outcomes(
        token_rewards_NR=tensor(inputs["token_rewards"], dtype),
        mask_NR=torch.tensor(inputs["mask"]).bool(),
        groups_N=torch.tensor(inputs["groups"]),
        values_NR=tensor(inputs["values"], dtype),
    )


def advantage(case: dict[str, Any]) -> Advantage:
    return Advantage(
        estimator=case["estimator"],
        divides_by_std=case.get("divides_by_std"),
        gamma=case.get("gamma"),
        gae_lambda=case.get("gae_lambda"),
    )


def cases(found: dict[str, Any], kind: str) -> list[tuple[Outcomes, dict[str, Any], Any]]:
    """What a step earned, upstream's case, and the batch's inputs."""
    return [
        (outcomes(batch["inputs"], DTYPES[dtype]), case, batch["inputs"])
        for batch in found["batches"].values()
        for dtype, outputs in batch["outputs"].items()
        for case in outputs[kind]
    ]


@pytest.mark.parametrize("name", ADVANTAGES)
def test_advantages_and_returns(found, record, largest_difference, name):
    differences = []
    for given, case, _ in cases(found, "advantages"):
        if case["estimator"] != name:
            continue
        estimate = ADVANTAGES[name](given, advantage(case))
        for ours, theirs in (
            (estimate.advantages_NR, case["advantages"]),
            (estimate.returns_NR, case["returns"]),
        ):
            assert ours.dtype == given.token_rewards_NR.dtype
            expected = tensor(theirs, torch.float64)
            is_known = given.mask_NR | ~expected.isnan()
            differences.append(largest_difference(ours[is_known], expected[is_known].tolist()))
    record(f"advantage {name}", UPSTREAM[name], len(differences) // 2, max(differences), 1e-6)


def test_a_step_at_which_upstream_stops_is_refused(found):
    assert len(found["stops"]) == 7
    for case in found["stops"]:
        assert case["error"]
        mask_NR = torch.tensor(case["mask"]).bool()
        given = Outcomes(
            token_rewards_NR=torch.ones(mask_NR.shape),
            mask_NR=mask_NR,
            groups_N=torch.tensor(case["groups"]),
            values_NR=torch.zeros(mask_NR.shape),
        )
        with pytest.raises(Refused):
            ADVANTAGES[case["estimator"]](
                given, advantage({**case, "gamma": 1.0, "gae_lambda": 1.0})
            )


def test_kl_in_the_reward_and_its_adaptive_coefficient(found, record, largest_difference):
    rewards, kls, coefficients = [], [], []
    for given, case, inputs in cases(found, "kl_rewards"):
        part = KlReward(
            estimator=case["estimator"],
            coefficient=case["coefficient"],
            adaptive=AdaptiveKl(target=case["target"], horizon=case["horizon"]),
        )
        dtype = given.token_rewards_NR.dtype
        ours, current_kl = kl_rewards(
            given.token_rewards_NR,
            tensor(inputs["old_log_probs"], dtype),
            tensor(inputs["reference_log_probs"], dtype),
            given.mask_NR,
            part,
            part.coefficient,
        )
        coefficient = next_coefficient(part, part.coefficient, current_kl, len(ours))
        rewards.append(largest_difference(ours, case["rewards"]))
        kls.append(
            largest_difference(torch.tensor(current_kl, dtype=torch.float64), case["current_kl"])
        )
        theirs = case["next_coefficient"]
        coefficients.append(
            largest_difference(torch.tensor(coefficient, dtype=torch.float64), theirs)
        )
    num_cases = len(rewards)
    upstream = "verl/trainer/ppo/ray_trainer.py:78"
    record("KL in reward: token rewards", upstream, num_cases, max(rewards), 1e-6)
    record("KL in reward: the step's KL", upstream, num_cases, max(kls), 1e-6)
    record("KL in reward: next coefficient", f"{CORE}:153", num_cases, max(coefficients), 1e-6)
