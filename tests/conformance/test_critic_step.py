"""Whole steps of a tiny critic, against the same steps put together from the pinned upstream's functions.

Three steps: values, their generalised advantages and returns, then two mini-batches, the learning rate warming up from
0 and falling, the gradient clipped, some tokens and one response rejected. Upstream takes a mini-batch at once; ours is
cut into micro-batches. In float32: weights to 1e-6; values, advantages and numbers on the way to 1e-4.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import LlamaConfig

from miniverl.engine.advantage import ADVANTAGES, Outcomes
from miniverl.engine.algorithm import Advantage, Aggregation
from miniverl.engine.critic import load_critic
from miniverl.engine.critic_update import critic_objective
from miniverl.engine.experience import Experience, padded
from miniverl.engine.models import Model
from miniverl.engine.recipe import Critic, LearningRateSchedule, Optimizer, Update
from miniverl.engine.schedule import factor
from miniverl.engine.trajectory import Trajectory
from miniverl.engine.update import Plan, adamw, update
from miniverl.engine.value import values

pytestmark = pytest.mark.slow

SAMPLES = 3


@pytest.fixture(scope="module")
def found(run_upstream) -> dict[str, Any]:
    return run_upstream("upstream_critic_step.py")


@pytest.fixture(scope="module")
def start(found, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The critic before its first step, as a folder."""
    folder = tmp_path_factory.mktemp("critic")
    config = LlamaConfig(**found["config"], architectures=["LlamaForTokenClassification"])
    config.save_pretrained(folder)
    weights = {name: torch.tensor(rows) for name, rows in found["weights_before"].items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_whole_steps(found, start, record, largest_difference):
    of_weights, on_the_way = [], []
    for case in found["cases"]:
        recipe = _recipe(found, case)
        critic = load_critic(recipe, start, seed=0, device="cpu")
        optimizer = adamw(critic.trained(), recipe.optimizer)
        for step, theirs in enumerate(case["steps"]):
            experiences = _experiences(found, case, critic)
            for each, value, advantage in zip(
                experiences, theirs["values"], theirs["advantages"], strict=True
            ):
                length = len(each.advantages_R)
                on_the_way.append(largest_difference(each.values_R, value))
                on_the_way.append(largest_difference(each.advantages_R, advantage[:length]))
            numbers = update(
                critic.trained(),
                optimizer,
                experiences,
                Plan.of(recipe.update, SAMPLES, recipe.mini_batch_seed, recipe.optimizer),
                lambda members, critic=critic, recipe=recipe: critic_objective(
                    critic, recipe, members
                ),
                learning_rate=recipe.optimizer.learning_rate
                * factor(step, recipe.learning_rate_schedule),
            )
            for name in ("loss", "gradient_norm"):
                on_the_way.append(largest_difference(torch.tensor(numbers[name]), theirs[name]))
        after = dict(critic.network.named_parameters())
        assert after.keys() == case["weights_after"].keys()
        of_weights += [
            largest_difference(after[name], theirs)
            for name, theirs in case["weights_after"].items()
        ]
    assert max(on_the_way) <= 1e-4
    upstream = "verl/trainer/ppo/v1/trainer_base.py:567"
    record("optimizer steps of a critic", upstream, len(found["cases"]), max(of_weights), 1e-6)


def _recipe(found: dict[str, Any], case: dict[str, Any]) -> Critic:
    return Critic(
        weights_sha256="",
        parameter_dtype="float32",
        compute_dtype="float32",
        lora=None,
        checkpoints_activations=True,
        value_clip=case["clip"],
        aggregation=Aggregation(mode=case["mode"], horizon=found["horizon"]),
        optimizer=Optimizer(name="adamw", **found["optimizer"]),
        learning_rate_schedule=LearningRateSchedule(
            kind="cosine", zero_indexed=True, **found["schedule"]
        ),
        update=Update(prompts_per_mini_batch=1, epochs=1, shuffles=False, micro_batch_tokens=9),
        mini_batch_seed=0,
        warmup_steps=0,
    )


def _experiences(found: dict[str, Any], case: dict[str, Any], critic: Model) -> list[Experience]:
    """What the step learns from: the critic's values as it enters it, and the estimator's advantages and returns."""
    rows = {name: list(map(torch.tensor, each)) for name, each in found["rows"].items()}
    trajectories = [
        Trajectory(
            prompt_id=index // SAMPLES,
            sample=index % SAMPLES,
            prompt_tokens=tuple(tokens_T[:length].tolist()),
            response_tokens=tuple(tokens_T[length:].tolist()),
            is_finished=True,
            response="",
            reward=float(rows["rewards"][index][-1]),
        )
        for index, (tokens_T, length) in enumerate(
            zip(rows["tokens"], found["prompt_lengths"], strict=True)
        )
    ]
    now = values(critic, trajectories, micro_batch_tokens=9)
    estimate = ADVANTAGES["gae"](
        Outcomes(
            token_rewards_NR=padded(rows["rewards"], "cpu"),
            mask_NR=padded([each.bool() for each in rows["masks"]], "cpu"),
            groups_N=torch.arange(len(trajectories)) // SAMPLES,
            values_NR=padded(now, "cpu"),
        ),
        Advantage(
            estimator="gae",
            divides_by_std=None,
            gamma=case["gamma"],
            gae_lambda=case["gae_lambda"],
        ),
    )
    assert estimate.returns_NR is not None

    def row(rows_NR: Tensor, index: int) -> Tensor:
        return rows_NR[index, : len(trajectories[index].response_tokens)]

    return [
        Experience(
            trajectory=trajectory,
            is_trained_R=rows["masks"][index].bool(),
            old_log_probs_R=torch.zeros(len(trajectory.response_tokens)),
            advantages_R=row(estimate.advantages_NR, index),
            reference_log_probs_R=None,
            importance_weights_R=None,
            values_R=now[index],
            returns_R=row(estimate.returns_NR, index),
            teacher=None,
        )
        for index, trajectory in enumerate(trajectories)
    ]
