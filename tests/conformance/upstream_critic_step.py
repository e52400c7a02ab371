"""Trains a tiny critic with the pinned upstream's own functions, and prints inputs and outputs as JSON.

The critic is transformers' Llama for token classification with one label; advantages, returns, loss, optimizer and
schedule are upstream's, put together in the order of its trainer (verl/trainer/ppo/v1/trainer_base.py:567): the values
of the step, their advantages and returns, then the mini-batches. Called by test_critic_step.py.
"""

from typing import Any

import torch
from standins import with_upstream
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import LlamaConfig, LlamaForTokenClassification  # before stand-ins take its name
from upstream_step import (
    CONFIG,
    HORIZON,
    MINI_BATCHES,
    NUM_STEPS,
    OPTIMIZER,
    PROMPT_LENGTHS,
    RESPONSE_LENGTHS,
    SCHEDULE,
    of_response,
    rows,
)

CRITIC = {**CONFIG, "num_labels": 1, "classifier_dropout": 0.0}
READ = ("tokens", "masks", "rewards")  # what ours is given
CASES: tuple[dict[str, Any], ...] = (
    {"mode": "token-mean", "clip": 0.5, "gamma": 1.0, "gae_lambda": 1.0},
    {"mode": "seq-mean-token-mean", "clip": 0.001, "gamma": 0.9, "gae_lambda": 0.8},
    {"mode": "seq-mean-token-sum-norm", "clip": 0.05, "gamma": 0.99, "gae_lambda": 0.0},
)


def observe() -> dict[str, Any]:
    torch.manual_seed(6)
    critic = LlamaForTokenClassification(LlamaConfig(**CRITIC)).eval()
    critic.score.bias.data.fill_(0.3)
    start = {name: each.detach().clone() for name, each in critic.state_dict().items()}
    given = rows()
    random = torch.Generator().manual_seed(23)
    given["rewards"] = [torch.zeros(length) for length in RESPONSE_LENGTHS]
    for row_R in given["rewards"]:
        row_R[-1] = torch.randn((), generator=random)
    return {
        "config": CRITIC,
        "weights_before": _plain(critic),
        "prompt_lengths": PROMPT_LENGTHS,
        "rows": {name: [each.tolist() for each in given[name]] for name in READ},
        "horizon": HORIZON,
        "num_steps": NUM_STEPS,
        "optimizer": OPTIMIZER,
        "schedule": SCHEDULE,
        "cases": [trained(start, given, case) for case in CASES],
    }


def trained(
    start: dict[str, Tensor], given: dict[str, list[Tensor]], case: dict[str, Any]
) -> dict[str, Any]:
    from verl.trainer.ppo.core_algos import compute_gae_advantage_return
    from verl.utils.torch_functional import get_cosine_schedule_with_warmup
    from verl.workers.config.optimizer import FSDPOptimizerConfig, build_optimizer

    critic = LlamaForTokenClassification(LlamaConfig(**CRITIC)).eval()
    critic.load_state_dict(start)
    config = FSDPOptimizerConfig(
        lr=OPTIMIZER["learning_rate"],
        weight_decay=OPTIMIZER["weight_decay"],
        betas=OPTIMIZER["betas"],
        clip_grad=OPTIMIZER["max_gradient_norm"],
    )
    optimizer = build_optimizer(critic.parameters(), config)
    scheduler = get_cosine_schedule_with_warmup(
        optimizer,
        num_warmup_steps=SCHEDULE["warmup_steps"],
        num_training_steps=SCHEDULE["total_steps"],
        min_lr_ratio=SCHEDULE["min_ratio"],
        num_cycles=SCHEDULE["num_cycles"],
    )
    steps = []
    for _ in range(NUM_STEPS):
        with torch.no_grad():
            values = [
                of_response(_values(critic, each), n) for n, each in enumerate(given["tokens"])
            ]
        advantages_NR, returns_NR = compute_gae_advantage_return(
            token_level_rewards=pad_sequence(given["rewards"], batch_first=True),
            values=pad_sequence(values, batch_first=True),
            response_mask=pad_sequence(given["masks"], batch_first=True),
            gamma=case["gamma"],
            lam=case["gae_lambda"],
        )
        returns = [
            row_R[:length] for row_R, length in zip(returns_NR, RESPONSE_LENGTHS, strict=True)
        ]
        norms, losses = [], []
        for members in MINI_BATCHES:
            optimizer.zero_grad()
            loss = _loss(critic, members, {**given, "values": values, "returns": returns}, case)
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(critic.parameters(), max_norm=config.clip_grad)
            optimizer.step()
            norms.append(norm.item())
            losses.append(loss.item())
        scheduler.step()
        steps.append(
            {
                "values": [each.tolist() for each in values],
                "advantages": advantages_NR.tolist(),
                "loss": sum(losses) / len(losses),
                "gradient_norm": sum(norms) / len(norms),
            }
        )
    return {**case, "steps": steps, "weights_after": _plain(critic)}


def _values(critic: LlamaForTokenClassification, tokens_T: Tensor) -> Tensor:
    values_T: Tensor = critic(tokens_T[None]).logits[0, :, 0]
    return values_T


def _loss(
    critic: LlamaForTokenClassification,
    members: tuple[int, ...],
    given: dict[str, list[Tensor]],
    case: dict[str, Any],
) -> Tensor:
    from tensordict import TensorDict
    from verl.utils import tensordict_utils
    from verl.workers.config import FSDPCriticConfig
    from verl.workers.utils.losses import value_loss

    def jagged(rows: list[Tensor]) -> Tensor:
        return torch.nested.as_nested_tensor(rows, layout=torch.jagged)

    def chosen(name: str) -> list[Tensor]:
        return [given[name][index] for index in members]

    data = TensorDict({}, batch_size=len(members))
    data["prompts"] = jagged([torch.arange(PROMPT_LENGTHS[index]) for index in members])
    data["responses"] = jagged([torch.arange(RESPONSE_LENGTHS[index]) for index in members])
    data["response_mask"] = jagged(chosen("masks"))
    data["values"] = jagged(chosen("values"))
    data["returns"] = jagged(chosen("returns"))
    tensordict_utils.assign_non_tensor(
        data,
        dp_size=1,
        batch_num_tokens=sum(RESPONSE_LENGTHS[index] for index in members),
        global_batch_size=len(members),
    )
    config = FSDPCriticConfig(
        ppo_micro_batch_size_per_gpu=1,
        cliprange_value=case["clip"],
        loss_agg_mode=case["mode"],
        loss_scale_factor=HORIZON,
    )
    found = jagged([_values(critic, tokens_T) for tokens_T in chosen("tokens")])
    return value_loss(config, {"values": found}, data)[0]


def _plain(critic: LlamaForTokenClassification) -> dict[str, Any]:
    return {name: each.tolist() for name, each in critic.named_parameters()}


if __name__ == "__main__":
    with_upstream(observe)
