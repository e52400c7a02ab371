"""Whole optimizer steps of a tiny model, against the same steps put together from the pinned upstream's functions.

Three steps of two mini-batches each, the learning rate warming up from 0 and falling, the gradient clipped, for
every policy loss, with KL terms, entropy, rejected tokens and importance weights. Upstream takes a mini-batch at
once; ours is cut into micro-batches. In float32: weights to 1e-6, losses and gradient norms on the way to 1e-4.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import LlamaConfig

from miniverl.engine import recipe as recipes
from miniverl.engine.algorithm import Aggregation, KlLoss, PolicyLoss
from miniverl.engine.experience import Experience
from miniverl.engine.models import Model, load_policy
from miniverl.engine.packed import pack
from miniverl.engine.policy_update import PolicyObjectives
from miniverl.engine.recipe import LearningRateSchedule, Optimizer, Recipe, Update
from miniverl.engine.schedule import factor
from miniverl.engine.score import response_scores
from miniverl.engine.trajectory import Trajectory
from miniverl.engine.update import Plan, adamw, update

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[1] / "data" / "example_recipe.json"
SAMPLES = 3
LOSSES = (
    "vanilla",
    "gspo",
    "sapo",
    "gpg",
    "cispo",
    "dppo_tv",
    "dppo_kl",
    "dro",
    "geo_mean",
    "kl_cov",
    "clip_cov",
)


@pytest.fixture(scope="module")
def found(run_upstream) -> dict[str, Any]:
    return run_upstream("upstream_step.py")


@pytest.fixture(scope="module")
def start(found, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model before its first step, as a folder."""
    folder = tmp_path_factory.mktemp("start")
    return _saved(found["config"], found["weights_before"], folder)


@pytest.mark.parametrize("loss", LOSSES)
def test_whole_steps(found, start, record, largest_difference, loss):
    of_weights, of_numbers = [], []
    cases = [case for case in found["cases"] if case["loss"] == loss]
    for case in cases:
        recipe = _recipe(found, case)
        policy = load_policy(recipe.policy, start, adapter_seed=0, device="cpu")
        for theirs, ours in _trained(policy, recipe, found, case):
            of_numbers.append(largest_difference(torch.tensor(ours), theirs))
        after = dict(policy.network.named_parameters())
        of_weights += [
            largest_difference(after[name], theirs)
            for name, theirs in case["weights_after"].items()
        ]
    assert max(of_numbers) <= 1e-4
    upstream = "verl/workers/engine/fsdp/transformer_impl.py:759"
    record(f"optimizer steps with {loss}", upstream, len(cases), max(of_weights), 1e-6)


@pytest.mark.parametrize("name", ["log-probability", "entropy"])
def test_scores_and_their_gradients(found, tmp_path, record, largest_difference, name):
    """Of a model whose layer adds 0, so that its rounding is small: gradients of a weighted sum by head and embedding."""
    differences, num_tokens = [], 0
    for place, case in enumerate(found["heads"]):
        recipe = _recipe(found, found["cases"][0])
        folder = _saved(case["config"], case["weights"], tmp_path / str(place))
        model = load_policy(recipe.policy, folder, adapter_seed=0, device="cpu")
        packed = pack(_trajectories(found), model.device)
        both = response_scores(model, packed, temperature=found["temperature"], entropy="trained")
        values_P = dict(zip(("log-probability", "entropy"), both, strict=True))[name]
        num_tokens += len(values_P)
        theirs = case["scores"][name]
        differences.append(largest_difference(values_P, theirs["values"]))
        (values_P * torch.tensor(theirs["factors"])).sum().backward()
        ends = {"head": model.network.lm_head, "embedding": model.network.model.embed_tokens}
        differences += [
            largest_difference(each.weight.grad, theirs["gradients"][end])
            for end, each in ends.items()
        ]
    line = {"log-probability": 73, "entropy": 231}[name]
    upstream = f"verl/utils/torch_functional.py:{line}"
    record(f"score: {name}", upstream, num_tokens, max(differences), 1e-6)


def _saved(config: dict[str, Any], plain: dict[str, Any], folder: Path) -> Path:
    LlamaConfig(**config, architectures=["LlamaForCausalLM"]).save_pretrained(folder)
    weights = {name: torch.tensor(rows) for name, rows in plain.items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _trained(
    policy: Model, recipe: Recipe, found: dict[str, Any], case: dict[str, Any]
) -> list[tuple[float, float]]:
    """Pairs (upstream's, ours): means over a step's mini-batches of the loss and of the gradient's norm."""
    experiences = _experiences(found, case)
    optimizer = adamw(policy.trained(), recipe.optimizer)
    plan = Plan.of(recipe.update, SAMPLES, 0, recipe.optimizer)
    pairs = []
    for step in range(1, found["num_steps"] + 1):
        rate = recipe.optimizer.learning_rate * factor(step - 1, recipe.learning_rate_schedule)
        numbers = update(
            policy.trained(),
            optimizer,
            experiences,
            plan,
            PolicyObjectives(policy, recipe, step=step),
            learning_rate=rate,
        )
        mine = slice(2 * step - 2, 2 * step)
        for theirs, ours in (("losses", "loss"), ("norms", "gradient_norm")):
            pairs.append((sum(case[theirs][mine]) / 2, numbers[ours]))
    return pairs


def _recipe(found: dict[str, Any], case: dict[str, Any]) -> Recipe:
    example = recipes.from_dict(json.loads(EXAMPLE.read_text("utf-8")), EXAMPLE.name)
    return replace(
        example,
        policy=replace(
            example.policy, lora=None, parameter_dtype="float32", compute_dtype="float32"
        ),
        rollout=replace(
            example.rollout, samples_per_prompt=SAMPLES, temperature=found["temperature"]
        ),
        policy_loss=PolicyLoss(
            name=case["loss"],
            arguments=case["arguments"],
            aggregation=Aggregation(mode=case["mode"], horizon=found["horizon"]),
            entropy_coefficient=case["entropy"],
        ),
        kl_loss=None
        if case["kl"] is None
        else KlLoss(estimator=case["kl"], coefficient=found["kl_coefficient"]),
        distillation=None,
        optimizer=Optimizer(name="adamw", **found["optimizer"]),
        learning_rate_schedule=LearningRateSchedule(
            kind="cosine", zero_indexed=True, **found["schedule"]
        ),
        update=Update(prompts_per_mini_batch=1, epochs=1, shuffles=False, micro_batch_tokens=9),
    )


def _trajectories(found: dict[str, Any]) -> list[Trajectory]:
    pairs = zip(found["rows"]["tokens"], found["prompt_lengths"], strict=True)
    return [
        Trajectory(
            prompt_id=index // SAMPLES,
            sample=index % SAMPLES,
            prompt_tokens=tuple(tokens[:length]),
            response_tokens=tuple(tokens[length:]),
            is_finished=True,
            response="",
            reward=0.0,
        )
        for index, (tokens, length) in enumerate(pairs)
    ]


def _experiences(found: dict[str, Any], case: dict[str, Any]) -> list[Experience]:
    def row(name: str, index: int) -> Tensor:
        return torch.tensor(found["rows"][name][index])

    return [
        Experience(
            trajectory=trajectory,
            is_trained_R=row("masks", index).bool(),
            old_log_probs_R=row("old_log_probs", index),
            advantages_R=row("advantages", index),
            reference_log_probs_R=row("reference_log_probs", index),
            importance_weights_R=row("weights", index) if case["is_weighted"] else None,
            values_R=None,
            returns_R=None,
            teacher=None,
        )
        for index, trajectory in enumerate(_trajectories(found))
    ]
