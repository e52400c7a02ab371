"""Our pure functions against the pinned wheel's own, on the same inputs.

Upstream is run in float64 throughout, so what is compared is the formula: to 1e-6 relative and absolute.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from miniverl.engine import loss
from miniverl.engine.group_advantage import grpo
from miniverl.engine.policy_loss import vanilla
from miniverl.engine.policy_metrics import policy_metrics
from miniverl.engine.recipe import LearningRateSchedule
from miniverl.engine.schedule import factor

pytestmark = pytest.mark.slow

CORE = "verl/trainer/ppo/core_algos.py"
CARRIED = Path(__file__).parents[1] / "data" / "upstream_v0.9.0.json"


def tensor(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def assert_same(ours: Tensor, theirs: object, tolerance: float = 1e-6) -> None:
    torch.testing.assert_close(ours.detach(), tensor(theirs), atol=tolerance, rtol=tolerance)


def padded(rows: list[list[float]]) -> Tensor:
    """Ragged rows as one tensor, NaN where there is nothing."""
    width = max(map(len, rows))
    return tensor([row + [torch.nan] * (width - len(row)) for row in rows])


def test_the_numbers_that_the_other_tests_carry_are_what_the_wheel_gives(observed):
    assert_equal_json(observed, json.loads(CARRIED.read_text()))


def assert_equal_json(found: Any, carried: Any) -> None:
    assert type(found) is type(carried)
    if isinstance(found, dict):
        assert found.keys() == carried.keys()
        for key in found:
            assert_equal_json(found[key], carried[key])
    elif isinstance(found, list):
        assert len(found) == len(carried)
        for one, other in zip(found, carried, strict=True):
            assert_equal_json(one, other)
    elif isinstance(found, float):
        assert abs(found - carried) <= 1e-9 * max(1.0, abs(carried))
    else:
        assert found == carried


def test_grpo_advantages_on_every_response_token(observed):
    given = observed["inputs"]
    mask_BR = tensor(given["mask"])
    rewards_N = tensor(given["rewards"]).sum(-1)
    for case in observed["grpo"]:
        advantages_N = grpo(
            rewards_N, torch.tensor(given["groups"]), divide_by_std=case["divide_by_std"]
        )
        assert_same(advantages_N[:, None] * mask_BR, case["advantages"])


def test_kl_estimates_and_their_gradients(observed, largest_difference):
    given = observed["inputs"]
    for case in observed["kl"]:
        log_probs_BR = tensor(given["log_probs"]).requires_grad_(True)
        values_BR = loss.kl_estimate(
            log_probs_BR, tensor(given["reference_log_probs"]), case["estimator"]
        )
        (gradient_BR,) = torch.autograd.grad(values_BR.sum(), log_probs_BR)
        difference = max(
            largest_difference(values_BR, case["values"]),
            largest_difference(gradient_BR, case["gradient"]),
        )
        assert difference <= 1e-6


def test_aggregation_with_the_normalisers_of_the_mini_batch(observed, largest_difference):
    for case in observed["aggregates"]:
        ours = loss.aggregate(
            tensor(observed["inputs"]["values"]),
            tensor(case["mask"]).bool(),
            mode=case["mode"],
            num_tokens=case["num_tokens"],
            num_sequences=case["num_sequences"],
            horizon=case["horizon"],
        )
        difference = largest_difference(ours, case["value"])
        assert difference <= 1e-6


def test_the_clipped_loss_its_gradient_and_its_metrics(observed, largest_difference):
    given = observed["inputs"]
    differences = []
    mask_BR = tensor(given["mask"]).bool()
    others = tensor(given["old_log_probs"]), tensor(given["advantages"])
    num_tokens = int(mask_BR.sum())
    for case in observed["policy_losses"]:
        log_probs_BR = tensor(given["log_probs"]).requires_grad_(True)
        ours = loss.aggregate(
            vanilla(log_probs_BR, *others, mask_BR, **case["clips"]),
            mask_BR,
            mode="token-mean",
            num_tokens=num_tokens,
            num_sequences=len(mask_BR),
            horizon=None,
        )
        (gradient_BR,) = torch.autograd.grad(ours, log_probs_BR)
        differences += [
            largest_difference(ours, case["loss"]),
            largest_difference(gradient_BR, case["gradient"]),
        ]
        metrics = policy_metrics(
            log_probs_BR, *others, mask_BR, "vanilla", case["clips"], num_tokens=num_tokens
        )
        theirs = case["metrics"]
        assert_same(metrics["clip_fraction"].double(), theirs["actor/pg_clipfrac"])
        assert_same(metrics["dual_clip_fraction"].double(), theirs["actor/pg_clipfrac_lower"])
        assert_same(metrics["approximate_kl"], theirs["actor/ppo_kl"])
    assert max(differences) <= 1e-6


def test_the_whole_loss_of_a_ragged_mini_batch_for_every_split_into_micro_batches(observed):
    whole = observed["whole_losses"]
    for case in whole["cases"]:
        for split in case["splits"]:
            leaves = [tensor(row).requires_grad_(True) for row in whole["log_probs"]]
            total = sum(_micro_batch_loss(part, leaves, whole, case) for part in split["split"])
            gradients = torch.autograd.grad(total, leaves)
            assert_same(total, split["loss"])
            for ours, theirs in zip(gradients, split["gradient"], strict=True):
                assert_same(ours, theirs)


def _micro_batch_loss(
    part: list[int], leaves: list[Tensor], whole: dict[str, Any], case: dict[str, Any]
) -> Tensor:
    log_probs_BR = torch.nn.utils.rnn.pad_sequence([leaves[row] for row in part], batch_first=True)

    def rows(name: str) -> Tensor:
        return padded([whole[name][row] for row in part])

    old_log_probs_BR = rows("old_log_probs")
    normalisers = {
        "mode": case["mode"],
        "num_tokens": sum(map(len, whole["log_probs"])),
        "num_sequences": len(whole["log_probs"]),
        "horizon": case["horizon"],
    }
    terms = (
        (
            1.0,
            vanilla(
                log_probs_BR,
                old_log_probs_BR,
                rows("advantages"),
                ~old_log_probs_BR.isnan(),
                **whole["clips"],
            ),
        ),
        (-whole["entropy_coefficient"], rows("entropies")),
        (
            whole["kl_coefficient"],
            loss.kl_estimate(log_probs_BR, rows("reference_log_probs"), case["kl"]),
        ),
    )
    mask_BR = ~old_log_probs_BR.isnan()
    return sum(
        coefficient * loss.aggregate(values_BR, mask_BR, **normalisers)
        for coefficient, values_BR in terms
    )


@pytest.mark.parametrize(("kind", "line"), [("constant", 768), ("cosine", 712)])
def test_the_learning_rate_of_every_step(observed, record, largest_difference, kind, line):
    cases = [case for case in observed["schedules"] if case["schedule"]["kind"] == kind]
    differences = []
    for case in cases:
        schedule = LearningRateSchedule(**case["schedule"])
        ours = [factor(step, schedule) for step in range(len(case["factors"]))]
        differences.append(largest_difference(tensor(ours), case["factors"]))
    upstream = f"verl/utils/torch_functional.py:{line}"
    record(f"learning rate {kind}", upstream, len(cases), max(differences), 1e-6)
