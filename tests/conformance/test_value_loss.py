"""The value loss, value and gradient, under every aggregation and however a mini-batch is cut, against the wheel's.

In float32 and float64, on ragged rows, observation tokens, a row without a trained token, values far from the returns
and ties: to 1e-6, absolute below 1 and relative above.
"""

from typing import Any, get_args

import pytest
import torch

from miniverl.engine.critic_update import value_loss
from miniverl.engine.experience import padded
from miniverl.engine.loss import aggregate
from miniverl.engine.recipe import AggregationMode

DTYPES = {"float32": torch.float32, "float64": torch.float64}


@pytest.fixture(scope="module")
def found(run_upstream) -> dict[str, Any]:
    return run_upstream("upstream_critic.py")


@pytest.mark.parametrize("mode", get_args(AggregationMode))
def test_the_value_loss_and_its_gradient(found, record, largest_difference, mode):
    cases = [case for case in found["cases"] if case["mode"] == mode]
    differences = []
    for case in cases:
        batch, dtype = found["batches"][case["batch"]], DTYPES[case["dtype"]]

        def rows_BR(name, batch=batch, dtype=dtype):
            rows = [torch.tensor(row, dtype=torch.float64).to(dtype) for row in batch[name]]
            return padded(rows, "cpu")

        values_BR = rows_BR("values").requires_grad_(True)
        mask_BR = padded([torch.tensor(row) for row in batch["mask"]], "cpu")
        loss_BR = value_loss(
            values_BR, rows_BR("old_values"), rows_BR("returns"), clip=case["clip"]
        )
        ours = aggregate(
            loss_BR,
            mask_BR,
            mode=mode,
            num_tokens=found["num_tokens"],
            num_sequences=found["num_sequences"],
            horizon=found["horizon"],
        )
        (gradient_BR,) = torch.autograd.grad(ours, values_BR)
        differences.append(largest_difference(ours, case["value"]))
        for row_R, theirs in zip(gradient_BR, case["gradient"], strict=True):
            differences.append(largest_difference(row_R[: len(theirs)], theirs))
    record(
        f"value loss {mode}",
        "verl/trainer/ppo/core_algos.py:2124",
        len(cases),
        max(differences),
        1e-6,
    )
