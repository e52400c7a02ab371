"""The critic's value loss, value and gradient, against the pinned wheel's own, under every aggregation.

In float32 and float64, on ragged rows, observation tokens, a row without a token, values on the bounds of the clip
and errors in the thousands: to 1e-6, absolute below 1 and relative above.
"""

from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from miniverl.engine.algorithm import AggregationMode
from miniverl.engine.critic_update import clip_fraction, value_loss
from miniverl.engine.loss import aggregate

pytestmark = pytest.mark.slow

UPSTREAM = "verl/trainer/ppo/core_algos.py:2124"
DTYPES = {"float32": torch.float32, "float64": torch.float64}


@pytest.fixture(scope="module")
def found(run_upstream) -> dict[str, Any]:
    return run_upstream("upstream_critic.py")


def batch_of(found: dict[str, Any], case: dict[str, Any]) -> tuple[Tensor, ...]:
    """Values, old values, returns [B, R] and the mask."""
    plain, dtype = found["batches"][case["batch"]], DTYPES[case["dtype"]]
    numbers = [
        torch.tensor(plain[name], dtype=torch.float64).to(dtype)
        for name in ("values", "old_values", "returns")
    ]
    return (*numbers, torch.tensor(plain["mask"]).bool())


@pytest.mark.parametrize("mode", get_args(AggregationMode))
def test_the_value_loss_and_its_gradient(found, record, largest_difference, mode):
    cases = [case for case in found["cases"] if case["mode"] == mode]
    differences = []
    for case in cases:
        values_BR, old_values_BR, returns_BR, mask_BR = batch_of(found, case)
        values_BR.requires_grad_(True)
        loss = aggregate(
            value_loss(values_BR, old_values_BR, returns_BR, clip=case["clip"]),
            mask_BR,
            mode=mode,
            num_tokens=int(mask_BR.sum()),
            num_sequences=len(mask_BR),
            horizon=found["horizon"],
        )
        (gradient_BR,) = torch.autograd.grad(loss, values_BR)
        differences.append(largest_difference(loss, case["value"]))
        differences.append(largest_difference(gradient_BR, case["gradient"]))
    record(f"value loss {mode}", UPSTREAM, len(cases), max(differences), 1e-6)


def test_the_share_of_clipped_values(found, record, largest_difference):
    differences, shares = [], set()
    for case in found["cases"]:
        *numbers, mask_BR = batch_of(found, case)
        share = clip_fraction(*numbers, mask_BR, clip=case["clip"], num_tokens=int(mask_BR.sum()))
        differences.append(largest_difference(share, case["clip_fraction"]))
        shares.add(case["clip_fraction"])
    assert len(shares) > 5
    record("value loss clipped share", UPSTREAM, len(differences), max(differences), 1e-6)
