"""Our distillation losses against the pinned wheel's, value and gradient by the student's logits.

Upstream computes the forward KL in float32 whatever its inputs are, and so it is compared; the rest in float64.
"""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from miniverl.engine.algorithm import Aggregation
from miniverl.engine.distillation import Compared, per_token_loss
from miniverl.engine.policy_loss import vanilla
from miniverl.engine.recipe import Distillation
from miniverl.engine.update import Normalisers

pytestmark = pytest.mark.slow

UPSTREAM = {
    "forward_kl_topk": "verl/trainer/distillation/losses.py:306",
    **dict.fromkeys(["k1", "abs", "k2", "k3"], "verl/trainer/distillation/losses.py:373"),
}
CLIPS = {"clip_low": 0.2, "clip_high": 0.2, "dual_clip": 3.0}


@pytest.fixture(scope="session")
def observed_distillation(run_upstream):
    """What upstream_distillation.py prints."""
    return run_upstream("upstream_distillation.py")


@pytest.mark.parametrize("form", ["supervised", "policy gradient"])
@pytest.mark.parametrize("loss", UPSTREAM)
def test_distillation_losses(observed_distillation, record, largest_difference, loss, form):
    cases = [
        case
        for case in observed_distillation["cases"]
        if case["loss"] == loss and (case["clips"] is None) == (form == "supervised")
    ]
    differences = []
    for case in cases:
        for split in case["splits"]:
            leaves = [tensor(row).requires_grad_(True) for row in observed_distillation["logits"]]
            total = sum(
                _share(part, leaves, observed_distillation, case) for part in split["split"]
            )
            gradients = torch.autograd.grad(total, leaves)
            before = observed_distillation["prompt_length"] - 1
            differences.append(largest_difference(total, split["loss"]))
            differences += [
                largest_difference(ours[before:-1], theirs)
                for ours, theirs in zip(gradients, split["gradient"], strict=True)
            ]
    name = f"distillation {loss}, {form}"
    record(name, UPSTREAM[loss], 2 * len(cases), max(differences), 1e-6)


def test_the_release_before_computes_the_same(run_upstream, observed_distillation):
    """But for the normalisers of its first micro-batches, which are the ones of the call before."""
    before = run_upstream("upstream_distillation.py", version="0.8.0")
    cases = observed_distillation["cases"]
    assert before.pop("cases") == [each for each in cases if each["mode"] != "token-sum"]
    assert before == {name: observed_distillation[name] for name in before}


def tensor(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def _share(
    part: list[int], logits: list[Tensor], given: dict[str, Any], case: dict[str, Any]
) -> Tensor:
    """One micro-batch's share of the total: responses only, padded with what must not reach it."""
    before = given["prompt_length"] - 1

    def chosen(name: str) -> list[Tensor]:
        return [tensor(given[name][row]) for row in part]

    def padded(rows: list[Tensor]) -> Tensor:
        return pad_sequence(rows, batch_first=True, padding_value=torch.nan)

    tokens = [torch.tensor(given["tokens"][row])[before + 1 :] for row in part]
    student = [logits[row][before:-1].log_softmax(-1) for row in part]
    teacher = [each[before:-1].log_softmax(-1) for each in chosen("teacher_logits")]
    top = [torch.tensor(given["teacher_tokens"][row])[before:-1] for row in part]
    log_probs = [_at(each, its[:, None])[:, 0] for each, its in zip(student, tokens, strict=True)]
    old_log_probs_BR = padded(
        [each.detach() + shift for each, shift in zip(log_probs, chosen("old_shifts"), strict=True)]
    )
    compared = Compared(
        student_log_probs_BR=padded(log_probs),
        teacher_log_probs_BR=padded(
            [_at(each, its[:, None])[:, 0] for each, its in zip(teacher, tokens, strict=True)]
        ),
        student_top_log_probs_BRK=padded(
            [_at(each, its) for each, its in zip(student, top, strict=True)]
        ).float(),
        teacher_top_log_probs_BRK=padded(
            [each[before:-1] for each in chosen("teacher_top")]
        ).float(),
    )
    mask_BR = padded([tensor(given["mask"][row]) for row in part]).nan_to_num().bool()
    weights_BR = padded(chosen("weights")) if case["is_weighted"] else None
    normalisers = Normalisers(num_tokens=given["num_tokens"], num_sequences=len(given["mask"]))
    aggregation = Aggregation(mode=case["mode"], horizon=given["horizon"])
    share = normalisers.aggregated(
        per_token_loss(compared, old_log_probs_BR, mask_BR, weights_BR, _recipe(case)),
        mask_BR,
        aggregation,
    )
    if not case["uses_task_rewards"]:
        return share
    advantages_BR = padded(chosen("advantages"))
    of_task_BR = vanilla(
        compared.student_log_probs_BR, old_log_probs_BR, advantages_BR, mask_BR, **CLIPS
    )
    return normalisers.aggregated(of_task_BR, mask_BR, aggregation) + case["coefficient"] * share


def _at(log_probs_RV: Tensor, tokens_RK: Tensor) -> Tensor:
    return log_probs_RV.gather(1, tokens_RK)


def _recipe(case: dict[str, Any]) -> Distillation:
    return Distillation(
        teachers=(),
        routing_field="data_source",
        loss=case["loss"],
        top_k=3,
        min_log_prob=case["min_log_prob"],
        max_loss=case["max_loss"],
        policy_gradient_clips=None if case["clips"] is None else tuple(case["clips"]),
        uses_task_rewards=case["uses_task_rewards"],
        coefficient=case["coefficient"],
    )
