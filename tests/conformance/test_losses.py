"""Every policy loss, value and gradient, against the pinned wheel's own functions.

In float32 and float64, on mini-batches of ragged rows, observation tokens, rows without a token and extreme
log-ratios: to 1e-6, absolute below 1 and relative above.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

from miniverl.engine.loss import aggregate
from miniverl.engine.policy_loss import POLICY_LOSSES, weighted

pytestmark = pytest.mark.slow

CORE = "verl/trainer/ppo/core_algos.py"
UPSTREAM = {
    "vanilla": f"{CORE}:1286",
    "dppo_tv": f"{CORE}:1380",
    "dppo_kl": f"{CORE}:1461",
    "gspo": f"{CORE}:1546",
    "sapo": f"{CORE}:1622",
    "gpg": f"{CORE}:1707",
    "clip_cov": f"{CORE}:1743",
    "kl_cov": f"{CORE}:1848",
    "geo_mean": f"{CORE}:1928",
    "dro": f"{CORE}:2014",
    "cispo": f"{CORE}:2047",
}
DTYPES = {"float32": torch.float32, "float64": torch.float64}


@pytest.fixture(scope="module")
def found(run_upstream) -> dict[str, Any]:
    return run_upstream("upstream_losses.py")


def batch_of(found: dict[str, Any], case: dict[str, Any]) -> dict[str, Tensor]:
    plain = found["batches"][case["batch"]]
    tensors = {name: torch.tensor(rows, dtype=torch.float64) for name, rows in plain.items()}
    mask_BR = tensors.pop("mask").bool()
    return {name: each.to(DTYPES[case["dtype"]]) for name, each in tensors.items()} | {
        "mask": mask_BR
    }


def ours(found: dict[str, Any], case: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Value and gradient of the loss of a mini-batch that is one micro-batch."""
    batch, kind = batch_of(found, case), POLICY_LOSSES[case["loss"]]
    mask_BR, log_probs_BR = batch["mask"], batch["log_probs"].requires_grad_(True)
    others = batch["old_log_probs"], batch["advantages"]
    chosen = ()
    if kind.select is not None:
        chosen_BR = torch.zeros_like(mask_BR)
        chosen_BR[mask_BR] = kind.select(
            *(each[mask_BR] for each in (log_probs_BR.detach(), *others)),
            torch.Generator().manual_seed(found["selection_seed"]),
            **case["arguments"],
        )
        chosen = (chosen_BR,)
    per_token_BR = kind.per_token(log_probs_BR, *others, mask_BR, *chosen, **case["arguments"])
    if case["is_weighted"]:
        per_token_BR = weighted(per_token_BR, batch["weights"], mask_BR, kind)
    value = aggregate(
        per_token_BR,
        mask_BR,
        mode=kind.aggregation.mode if kind.aggregation else case["mode"],
        num_tokens=int(mask_BR.sum()),
        num_sequences=len(mask_BR),
        horizon=found["horizon"],
    )
    return value, torch.autograd.grad(value, log_probs_BR)[0]


@pytest.mark.parametrize("loss", POLICY_LOSSES)
def test_a_policy_loss_and_its_gradient(found, record, largest_difference, loss):
    cases = [case for case in found["losses"] if case["loss"] == loss]
    differences = []
    for case in cases:
        value, gradient_BR = ours(found, case)
        mask_BR = batch_of(found, case)["mask"]
        theirs_BR = torch.tensor(case["gradient"], dtype=torch.float64)
        assert not theirs_BR[~mask_BR].any()
        assert not gradient_BR[~mask_BR].any()
        differences.append(largest_difference(value, case["value"]))
        differences.append(largest_difference(gradient_BR, case["gradient"]))
    record(f"policy loss {loss}", UPSTREAM[loss], len(cases), max(differences), 1e-6)
