"""Rollout correction against the pinned wheel's own: weights, masks, and the numbers that are reported.

In float32 and float64: weights to 1e-6, absolute below 1 and relative above; masks equal.
"""

from typing import Any, get_args

import pytest
import torch

from miniverl.engine.algorithm import (
    ImportanceWeights,
    Rejection,
    RejectionStatistic,
    RolloutCorrection,
)
from miniverl.engine.correction import Correction, correct

pytestmark = pytest.mark.slow

HELPER = "verl/trainer/ppo/rollout_corr_helper.py"
DTYPES = {"float32": torch.float32, "float64": torch.float64}


@pytest.fixture(scope="module")
def found(run_upstream) -> list[tuple[Correction, dict[str, Any]]]:
    """What we give for each case, and the case."""
    observed = run_upstream("upstream_correction.py")
    return [
        (_corrected(observed["batches"][case["batch"]], case), case) for case in observed["cases"]
    ]


def _corrected(batch: dict[str, Any], case: dict[str, Any]) -> Correction:
    sampled_NR, old_NR = (
        torch.tensor(batch[name], dtype=torch.float64).to(DTYPES[case["dtype"]])
        for name in ("sampled", "old")
    )
    weights = case["weights"]
    recipe = RolloutCorrection(
        bypasses_scoring=False,
        importance_weights=None if weights is None else ImportanceWeights(**weights),
        rejections=tuple(Rejection(**each) for each in case["rejections"]),
    )
    return correct(sampled_NR, old_NR, torch.tensor(batch["mask"]).bool(), recipe)


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_importance_weights(found, record, largest_difference, level):
    differences = [
        largest_difference(ours.weights_NR, case["found_weights"])
        for ours, case in found
        if case["weights"] is not None and case["weights"]["level"] == level
    ]
    name = f"importance weights by {level}"
    record(name, f"{HELPER}:522", len(differences), max(differences), 1e-6)


@pytest.mark.parametrize("statistic", get_args(RejectionStatistic))
def test_rejected_tokens(found, record, largest_difference, statistic):
    differences, shares = [], set()
    for ours, case in found:
        if statistic in [each["statistic"] for each in case["rejections"]]:
            differences.append(largest_difference(ours.mask_NR, case["found_mask"]))
            shares.add(ours.metrics[f"correction_rejected_tokens_{statistic}"])
    assert len(shares) > 3  # some pass, some do not
    record(f"rejection {statistic}", f"{HELPER}:197", len(differences), max(differences), 0.0)


def test_what_is_reported(found, record, largest_difference):
    differences = []
    for ours, case in found:
        names = {"kl": "kl", "k3": "k3_kl", "chi2": "chi2_token"}
        if case["weights"] is not None:
            names |= {
                "weight_mean": "rollout_is_mean",
                "weight_effective_share": "rollout_is_eff_sample_size",
            }
            if case["weights"]["level"] == "token":  # upstream's are shares of sequences otherwise
                names |= {
                    "weight_high_share": "rollout_is_ratio_fraction_high",
                    "weight_low_share": "rollout_is_ratio_fraction_low",
                }
        for statistic in [each["statistic"] for each in case["rejections"]]:
            names[f"rejected_tokens_{statistic}"] = f"rollout_rs_{statistic}_masked_fraction"
        if case["rejections"]:
            names["rejected_tokens_any"] = "rollout_rs_masked_fraction"
            names["rejected_responses_any"] = "rollout_rs_seq_masked_fraction"
        differences += [
            largest_difference(
                torch.tensor(ours.metrics[f"correction_{name}"], dtype=torch.float64),
                case["metrics"][f"rollout_corr/{theirs}"],
            )
            for name, theirs in names.items()
        ]
    record("rollout correction: its numbers", f"{HELPER}:660", len(found), max(differences), 1e-6)
