"""A step's numbers, computed from what it produced, after the fact.

None of them enters the computation. Means are over trajectories unless the name says tokens.
"""

from collections.abc import Sequence
from math import fsum
from statistics import fmean, pstdev
from typing import Any

from torch import Tensor

from miniverl.engine.experience import Experience, given
from miniverl.engine.gather import Judged
from miniverl.engine.sample import Response
from miniverl.engine.trajectory import Trajectory


def rollout_metrics(
    trajectories: Sequence[Trajectory], samples_per_prompt: int
) -> dict[str, float]:
    """`share_capped`: responses that the limit ended. `varying_groups_share`: groups that can teach something.

    The trajectories stand group by group: a prompt that is drawn twice has two.
    """
    rewards = [each.reward for each in trajectories]
    starts = range(0, len(rewards), samples_per_prompt)
    varying = [len(set(rewards[start : start + samples_per_prompt])) > 1 for start in starts]
    return {
        "reward_mean": fmean(rewards),
        "reward_std": pstdev(rewards),
        "prompt_tokens_mean": fmean(len(each.prompt_tokens) for each in trajectories),
        "response_tokens_mean": fmean(len(each.response_tokens) for each in trajectories),
        "share_capped": fmean(not each.is_finished for each in trajectories),
        "varying_groups_share": fmean(varying),
    }


def scoring_metrics(
    experiences: Sequence[Experience], responses: Sequence[Response]
) -> dict[str, float]:
    """Over response tokens: the policy's entropy in nats, and how far the sampler is from the scorer.

    `sampler_difference`: mean of |log-prob while sampling - old log-prob|.
    """
    differences = [
        abs(sampled - scored)
        for response, each in zip(responses, experiences, strict=True)
        for sampled, scored in zip(
            response.log_probs, given(each.old_log_probs_R).tolist(), strict=True
        )
    ]
    entropies = [value for each in experiences for value in _numbers(each.entropy_R) or ()]
    of_policy = {"entropy": fsum(entropies) / len(entropies)} if entropies else {}
    return {
        "advantage_mean": fmean(float(each.advantages_R.mean()) for each in experiences),
        **of_policy,
        "sampler_difference": fsum(differences) / len(differences),
    }


def trajectory_row(step: int, experience: Experience) -> dict[str, Any]:
    """The trajectory's line in trajectories.jsonl."""
    trajectory = experience.trajectory
    return {
        "step": step,
        "prompt_id": trajectory.prompt_id,
        "sample": trajectory.sample,
        "prompt_tokens": trajectory.prompt_tokens,
        "response_tokens": trajectory.response_tokens,
        "response": trajectory.response,
        "finished": trajectory.is_finished,
        "reward": trajectory.reward,
        "advantages": experience.advantages_R.tolist(),
        "old_log_probs": given(experience.old_log_probs_R).tolist(),
        "reference_log_probs": _numbers(experience.reference_log_probs_R),
        "values": _numbers(experience.values_R),
        "returns": _numbers(experience.returns_R),
    }


def validation_row(step: int, judged: Judged) -> dict[str, Any]:
    """The answer's line in validation.jsonl."""
    trajectory = judged.trajectory
    return {
        "step": step,
        "prompt_id": trajectory.prompt_id,
        "sample": trajectory.sample,
        "response_tokens": trajectory.response_tokens,
        "response": trajectory.response,
        "finished": trajectory.is_finished,
        "reward": trajectory.reward,
        "extras": {**judged.extras},
        "prediction": judged.prediction,
    }


def _numbers(tensor: Tensor | None) -> list[float] | None:
    return None if tensor is None else tensor.tolist()
