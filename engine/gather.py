"""A step's trajectories: prompts sampled and judged, and where the recipe filters groups, until enough teach something.

A group whose members all have the same metric has no advantage to learn from. With a filter it is dropped, and
two other prompts are sampled for it (one of them may have to be dropped too), in rounds. Of the groups that stay
the first ones in the order of the data are taken, so that the result does not depend on which came first; the
surplus is discarded, and used up all the same. Upstream: verl/trainer/ppo/v1/replay_buffer.py:404 (v0.9.0), which
keeps the groups that finish first, and samples without end where none varies.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from miniverl.engine.algorithm import GroupFilter
from miniverl.engine.order import Cursor, take
from miniverl.engine.problem import Problem, Refused, WrongCall
from miniverl.engine.recipe import Data
from miniverl.engine.sample import Response
from miniverl.engine.trajectory import Prompt, Trajectory

_PROMPTS_FOR_ONE_DROPPED = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """A trajectory, and what its scorer gives beside the reward."""

    trajectory: Trajectory
    extras: Mapping[str, float]
    prediction: str | float | None = None  # what it took for the answer


# Responses of the prompts, all of one prompt together; prompts of earlier rounds come second.
Sample = Callable[[Sequence[Prompt], Sequence[Prompt]], Sequence[Response]]
Judge = Callable[[Sequence[Response]], Sequence[Judged]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Gathered:
    """What a step trains on, group by group, and where the data stands behind everything that was drawn."""

    responses: list[Response]
    judged: list[Judged]  # of the responses, in their order
    cursor: Cursor
    num_drawn: int  # groups sampled
    num_dropped: int  # of them, without any difference in the metric
    num_discarded: int  # of them, more than the step takes

    @property
    def trajectories(self) -> list[Trajectory]:
        return [each.trajectory for each in self.judged]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Group:
    responses: Sequence[Response]
    judged: Sequence[Judged]


def gather(
    cursor: Cursor,
    prompts: Sequence[Prompt],
    data: Data,
    seed: int,
    group_filter: GroupFilter | None,
    *,
    sample: Sample,
    judge: Judge,
) -> Gathered:
    """The `prompts_per_step` groups of the step whose data begins at `cursor`.

    Raises Refused where a whole pass over the prompts gives no group that varies, and WrongCall where the scorer
    gives no such metric.
    """
    wanted = data.prompts_per_step
    drawn: list[Prompt] = []
    kept: list[_Group] = []
    num_dropped = num_in_vain = 0  # the latter since a group was last kept
    while len(kept) < wanted:
        count = _next_count(len(drawn), num_dropped, num_in_vain, len(prompts), data, group_filter)
        if count == 0:
            assert group_filter is not None, "every group is kept without a filter"
            raise Refused([_degenerate(num_in_vain, len(kept), wanted, group_filter)])
        indices, cursor = take(cursor, count, len(prompts), data, seed)
        chosen = [prompts[index] for index in indices]
        groups = _groups(sample(chosen, drawn), judge, count)
        varying = [each for each in groups if group_filter is None or _varies(each, group_filter)]
        drawn += chosen
        kept += varying
        num_dropped += len(groups) - len(varying)
        num_in_vain = 0 if varying else num_in_vain + count
    return Gathered(
        responses=[each for group in kept[:wanted] for each in group.responses],
        judged=[each for group in kept[:wanted] for each in group.judged],
        cursor=cursor,
        num_drawn=len(drawn),
        num_dropped=num_dropped,
        num_discarded=len(kept) - wanted,
    )


def filter_metrics(gathered: Gathered) -> dict[str, float]:
    """Counts of groups: how many were sampled, had nothing to teach, and were more than the step takes."""
    return {
        "groups_drawn": gathered.num_drawn,
        "groups_dropped": gathered.num_dropped,
        "groups_discarded": gathered.num_discarded,
    }


def _next_count(
    num_drawn: int,
    num_dropped: int,
    num_in_vain: int,
    num_prompts: int,
    data: Data,
    group_filter: GroupFilter | None,
) -> int:
    """How many prompts the next round samples, in whole draws: those that are still owed for the dropped ones.

    While the step is not full some are owed: owed >= drawn - 2 x kept + wanted > 0. None are sampled behind a
    whole pass over the prompts that gave no group.
    """
    draw = data.prompts_per_draw
    owed = data.prompts_per_step + _PROMPTS_FOR_ONE_DROPPED * num_dropped - num_drawn
    batches = 1 if group_filter is None else group_filter.batches_in_flight
    pass_left = num_prompts // draw * draw - num_in_vain
    return min(-(-owed // draw) * draw, batches * data.prompts_per_step, pass_left)


def _groups(responses: Sequence[Response], judge: Judge, count: int) -> list[_Group]:
    judged, size = judge(responses), len(responses) // count
    return [
        _Group(responses=responses[start : start + size], judged=judged[start : start + size])
        for start in range(0, len(responses), size)
    ]


def _varies(group: _Group, group_filter: GroupFilter) -> bool:
    """Upstream's test, to the bit (three times 0.1 has a standard deviation); a single sample always stays."""
    values = [_metric(each, group_filter.metric) for each in group.judged]
    return len(values) == 1 or float(np.std(values)) != 0.0


def _metric(judged: Judged, name: str) -> float:
    if name == "reward":
        return judged.trajectory.reward
    if name not in judged.extras:
        known = ", ".join(["reward", *sorted(judged.extras)])
        problem = Problem(
            field="recipe.group_filter.metric",
            value=name,
            origin="recipe",
            reason=f"the scorer gives none for prompt {judged.trajectory.prompt_id}",
            fix=f"Filter by one that it gives: {known}",
        )
        raise WrongCall([problem])
    return judged.extras[name]


def _degenerate(num_in_vain: int, num_kept: int, wanted: int, group_filter: GroupFilter) -> Problem:
    return Problem(
        field="recipe.group_filter",
        value=group_filter.metric,
        origin="rollout",
        reason=f"none of {num_in_vain} prompts, a whole pass over the data, has responses that differ in it; "
        f"the step has {num_kept} of the {wanted} groups that it takes",
        fix="Bind prompts that the policy solves now and then, take fewer per step, or do not filter",
    )
