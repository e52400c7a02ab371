"""Runs the pinned upstream's distillation losses on fixed inputs, and prints inputs and outputs as JSON.

A student and a teacher of 9 tokens; the losses go through upstream's own two stages, the one that sees the
student's logits and the one that aggregates, as its engine calls them.
"""

from itertools import product
from typing import Any

import torch
from standins import with_upstream
from torch import Tensor

PROMPT_LENGTH = 2
RESPONSE_LENGTHS = (2, 5, 3, 1)
NUM_TOKENS = sum(RESPONSE_LENGTHS)
MASK = ([1, 1], [1, 1, 0, 1, 1], [1, 1, 1], [0])  # rejected tokens, and a whole response
SPLITS = ([[0, 1, 2, 3]], [[0, 1], [2, 3]])
VOCABULARY, TOP_K, HORIZON = 9, 3, 8
MODES = (
    "token-mean",
    "token-sum",
    "seq-mean-token-sum",
    "seq-mean-token-mean",
    "seq-mean-token-sum-norm",
)
CLIPS = (0.1, 0.28)
# (loss, bound on log-probs)
LOSSES = (
    ("forward_kl_topk", None),
    ("forward_kl_topk", -2.0),
    ("k1", None),
    ("abs", None),
    ("k2", None),
    ("k3", None),
)


def rows() -> dict[str, list[Tensor]]:
    """float64; all positions of prompt and response. Some are far apart, some equal, some beyond the clips."""
    random = torch.Generator().manual_seed(11)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random, dtype=torch.float64)

    lengths = [PROMPT_LENGTH + length for length in RESPONSE_LENGTHS]
    logits = [2 * normal(length, VOCABULARY) for length in lengths]
    teacher = [each + normal(*each.shape) for each in logits]
    logits[1][3] *= 30
    teacher[1][4] *= 30
    teacher[2][2] = logits[2][2]
    tokens = [torch.randint(VOCABULARY, (length,), generator=random) for length in lengths]
    top = [each.log_softmax(-1).topk(TOP_K) for each in teacher]
    responses = [normal(length) for length in RESPONSE_LENGTHS]
    return {
        "logits": logits,
        "tokens": tokens,
        "teacher_logits": teacher,
        "teacher_tokens": [each.indices for each in top],
        "teacher_top": [each.values for each in top],
        "old_shifts": [0.3 * normal(length) for length in RESPONSE_LENGTHS],
        "advantages": responses,
        "weights": [0.5 + normal(length).abs() for length in RESPONSE_LENGTHS],
    }


def next_token_log_probs(logits_TV: Tensor, tokens_T: Tensor) -> Tensor:
    return logits_TV.log_softmax(-1).gather(1, tokens_T.roll(-1)[:, None])[:, 0]


def cases() -> list[dict[str, Any]]:
    """Every loss and form by mode; bounded, beside the task's loss and with importance weights by one mode."""
    import verl

    modes = [mode for mode in MODES if (mode, verl.__version__) != ("token-sum", "0.8.0")]
    found = []
    for (loss, least), clips in product(LOSSES, (None, CLIPS)):
        case = {"loss": loss, "min_log_prob": least, "clips": clips, "max_loss": None}
        case |= {"uses_task_rewards": False, "coefficient": 0.7, "is_weighted": False}
        found += [case | {"mode": mode} for mode in modes]
        case |= {"mode": "token-mean"}
        found += [case | {"max_loss": 0.5}, case | {"max_loss": 0.5, "uses_task_rewards": True}]
        found.append(case | {"is_weighted": True})
    return found


def observed_case(case: dict[str, Any], given: dict[str, list[Tensor]]) -> dict[str, Any]:
    totals = []
    for split in SPLITS:
        leaves = [each.clone().requires_grad_(True) for each in given["logits"]]
        total = sum(micro_batch_loss(part, leaves, given, case) for part in split)
        gradients = torch.autograd.grad(total, leaves)
        totals.append(
            {
                "split": split,
                "loss": total.item(),
                "gradient": [each[PROMPT_LENGTH - 1 : -1].tolist() for each in gradients],
            }
        )
    return {**case, "splits": totals}


def micro_batch_loss(
    part: list[int], logits: list[Tensor], given: dict[str, list[Tensor]], case: dict[str, Any]
) -> Tensor:
    from tensordict import TensorDict
    from verl.trainer.distillation.losses import distillation_ppo_loss
    from verl.utils import tensordict_utils
    from verl.workers.config import DistillationConfig, DistillationLossConfig, FSDPActorConfig

    def jagged(values: list[Tensor]) -> Tensor:
        return torch.nested.as_nested_tensor(values, layout=torch.jagged)

    def chosen(name: str) -> list[Tensor]:
        return [given[name][row] for row in part]

    is_top_k = case["loss"] == "forward_kl_topk"
    teacher = [
        next_token_log_probs(a, b)[:, None]
        for a, b in zip(chosen("teacher_logits"), chosen("tokens"), strict=True)
    ]
    lengths = [RESPONSE_LENGTHS[row] for row in part]
    log_probs = [next_token_log_probs(logits[row], given["tokens"][row]) for row in part]
    old = [
        each.detach()[PROMPT_LENGTH - 1 : -1] + shift
        for each, shift in zip(log_probs, chosen("old_shifts"), strict=True)
    ]
    data = TensorDict({}, batch_size=len(part))
    data["prompts"] = jagged([torch.arange(PROMPT_LENGTH) for _ in part])
    data["responses"] = jagged([torch.arange(length) for length in lengths])
    data["response_mask"] = jagged([torch.tensor(MASK[row]) for row in part])
    data["old_log_probs"] = jagged(old)
    data["advantages"] = jagged(chosen("advantages"))
    data["teacher_logprobs"] = jagged(chosen("teacher_top") if is_top_k else teacher)
    data["teacher_ids"] = jagged(chosen("teacher_tokens"))
    if case["is_weighted"]:
        data["rollout_is_weights"] = torch.nn.utils.rnn.pad_sequence(
            chosen("weights"), batch_first=True
        )
    tensordict_utils.assign_non_tensor(
        data, dp_size=1, batch_num_tokens=NUM_TOKENS, global_batch_size=len(RESPONSE_LENGTHS)
    )
    actor = FSDPActorConfig(
        strategy="fsdp",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        clip_ratio_low=0.2,
        clip_ratio_high=0.2,
        clip_ratio_c=3.0,
        loss_agg_mode=case["mode"],
        loss_scale_factor=HORIZON,
    )
    clips = case["clips"] or CLIPS
    loss = DistillationLossConfig(
        # Upstream refuses to minimise k1, whose gradient knows no teacher, and lets its other name pass.
        loss_mode="kl" if case["loss"] == "k1" else case["loss"],
        topk=TOP_K,
        use_task_rewards=case["uses_task_rewards"],
        distillation_loss_coef=case["coefficient"],
        loss_max_clamp=case["max_loss"],
        log_prob_min_clamp=case["min_log_prob"],
        use_policy_gradient=case["clips"] is not None,
        clip_ratio_low=clips[0],
        clip_ratio_high=clips[1],
    )
    distillation = DistillationConfig(distillation_loss=loss)
    output = {"log_probs": jagged(log_probs)}
    if is_top_k:
        logits_1TV = torch.cat([logits[row] for row in part])[None]
        found = distillation_ppo_loss(actor, distillation, data=data, student_logits=logits_1TV)
        output |= {
            name: torch.nested.nested_tensor_from_jagged(value[0], data["teacher_ids"].offsets())
            for name, value in found.items()
        }
    # v0.8.0 aggregates with the normalisers of the call before.
    distillation_ppo_loss(actor, distillation, output, data)
    return distillation_ppo_loss(actor, distillation, output, data)[0]


def observe() -> dict[str, Any]:
    given = rows()
    return {
        "prompt_length": PROMPT_LENGTH,
        "num_tokens": NUM_TOKENS,
        "horizon": HORIZON,
        "mask": MASK,
        **{name: [each.tolist() for each in values] for name, values in given.items()},
        "cases": [observed_case(case, given) for case in cases()],
    }


if __name__ == "__main__":
    with_upstream(observe)
