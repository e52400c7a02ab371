"""A step's groups: which are dropped, which take their place, and that nothing but the data's order decides."""

from collections.abc import Callable, Mapping, Sequence

import pytest
import torch

from miniverl.engine.algorithm import GroupFilter
from miniverl.engine.decoder import Decoder
from miniverl.engine.gather import Gathered, Judged, filter_metrics, gather
from miniverl.engine.models import Model
from miniverl.engine.order import Cursor
from miniverl.engine.problem import Refused, WrongCall
from miniverl.engine.recipe import Data
from miniverl.engine.sample import Response, Sampling, generate
from miniverl.engine.trajectory import Prompt, Trajectory

START = Cursor(epoch=0, index=0)
BY_REWARD = GroupFilter(metric="reward", batches_in_flight=2)
VARY, SAME = (0.0, 1.0), (1.0, 1.0)


def data(*, prompts_per_step: int = 2, prompts_per_draw: int = 1) -> Data:
    return Data(
        train_sha256="",
        validation_sha256=None,
        prompt_field="prompt",
        max_prompt_tokens=100,
        drops_overlong=True,
        chat_template_arguments={},
        max_rows=None,
        shuffles=False,
        first_permutation=1,
        prompts_per_step=prompts_per_step,
        prompts_per_draw=prompts_per_draw,
    )


def prompt(number: int, tokens: Sequence[int] = (1, 2)) -> Prompt:
    return Prompt(
        prompt_id=number,
        messages=(),
        tokens=tuple(tokens),
        ground_truth=None,
        data_source="here",
        extra={},
    )


def trajectory(response: Response, reward: float) -> Trajectory:
    return Trajectory(
        prompt_id=response.prompt.prompt_id,
        sample=response.sample,
        prompt_tokens=response.prompt.tokens,
        response_tokens=response.tokens,
        is_finished=response.is_finished,
        response="",
        reward=reward,
    )


def by_table(rewards: Sequence[Sequence[float]], extras: Mapping[str, float] | None = None):
    """A judge that gives sample s of prompt p the reward `rewards[p][s]`."""

    def judge(responses: Sequence[Response]) -> list[Judged]:
        return [
            Judged(
                trajectory=trajectory(each, rewards[each.prompt.prompt_id][each.sample]),
                extras=extras or {},
            )
            for each in responses
        ]

    return judge


def gathered(
    rewards: Sequence[Sequence[float]],
    part: Data | None = None,
    group_filter: GroupFilter | None = BY_REWARD,
    cursor: Cursor = START,
    rounds: list[list[int]] | None = None,
    told: list[list[int]] | None = None,
    judge: Callable[[Sequence[Response]], list[Judged]] | None = None,
) -> Gathered:
    """One prompt for each row of rewards, one response for each number in it."""

    def sample(prompts: Sequence[Prompt], earlier: Sequence[Prompt]) -> list[Response]:
        if rounds is not None:
            rounds.append([each.prompt_id for each in prompts])
        if told is not None:
            told.append([each.prompt_id for each in earlier])
        return [
            Response(
                prompt=each,
                sample=number,
                tokens=(7,),
                log_probs=(-1.0,),
                filtered_log_probs=(-1.0,),
                is_finished=True,
            )
            for each in prompts
            for number in range(len(rewards[each.prompt_id]))
        ]

    prompts = [prompt(number) for number in range(len(rewards))]
    return gather(
        cursor,
        prompts,
        part or data(),
        0,
        group_filter,
        sample=sample,
        judge=judge or by_table(rewards),
    )


def kept(found: Gathered) -> list[int]:
    return [each.prompt_id for each in found.trajectories]


def test_without_a_filter_the_next_prompts_are_the_step():
    found = gathered([SAME, SAME, VARY, VARY], group_filter=None)
    assert kept(found) == [0, 0, 1, 1]
    assert found.cursor == Cursor(epoch=0, index=2)
    assert (found.num_drawn, found.num_dropped, found.num_discarded) == (2, 0, 0)


def test_a_step_whose_groups_all_vary_samples_no_more():
    rounds = []
    found = gathered([VARY, VARY, VARY], rounds=rounds)
    assert (kept(found), rounds) == ([0, 0, 1, 1], [[0, 1]])


def test_two_prompts_are_sampled_for_each_dropped_group_and_the_first_that_vary_are_kept():
    rounds = []
    found = gathered([SAME, VARY, VARY, VARY, VARY], rounds=rounds)
    assert rounds == [[0, 1], [2, 3]]
    assert kept(found) == [1, 1, 2, 2]
    assert [each.prompt.prompt_id for each in found.responses] == kept(found)
    assert found.cursor == Cursor(epoch=0, index=4)  # the discarded prompt is used up
    assert filter_metrics(found) == {
        "groups_drawn": 4,
        "groups_dropped": 1,
        "groups_discarded": 1,
    }


def test_no_round_samples_more_than_the_batches_in_flight():
    rewards = [SAME] * 8 + [VARY] * 4
    for batches, expected in (
        (1, [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]),
        (2, [[0, 1], [2, 3, 4, 5], [6, 7, 8, 9]]),
        (9, [[0, 1], [2, 3, 4, 5], [6, 7, 8, 9, 10, 11]]),
    ):
        rounds = []
        one = GroupFilter(metric="reward", batches_in_flight=batches)
        assert kept(gathered(rewards, group_filter=one, rounds=rounds)) == [8, 8, 9, 9]
        assert rounds == expected


def test_a_round_takes_whole_draws():
    rounds = []
    part = data(prompts_per_step=4, prompts_per_draw=4)
    gathered([SAME] + [VARY] * 8, part, rounds=rounds)
    assert rounds == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_a_group_of_one_sample_is_never_dropped():
    assert kept(gathered([(1.0,), (1.0,), (1.0,)])) == [0, 1]


def test_a_group_is_dropped_where_numpys_standard_deviation_is_exactly_zero():
    """As upstream: the mean of three times 0.1 is not 0.1, and the group stays."""
    assert kept(gathered([(0.1, 0.1, 0.1), (0.5, 0.5, 0.5), VARY])) == [0, 0, 0, 2, 2]


def test_the_metric_may_be_any_number_of_the_scorers():
    def judge(responses: Sequence[Response]) -> list[Judged]:
        """The reward varies everywhere, `acc` in the prompts 1 and 3."""
        return [
            Judged(
                trajectory=trajectory(each, each.sample / 3),
                extras={"acc": float(each.sample if each.prompt.prompt_id % 2 else 0)},
            )
            for each in responses
        ]

    by_accuracy = GroupFilter(metric="acc", batches_in_flight=1)
    assert kept(gathered([VARY] * 4, group_filter=by_accuracy, judge=judge)) == [1, 1, 3, 3]
    assert kept(gathered([VARY] * 4, judge=judge)) == [0, 0, 1, 1]


def test_a_metric_that_the_scorer_does_not_give_is_named():
    judge = by_table([VARY] * 4, {"acc": 1.0})
    by_score = GroupFilter(metric="score", batches_in_flight=1)
    with pytest.raises(WrongCall, match="Filter by one that it gives: reward, acc"):
        gathered([VARY] * 4, group_filter=by_score, judge=judge)


@pytest.mark.parametrize("start", [0, 3])
def test_data_of_which_nothing_can_be_learnt_ends_after_one_pass(start):
    rounds = []
    with pytest.raises(Refused, match="none of 5 prompts, a whole pass over the data"):
        gathered([SAME] * 5, cursor=Cursor(epoch=0, index=start), rounds=rounds)
    assert sorted(number for each in rounds for number in each) == [0, 1, 2, 3, 4]


def test_one_prompt_that_varies_fills_a_step_by_being_met_again():
    assert set(kept(gathered([SAME] * 4 + [VARY]))) == {4}


def test_a_pass_is_as_many_prompts_as_whole_draws_hold():
    part = data(prompts_per_draw=2)
    with pytest.raises(Refused, match="none of 4 prompts"):
        gathered([SAME] * 5, part)


def test_steps_follow_one_another_from_their_cursors_alone():
    rewards = [SAME, VARY, VARY, SAME, VARY, VARY, VARY]
    first = gathered(rewards)
    second = gathered(rewards, cursor=first.cursor)
    third = gathered(rewards, cursor=second.cursor)
    assert [kept(each)[::2] for each in (first, second, third)] == [[1, 2], [4, 5], [6, 1]]
    assert third.cursor == Cursor(epoch=1, index=3)
    again = gathered(rewards, cursor=Cursor(epoch=second.cursor.epoch, index=second.cursor.index))
    assert again == third


def test_sampled_by_a_model_what_stays_does_not_depend_on_the_rounds(tiny_policy: Model):
    """A round's size changes what is sampled beside a response, and nothing of the response."""
    decoder = Decoder(tiny_policy, torch.float32)
    decoder.load()
    prompts = [prompt(number, (1, 14 + number % 3, 5 + number, 2)) for number in range(8)]
    sampling = Sampling(
        samples_per_prompt=2, max_tokens=6, temperature=1.0, top_p=1.0, top_k=0, end_tokens=(3,)
    )

    def sample(chosen: Sequence[Prompt], earlier: Sequence[Prompt]) -> list[Response]:
        return generate(decoder, chosen, sampling, seed=1, policy_version=0, earlier=earlier)

    def judge(responses: Sequence[Response]) -> list[Judged]:
        return [
            Judged(trajectory=trajectory(each, float(each.tokens[0] % 2)), extras={})
            for each in responses
        ]

    found = {
        batches: gather(
            START,
            prompts,
            data(prompts_per_step=2),
            0,
            GroupFilter(metric="reward", batches_in_flight=batches),
            sample=sample,
            judge=judge,
        )
        for batches in (1, 3)
    }
    assert found[1].num_dropped > 0
    assert found[1].responses == found[3].responses
    everything = sample(prompts, ())
    assert all(each in everything for each in found[1].responses)


def test_a_round_is_told_what_the_step_sampled_before_it():
    rounds, told = [], []
    found = gathered(
        [VARY, VARY, SAME, VARY], cursor=Cursor(epoch=0, index=2), rounds=rounds, told=told
    )
    assert (rounds, told) == ([[2, 3], [0, 1]], [[], [2, 3]])
    assert kept(found) == [3, 3, 0, 0]
    assert found.cursor == Cursor(epoch=1, index=2)
