"""Each estimator, policy loss, KL in the reward and rollout correction in a whole run, resumed to the same bytes.

Three steps, stopped in the third and resumed. What each function computes is tested beside it and against the pinned
upstream; here is what reaches it, and that nothing of it lives outside the checkpoint.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from miniverl.engine import loop
from miniverl.engine.advantage import ADVANTAGES, Outcomes
from miniverl.engine.algorithm import (
    AdaptiveKl,
    Advantage,
    Estimator,
    ImportanceWeights,
    KlReward,
    PolicyLossName,
    Rejection,
    RolloutCorrection,
)
from miniverl.engine.bounds import ESTIMATOR_ARGUMENTS
from miniverl.engine.events import Event, PhaseFinished
from miniverl.engine.inputs import Inputs
from miniverl.engine.problem import Refused
from miniverl.engine.recipe import Critic, Recipe

pytestmark = pytest.mark.slow

COMPARED = ("trajectories.jsonl", "metrics.jsonl", "adapter", "critic", "checkpoints")
CLIPS = {"clip_low": 0.2, "clip_high": 0.28}
LOSS_ARGUMENTS: dict[str, dict[str, float]] = {
    "vanilla": {**CLIPS, "dual_clip": 3.0},
    "gspo": CLIPS,
    "sapo": {"tau_positive": 1.0, "tau_negative": 1.05},
    "gpg": {},
    "cispo": CLIPS,
    "dppo_tv": {**CLIPS, "ratio_cap": 3.0},
    "dppo_kl": {**CLIPS, "ratio_cap": 3.0},
    "dro": {"beta": 0.3},
    "geo_mean": CLIPS,
    "kl_cov": {"share": 0.2, "kl_coefficient": 1.0},
    "clip_cov": {**CLIPS, "share": 0.5, "covariance_low": -5.0, "covariance_high": 5.0},
}
CORRECTIONS = {
    "token weights": RolloutCorrection(
        bypasses_scoring=False,
        importance_weights=ImportanceWeights(
            level="token", lower=None, upper=2.0, is_batch_normalized=False
        ),
        rejections=(),
    ),
    "sequence weights between two bounds, normalised": RolloutCorrection(
        bypasses_scoring=False,
        importance_weights=ImportanceWeights(
            level="sequence", lower=0.01, upper=5.0, is_batch_normalized=True
        ),
        rejections=(),
    ),
    "weights and rejections": RolloutCorrection(
        bypasses_scoring=False,
        importance_weights=ImportanceWeights(
            level="token", lower=None, upper=2.0, is_batch_normalized=False
        ),
        rejections=(
            Rejection(statistic="token_k1", lower=0.5, upper=2.0),
            Rejection(statistic="seq_max_k3", lower=None, upper=0.5),
        ),
    ),
}


@pytest.fixture
def recipe(tiny_recipe: Recipe) -> Recipe:
    """3 steps whose responses differ in their reward, without validation."""
    return replace(
        tiny_recipe,
        data=replace(tiny_recipe.data, validation_sha256=None),
        validation=None,
        reward=replace(tiny_recipe.reward, scorer="target_length", arguments={"tokens": 3}),
        rollout=replace(tiny_recipe.rollout, temperature=1.5),
        steps=replace(tiny_recipe.steps, num_steps=3, checkpoint_every=1),
    )


@pytest.fixture
def inputs(tiny_model: Path, tiny_train: Path) -> Inputs:
    return Inputs(model=tiny_model, train=tiny_train)


class _Stop(Exception):
    """Ends a run from its listener."""


Twice = Callable[[Recipe], Path]


@pytest.fixture
def run_twice(inputs: Inputs, tiny_model: Path, tmp_path: Path) -> Twice:
    """Run a recipe straight, and again with a stop in its last step; the folder, once both hold the same bytes."""

    def go(recipe: Recipe) -> Path:
        bound = inputs if recipe.critic is None else replace(inputs, critic=tiny_model)
        straight, stopped = tmp_path / "straight", tmp_path / "stopped"

        def run(folder: Path, resume: bool, listen: Callable[[Event], None]) -> None:
            loop.run(recipe, bound, folder, device="cpu", threads=1, resume=resume, listen=listen)

        def stop(event: Event) -> None:
            if isinstance(event, PhaseFinished) and (event.step, event.phase) == (3, "update"):
                raise _Stop

        run(straight, False, lambda event: None)
        with pytest.raises(_Stop):
            run(stopped, False, stop)
        run(stopped, True, lambda event: None)
        files, theirs = _files(straight), _files(stopped)
        assert files.keys() == theirs.keys()
        for name, content in files.items():
            assert theirs[name] == content, name
        assert all(row["gradient_norm"] > 0 for row in _lines(straight / "metrics.jsonl"))
        return straight

    return go


def _files(folder: Path) -> dict[str, bytes]:
    paths = (path for name in COMPARED for path in (folder / name, *(folder / name).rglob("*")))
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths if path.is_file()}


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def _advantage(estimator: Estimator, *, divides_by_std: bool = True) -> Advantage:
    read = ESTIMATOR_ARGUMENTS.get(estimator, frozenset())
    return Advantage(
        estimator=estimator,
        divides_by_std=divides_by_std if "divides_by_std" in read else None,
        gamma=0.9 if "gamma" in read else None,
        gae_lambda=0.8 if "gae_lambda" in read else None,
    )


@pytest.mark.parametrize(
    "advantage",
    [
        *[_advantage(name) for name in get_args(Estimator)],
        *[_advantage(name, divides_by_std=False) for name in ("grpo", "grpo_passk")],
    ],
    ids=lambda each: each.estimator + ", only centred" * (each.divides_by_std is False),
)
def test_an_estimator_is_given_every_response_in_its_group(
    recipe: Recipe, tiny_critic: Critic, run_twice: Twice, advantage: Advantage
) -> None:
    critic = replace(tiny_critic, warmup_steps=0) if advantage.estimator == "gae" else None
    folder = run_twice(replace(recipe, advantage=advantage, critic=critic))
    rows = _lines(folder / "trajectories.jsonl")
    assert any(value != 0 for row in rows for value in row["advantages"])
    for step in (1, 2, 3):
        of_step = [row for row in rows if row["step"] == step]
        lengths = [len(row["advantages"]) for row in of_step]
        mask_NR = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
        rewards_NR, values_NR = torch.zeros(mask_NR.shape), torch.zeros(mask_NR.shape)
        for index, row in enumerate(of_step):
            rewards_NR[index, lengths[index] - 1] = row["reward"]
            values_NR[index, : lengths[index]] = torch.tensor(row["values"] or 0.0)
        outcomes = Outcomes(
            token_rewards_NR=rewards_NR,
            mask_NR=mask_NR,
            groups_N=torch.tensor([row["prompt_id"] for row in of_step]),
            values_NR=values_NR,
        )
        expected_NR = ADVANTAGES[advantage.estimator](outcomes, advantage).advantages_NR
        for row, length, expected_R in zip(of_step, lengths, expected_NR, strict=True):
            assert row["advantages"] == expected_R[:length].tolist()


@pytest.mark.parametrize("loss", get_args(PolicyLossName))
def test_a_policy_loss_trains_its_way(recipe: Recipe, run_twice: Twice, loss: Any) -> None:
    wanted = replace(recipe.policy_loss, name=loss, arguments=LOSS_ARGUMENTS[loss])
    folder = run_twice(replace(recipe, policy_loss=wanted, kl_loss=None))
    rows = _lines(folder / "trajectories.jsonl")
    assert any(value != 0 for row in rows for value in row["advantages"])


@pytest.mark.parametrize("estimator", ["k1", "k3+"])
def test_a_fixed_price_of_the_kl_is_paid_in_every_step(
    recipe: Recipe, run_twice: Twice, estimator: Any
) -> None:
    kl_reward = KlReward(estimator=estimator, coefficient=0.3, adaptive=None)
    folder = run_twice(replace(recipe, kl_loss=None, kl_reward=kl_reward))
    rows = _lines(folder / "metrics.jsonl")
    assert [row["kl_coefficient"] for row in rows] == [0.3] * 3
    assert [row["kl_reward"] != 0 for row in rows] == [False, True, True]


def test_an_adaptive_price_goes_on_from_the_checkpoint(recipe: Recipe, run_twice: Twice) -> None:
    """Upstream's starts again at the first one when a run is resumed; ours is part of the state."""
    kl_reward = KlReward(
        estimator="k3", coefficient=0.5, adaptive=AdaptiveKl(target=1e-4, horizon=12)
    )
    folder = run_twice(
        replace(recipe, advantage=_advantage("rloo"), kl_loss=None, kl_reward=kl_reward)
    )
    rows = _lines(folder / "metrics.jsonl")
    # No KL in step 1, and far more than the target later: a fifth of 6 / 12 down, then up.
    assert rows[0]["kl_reward"] == 0
    assert rows[1]["kl_reward"] > 1.2e-4
    prices = [0.5, 0.5 * 0.9, 0.5 * 0.9 * 1.1]
    assert [row["kl_coefficient"] for row in rows] == pytest.approx(prices)
    state = json.loads((folder / "checkpoints/step-000003/state.json").read_text())
    assert state["kl_coefficient"] == pytest.approx(prices[-1] * 1.1)


@pytest.mark.parametrize("correction", CORRECTIONS)
def test_a_correction_reaches_the_update(recipe: Recipe, run_twice: Twice, correction: str) -> None:
    """Of the sampler's distribution only 6 tokens are left, so that it is another one than the policy."""
    wanted = CORRECTIONS[correction]
    rollout = replace(recipe.rollout, top_k=6)
    folder = run_twice(replace(recipe, rollout=rollout, rollout_correction=wanted))
    rows = _lines(folder / "metrics.jsonl")
    for row in rows:
        assert row["correction_kl"] > 0
        assert row["correction_weight_mean"] < 1
    is_rejected = [row.get("correction_rejected_tokens_any", 0.0) > 0 for row in rows]
    assert any(is_rejected) == bool(wanted.rejections)


def test_bypassed_the_samplers_log_probs_are_the_old_ones(recipe: Recipe, run_twice: Twice) -> None:
    bypass = RolloutCorrection(bypasses_scoring=True, importance_weights=None, rejections=())
    one_token = replace(recipe.rollout, top_k=1)
    folder = run_twice(replace(recipe, rollout=one_token, rollout_correction=bypass))
    phases = {event.get("phase") for event in _lines(folder / "journal.jsonl")}
    assert "score_old" not in phases
    # The only token that could be drawn was drawn with certainty.
    rows = _lines(folder / "trajectories.jsonl")
    assert {value for row in rows for value in row["old_log_probs"]} == {0.0}


@pytest.fixture
def once(recipe: Recipe) -> Recipe:
    """One optimizer step in each step."""
    update = replace(
        recipe.update, prompts_per_mini_batch=recipe.data.prompts_per_step, epochs=1, shuffles=False
    )
    return replace(recipe, update=update, kl_loss=None)


def test_updated_once_a_step_has_no_pass_for_its_old_log_probs(
    once: Recipe, run_twice: Twice, inputs: Inputs, tmp_path: Path
) -> None:
    """A KL that costs nothing asks for them before the update: the same numbers."""
    folder = run_twice(once)
    free = replace(once, kl_reward=KlReward(estimator="k1", coefficient=0.0, adaptive=None))
    loop.run(
        free,
        inputs,
        tmp_path / "asked",
        device="cpu",
        threads=1,
        resume=False,
        listen=lambda event: None,
    )
    phases = [
        {event.get("phase") for event in _lines(run / "journal.jsonl")}
        for run in (folder, tmp_path / "asked")
    ]
    assert ["score_old" in each for each in phases] == [False, True]
    for key in ("response_tokens", "old_log_probs", "advantages"):
        found, expected = (
            [row[key] for row in _lines(run / "trajectories.jsonl")]
            for run in (folder, tmp_path / "asked")
        )
        assert found == expected, key
    for key in ("entropy", "sampler_difference", "policy_loss", "gradient_norm"):
        found, expected = (
            [row[key] for row in _lines(run / "metrics.jsonl")]
            for run in (folder, tmp_path / "asked")
        )
        assert found == expected, key
    adapters = [(run / "adapter/adapter_model.safetensors") for run in (folder, tmp_path / "asked")]
    assert adapters[0].read_bytes() == adapters[1].read_bytes()


def test_updated_once_a_policy_that_diverges_is_told_all_the_same(
    once: Recipe, inputs: Inputs, tmp_path: Path
) -> None:
    wild = replace(once, optimizer=replace(once.optimizer, learning_rate=1e30))
    with pytest.raises(Refused, match="its log-probabilities are not finite any more"):
        loop.run(
            wild,
            inputs,
            tmp_path,
            device="cpu",
            threads=1,
            resume=False,
            listen=lambda event: None,
        )
