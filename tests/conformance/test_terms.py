"""Aggregations and KL estimates, values and gradients, against the pinned wheel's own functions.

In float32 and float64, on ragged rows, observation tokens, rows without a token and log-ratios up to 60: to 1e-6,
absolute below 1 and relative above.
"""

from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from miniverl.engine.algorithm import AggregationMode, KlEstimator
from miniverl.engine.loss import aggregate, kl_estimate

pytestmark = pytest.mark.slow

CORE = "verl/trainer/ppo/core_algos.py"
DTYPES = {"float32": torch.float32, "float64": torch.float64}


@pytest.fixture(scope="module")
def found(run_upstream) -> dict[str, Any]:
    return run_upstream("upstream_terms.py")


def tensors(found: dict[str, Any], case: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probs (with gradient), those of the reference, and the mask."""
    batch = found["batches"][case["batch"]]
    log_probs_BR, reference_BR = (
        torch.tensor(batch[name], dtype=torch.float64).to(DTYPES[case["dtype"]])
        for name in ("log_probs", "old_log_probs")
    )
    return log_probs_BR.requires_grad_(True), reference_BR, torch.tensor(batch["mask"]).bool()


@pytest.mark.parametrize("mode", get_args(AggregationMode))
def test_an_aggregation_and_its_gradient(found, record, largest_difference, mode):
    cases = [case for case in found["cases"] if case.get("mode") == mode]
    differences = []
    for case in cases:
        values_BR, _, mask_BR = tensors(found, case)
        ours = aggregate(values_BR, mask_BR, mode=mode, **found["normalisers"])
        (gradient_BR,) = torch.autograd.grad(ours, values_BR)
        differences.append(largest_difference(ours, case["value"]))
        differences.append(largest_difference(gradient_BR, case["gradient"]))
    record(f"aggregation {mode}", f"{CORE}:1140", len(cases), max(differences), 1e-6)


@pytest.mark.parametrize("estimator", get_args(KlEstimator))
def test_a_kl_estimate_and_its_gradient(found, record, largest_difference, estimator):
    cases = [case for case in found["cases"] if case.get("estimator") == estimator]
    differences = []
    for case in cases:
        log_probs_BR, reference_BR, _ = tensors(found, case)
        ours_BR = kl_estimate(log_probs_BR, reference_BR, estimator)
        (gradient_BR,) = torch.autograd.grad(ours_BR.sum(), log_probs_BR)
        differences.append(largest_difference(ours_BR, case["value"]))
        differences.append(largest_difference(gradient_BR, case["gradient"]))
    record(f"KL estimate {estimator}", f"{CORE}:2187", len(cases), max(differences), 1e-6)
