"""This engine's scoring and update of given trajectories, without a rollout.

python -P -m miniverl.bench.peers.ours_update MODEL_FOLDER --recipe recipe.json --threads 2
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from miniverl.bench.peers.answers import Json, peak_bytes, serve
from miniverl.engine import recipe as recipes
from miniverl.engine.experience import Experience
from miniverl.engine.models import load_policy
from miniverl.engine.policy_update import PolicyObjectives
from miniverl.engine.score import score
from miniverl.engine.trajectory import Trajectory
from miniverl.engine.update import Plan, adamw, update


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--recipe", type=Path, required=True)
    parser.add_argument("--threads", type=int, required=True)
    call = parser.parse_args()
    torch.set_num_threads(call.threads)
    recipe = recipes.loads(call.recipe.read_text("utf-8"), str(call.recipe))
    policy = load_policy(recipe.policy, call.model, adapter_seed=0, device="cpu")
    optimizer = adamw(policy.trained(), recipe.optimizer)

    def measure(question: Json) -> Json:
        rows = _trajectories(question["rows"])
        experiences = [_experience(each, number) for number, each in enumerate(rows)]
        started = time.perf_counter()
        if question["work"] == "score":
            score(
                policy,
                rows,
                temperature=1.0,
                micro_batch_tokens=recipe.update.micro_batch_tokens,
                with_entropy=False,
            )
        else:
            plan = Plan.of(recipe.update, recipe.rollout.samples_per_prompt, 0, recipe.optimizer)
            objectives = PolicyObjectives(policy, recipe, step=1)
            rate = recipe.optimizer.learning_rate
            update(policy.trained(), optimizer, experiences, plan, objectives, learning_rate=rate)
        seconds = time.perf_counter() - started
        tokens = sum(len(each.response_tokens) for each in rows)
        return {"seconds": seconds, "tokens": tokens, "peak_bytes": peak_bytes()}

    serve(measure)


def _trajectories(rows: Sequence[Json]) -> list[Trajectory]:
    return [
        Trajectory(
            prompt_id=row["prompt_id"],
            sample=number,
            prompt_tokens=tuple(row["prompt"]),
            response_tokens=tuple(row["response"]),
            is_finished=True,
            response="",
            reward=0.0,
        )
        for number, row in enumerate(rows)
    ]


def _experience(of: Trajectory, number: int) -> Experience:
    """Old log-probs of -1, and an advantage of 1 or -1: what the arithmetic costs does not depend on them."""
    length = len(of.response_tokens)
    return Experience(
        trajectory=of,
        is_trained_R=torch.ones(length, dtype=torch.bool),
        old_log_probs_R=torch.full((length,), -1.0),
        advantages_R=torch.full((length,), 1.0 - 2.0 * (number % 2)),
        reference_log_probs_R=None,
        importance_weights_R=None,
        values_R=None,
        returns_R=None,
        teacher=None,
    )


if __name__ == "__main__":
    main()
