"""Trajectories as tensors: the instance that the legend spells out."""

import pytest
import torch

from miniverl.engine.trajectory import Trajectory, batch, pad


def trajectory(prompt: tuple[int, ...], response: tuple[int, ...]) -> Trajectory:
    return Trajectory(
        prompt_id=0,
        sample=0,
        prompt_tokens=prompt,
        response_tokens=response,
        is_finished=True,
        response="",
        reward=0.0,
    )


def test_the_worked_instance_of_the_legend():
    made = batch([trajectory((7, 8, 9), (4, 2)), trajectory((5,), (6, 3, 2))], 0, "cpu")
    assert made.tokens_BT.tolist() == [[7, 8, 9, 4, 2], [5, 6, 3, 2, 0]]
    assert made.token_mask_BT.int().tolist() == [[1, 1, 1, 1, 1], [1, 1, 1, 1, 0]]
    assert made.response_mask_BR.int().tolist() == [[1, 1, 0], [1, 1, 1]]
    assert made.logit_positions_BR.tolist() == [[2, 3, 4], [0, 1, 2]]


def test_the_token_behind_each_logit_position_is_the_response_token():
    made = batch([trajectory((7, 8, 9), (4, 2)), trajectory((5,), (6, 3, 2))], 0, "cpu")
    following_BR = made.tokens_BT.gather(1, (made.logit_positions_BR + 1).clamp(max=4))
    inside_BR = made.response_mask_BR
    assert torch.equal(following_BR[inside_BR], made.response_tokens_BR[inside_BR])


def test_a_sampled_token_equal_to_the_padding_token_stays_in_the_mask():
    made = batch([trajectory((7,), (4, 0)), trajectory((7,), (4, 1, 0))], 0, "cpu")
    assert made.response_mask_BR.int().tolist() == [[1, 1, 0], [1, 1, 1]]


def test_padding_fills_behind_the_end_even_of_an_empty_row():
    padded = pad([[-0.5, -1.0], []], 0.0, torch.float32)
    assert padded.tolist() == [[-0.5, -1.0], [0.0, 0.0]]


def test_a_response_without_a_prompt_is_our_own_mistake():
    with pytest.raises(AssertionError):
        batch([trajectory((), (1,))], 0, "cpu")
