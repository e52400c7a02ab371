"""What validation says, where it can be counted by hand; tests/conformance compares it with the pinned upstream."""

import numpy as np
import pytest

from miniverl.engine.gather import Judged
from miniverl.engine.trajectory import Trajectory
from miniverl.engine.validation import validation_metrics


def answers(
    prompt_id: int, *rewards: float, predictions: str | None = None, acc: tuple[float, ...] = ()
) -> list[Judged]:
    return [
        Judged(
            trajectory=Trajectory(
                prompt_id=prompt_id,
                sample=sample,
                prompt_tokens=(1,),
                response_tokens=(2,),
                is_finished=True,
                response="",
                reward=reward,
            ),
            extras={"acc": acc[sample]} if acc else {},
            prediction=None if predictions is None else predictions[sample],
        )
        for sample, reward in enumerate(rewards)
    ]


def test_of_one_answer_there_is_its_mean_alone():
    found = validation_metrics([*answers(0, 1.0), *answers(1, 0.0)], {0: "a", 1: "a"})
    assert found == {"core/a/reward/mean@1": 0.5}


def test_prompts_count_alike_and_sources_stand_apart():
    judged = [*answers(0, 1.0, 3.0), *answers(1, 5.0, 5.0), *answers(2, 7.0, 8.0)]
    found = validation_metrics(judged, {0: "a", 1: "a", 2: "b/c"})
    assert found["core/a/reward/mean@2"] == 3.5
    assert found["aux/a/reward/std@2"] == 0.5
    assert found["core/b/c/reward/mean@2"] == 7.5


def test_acc_is_looked_at_first_where_there_is_one():
    found = validation_metrics(answers(0, -1.0, acc=(0.0,)), {0: "a"})
    assert found == {"core/a/acc/mean@1": 0.0, "aux/a/reward/mean@1": -1.0}


def test_best_and_worst_lie_around_the_mean_and_come_near_the_ends_with_more_answers():
    found = validation_metrics(answers(0, 0.0, 1.0, 2.0, 3.0), {0: "a"})
    best, worst = found["core/a/reward/best@4/mean"], found["aux/a/reward/worst@4/mean"]
    # Of four draws of 0..3 the largest is above k but for ((k + 1) / 4)^4: 3 - (1 + 16 + 81) / 256.
    assert best == pytest.approx(3 - 98 / 256, abs=0.07)
    assert worst == pytest.approx(98 / 256, abs=0.07)
    assert found["aux/a/reward/best@2/mean"] < best


def test_the_majority_is_of_what_was_taken_for_the_answer():
    found = validation_metrics(answers(0, 1.0, 1.0, 1.0, 0.0, predictions="xxxy"), {0: "a"})
    # Of four draws y has the most votes with 3 or 4, and with 2 where it comes first: 13/256 + 27/256.
    assert found["core/a/reward/maj@4/mean"] == pytest.approx(1 - 40 / 256, abs=0.04)


def test_without_answers_to_compare_there_is_no_majority():
    found = validation_metrics(answers(0, 1.0, 0.0), {0: "a"})
    assert not any("maj" in name for name in found)


def test_a_number_that_some_answers_lack_is_left_out():
    judged = [*answers(0, 1.0, acc=(1.0,)), *answers(0, 0.0)]
    assert not any("/acc/" in name for name in validation_metrics(judged, {0: "a"}))


def test_the_global_generator_is_left_alone():
    np.random.seed(3)
    before = np.random.get_state()[1].tolist()
    validation_metrics(answers(0, 1.0, 0.0), {0: "a"})
    assert np.random.get_state()[1].tolist() == before
