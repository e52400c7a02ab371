"""What flows through a step: prompts, and the trajectories sampled from them.

Axes, here and in every file that names them:

    N  trajectories of a step             B  sequences (rows) of one forward
    R  response positions, counted from the first response token
    V  vocabulary                         G  trajectories of one group (samples of one prompt)

The end-of-sequence token that the policy sampled belongs to the response. What belongs to a response is told by
its length, never by token values (the padding token may be the end-of-sequence token).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """One row of the data. `prompt_id` is its row number in the file: equal texts stay apart."""

    prompt_id: int
    messages: tuple[Mapping[str, str], ...]
    tokens: tuple[int, ...]
    ground_truth: Any
    data_source: str
    extra: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Trajectory:
    """One scored response. `is_finished`: the policy ended it; False: the limit did."""

    prompt_id: int
    sample: int  # index among the samples of the prompt
    prompt_tokens: tuple[int, ...]
    response_tokens: tuple[int, ...]
    is_finished: bool
    response: str  # decoded without special tokens
    reward: float
