"""A step's numbers about its rollout, by hand."""

from miniverl.engine.metrics import rollout_metrics
from miniverl.engine.trajectory import Trajectory


def _trajectory(prompt_id: int, sample: int, reward: float) -> Trajectory:
    """Of two prompt tokens; those of sample 0 end by themselves after one token, the others are cut after three."""
    return Trajectory(
        prompt_id=prompt_id,
        sample=sample,
        prompt_tokens=(1, 2),
        response_tokens=(5,) if sample == 0 else (5, 6, 7),
        is_finished=sample == 0,
        response="",
        reward=reward,
    )


def test_means_are_over_trajectories() -> None:
    rewards = [(4, 0, 0.0), (4, 1, 1.0), (9, 0, 1.0), (9, 1, 1.0)]
    assert rollout_metrics([_trajectory(*each) for each in rewards], 2) == {
        "reward_mean": 0.75,
        "reward_std": 0.1875**0.5,
        "prompt_tokens_mean": 2.0,
        "response_tokens_mean": 2.0,
        "share_capped": 0.5,
        "varying_groups_share": 0.5,
    }


def test_a_prompt_that_is_drawn_twice_has_two_groups() -> None:
    """Neither varies, though the rewards of the prompt do; its second group goes on with the sample numbers."""
    rewards = [(4, 0, 1.0), (4, 1, 1.0), (4, 2, 0.0), (4, 3, 0.0)]
    numbers = rollout_metrics([_trajectory(*each) for each in rewards], 2)
    assert numbers["varying_groups_share"] == 0.0


def test_a_group_of_one_never_varies() -> None:
    rewards = [(4, 0, 1.0), (9, 0, 0.0)]
    numbers = rollout_metrics([_trajectory(*each) for each in rewards], 1)
    assert numbers["varying_groups_share"] == 0.0
