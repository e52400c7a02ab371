"""Which prompts each step takes."""

import json
from itertools import islice
from pathlib import Path

import pytest
import torch

from miniverl.engine.order import Cursor, num_steps, order, take
from miniverl.engine.recipe import Data, Steps

OBSERVED = json.loads((Path(__file__).parents[1] / "data" / "prompt_orders.json").read_text())


def data(
    *,
    prompts_per_step: int,
    prompts_per_draw: int | None = None,
    shuffles: bool = True,
    first_permutation: int = 1,
) -> Data:
    return Data(
        train_sha256="",
        validation_sha256=None,
        prompt_field="prompt",
        max_prompt_tokens=100,
        drops_overlong=True,
        chat_template_arguments={},
        max_rows=None,
        shuffles=shuffles,
        first_permutation=first_permutation,
        prompts_per_step=prompts_per_step,
        prompts_per_draw=prompts_per_draw or prompts_per_step,
    )


def steps(num: int | None, epochs: int) -> Steps:
    return Steps(num_steps=num, num_epochs=epochs, checkpoint_every=0, keep_checkpoints=None)


def taken(num_prompts: int, part: Data, seed: int, count: int) -> list[list[int]]:
    cursor = Cursor(epoch=0, index=0)
    found = []
    for _ in range(count):
        indices, cursor = take(cursor, part.prompts_per_step, num_prompts, part, seed)
        found.append(indices)
    return found


@pytest.mark.parametrize(
    "case", OBSERVED["cases"], ids=lambda case: f"{case['seed']}-{case['workers']}"
)
def test_four_epochs_are_those_of_upstreams_data_loader_without_and_with_workers(case):
    part = data(
        prompts_per_step=case["prompts_per_step"],
        first_permutation=1 if case["workers"] == 0 else 2,
    )
    expected = [step for epoch in case["epochs"] for step in epoch]
    assert taken(case["num_prompts"], part, case["seed"], len(expected)) == expected


@pytest.mark.parametrize(
    "case",
    OBSERVED["smaller_draws"],
    ids=lambda case: f"{case['num_prompts']}-{case['prompts_per_draw']}-{case['workers']}",
)
def test_steps_of_smaller_draws_are_those_of_upstreams_data_loader(case):
    part = data(
        prompts_per_step=case["prompts_per_step"],
        prompts_per_draw=case["prompts_per_draw"],
        first_permutation=1 if case["workers"] == 0 else 2,
    )
    assert taken(case["num_prompts"], part, case["seed"], len(case["steps"])) == case["steps"]


def test_only_what_no_draw_fits_into_is_dropped_at_the_end_of_an_epoch():
    part = data(prompts_per_step=4, prompts_per_draw=2, shuffles=False)
    assert taken(7, part, 0, 3) == [[0, 1, 2, 3], [4, 5, 0, 1], [2, 3, 4, 5]]


def test_a_step_over_the_end_of_an_epoch_may_take_a_prompt_twice():
    part = data(prompts_per_step=6, prompts_per_draw=1)
    first, second = taken(7, part, 7, 2)
    assert (first, second) == ([5, 0, 3, 1, 2, 6], [4, 6, 0, 5, 4, 2])


def test_without_shuffling_the_order_is_the_files_and_the_rest_of_an_epoch_is_dropped():
    part = data(prompts_per_step=2, shuffles=False)
    assert taken(5, part, 0, 4) == [[0, 1], [2, 3], [0, 1], [2, 3]]


def test_every_prompt_comes_once_an_epoch():
    for permutation in islice(order(7, 3, shuffles=True, first_permutation=2), 5):
        assert sorted(permutation) == list(range(7))


@pytest.mark.parametrize("prompts_per_draw", [1, 2])
@pytest.mark.parametrize("done", range(9))
def test_resuming_needs_only_two_numbers_also_at_the_end_of_an_epoch(done, prompts_per_draw):
    part = data(prompts_per_step=2, prompts_per_draw=prompts_per_draw, first_permutation=2)
    whole = taken(7, part, 1, 9)
    cursor = Cursor(epoch=0, index=0)
    for _ in range(done):
        _, cursor = take(cursor, 2, 7, part, 1)
    resumed = Cursor(epoch=cursor.epoch, index=cursor.index)
    assert take(resumed, 2, 7, part, 1)[0] == whole[done]


def test_the_order_leaves_the_global_generator_alone():
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    taken(7, data(prompts_per_step=2), 5, 6)
    assert torch.equal(torch.rand(1), expected)


def test_the_nearer_bound_ends_the_run():
    part = data(prompts_per_step=3)
    assert num_steps(10, part, steps(None, 2)) == 6
    assert num_steps(10, part, steps(4, 2)) == 4
    assert num_steps(10, part, steps(50, 2)) == 6
