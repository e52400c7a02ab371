"""What answers to held-out prompts say: by data source, of each number that the scorer gives.

    mean@n, std@n           over the n answers to a prompt
    best@k, worst@k         of k answers drawn from the n, with replacement: mean and std over 1000 draws
    maj@k                   the number of the answer that most of the k agree on (the one met first, where tied)

and of each of these the mean over prompts. k is 2, 4, 8, ... below n, and n. Numbers are upstream's own
(verl/trainer/ppo/metric_utils.py:896, v0.9.0), with a generator of ours in place of the global one.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from miniverl.engine.gather import Judged

_DRAWS = 1000
_SEED = 42
_CORE = ("mean", "maj", "best")

Floats = NDArray[np.float64]


def validation_metrics(judged: Sequence[Judged], sources: Mapping[int, str]) -> dict[str, float]:
    """`core/SOURCE/VARIABLE/mean@n` and so on; `sources` are the data sources by prompt.

    A variable is "reward", or a name of what the scorer gives. Those to look at first are `core/`: of "acc", or
    of "reward" where there is none, the mean, the best and the majority of all n. The others are `aux/`. Of a
    prompt's answers a variable is told where every one of them has it.
    """
    answers: dict[int, list[Judged]] = defaultdict(list)
    for each in judged:
        answers[each.trajectory.prompt_id].append(each)
    values: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for prompt_id, group in answers.items():
        for variable, numbers in _variables(group).items():
            for name, value in _of_one_prompt(numbers, group):
                values[sources[prompt_id], variable][name].append(value)
    return {
        f"{_section(source, variable, name, values)}/{source}/{variable}/{name}": float(
            np.mean(numbers)
        )
        for (source, variable), named in values.items()
        for name, numbers in named.items()
    }


def _variables(group: Sequence[Judged]) -> dict[str, list[float]]:
    shared = set.intersection(*(set(each.extras) for each in group))
    told = [name for name in group[0].extras if name in shared]
    rewards = [each.trajectory.reward for each in group]
    return {"reward": rewards} | {name: [each.extras[name] for each in group] for name in told}


def _of_one_prompt(
    numbers: Sequence[float], group: Sequence[Judged]
) -> Iterator[tuple[str, float]]:
    count = len(numbers)
    yield f"mean@{count}", float(np.mean(numbers))
    if count == 1:
        return
    yield f"std@{count}", float(np.std(numbers))
    votes = [each.prediction for each in group]
    array = np.array(numbers, dtype=np.float64)
    for size in _sizes(count):
        drawn_KM = _drawn(count, size)
        drawn = {"best": array[drawn_KM].max(axis=1), "worst": array[drawn_KM].min(axis=1)}
        if any(vote is not None for vote in votes):
            drawn["maj"] = array[_agreed(votes, drawn_KM)]
        for name, values_K in drawn.items():
            yield f"{name}@{size}/mean", float(np.mean(values_K))
            yield f"{name}@{size}/std", float(np.std(values_K))


def _sizes(count: int) -> list[int]:
    """Powers of two below the count, and the count."""
    return [*(2**power for power in range(1, count.bit_length()) if 2**power < count), count]


@cache
def _drawn(count: int, size: int) -> NDArray[np.intp]:
    """[draws, size]: which of `count` answers each draw takes. The same ones for every prompt, as upstream."""
    generator = np.random.RandomState(_SEED)
    drawn_KM: NDArray[np.intp] = generator.choice(count, size=(_DRAWS, size), replace=True)
    return drawn_KM


def _agreed(votes: Sequence[str | float | None], drawn_KM: NDArray[np.intp]) -> NDArray[np.intp]:
    """[draws]: the answer of each draw with which most of it agree; of several the first."""
    codes = {vote: code for code, vote in enumerate(dict.fromkeys(votes))}
    voted_KM = np.array([codes[vote] for vote in votes])[drawn_KM]
    agreeing_KM = (voted_KM[:, :, None] == voted_KM[:, None, :]).sum(axis=2)
    first_K = agreeing_KM.argmax(axis=1)
    agreed_K: NDArray[np.intp] = drawn_KM[np.arange(len(drawn_KM)), first_K]
    return agreed_K


def _section(
    source: str, variable: str, name: str, values: Mapping[tuple[str, str], Mapping[str, object]]
) -> str:
    core = "acc" if (source, "acc") in values else "reward"
    largest = max(_size(each) for each in values[source, variable])
    is_core = variable == core and name.startswith(_CORE) and _size(name) == largest
    return "core" if is_core else "aux"


def _size(name: str) -> int:
    """Of "best@4/mean", 4."""
    return int(name.partition("@")[2].partition("/")[0])
