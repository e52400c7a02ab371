"""Values: what a critic expects a response to earn still, read where each of its tokens is about to be chosen.

The value of a response token comes from the position before it, as its log-probability does.

Axes: R response positions, P response tokens of all rows one after the other, H hidden.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from miniverl.engine.forward import predicting_states
from miniverl.engine.layer import at_least_float32
from miniverl.engine.models import Model
from miniverl.engine.packed import Packed, pack
from miniverl.engine.score import bins
from miniverl.engine.trajectory import Trajectory


@torch.no_grad()
def values(
    critic: Model, trajectories: Sequence[Trajectory], *, micro_batch_tokens: int
) -> tuple[Tensor, ...]:
    """The value of every response token, float32 [R] on the CPU, computed in the bins that an update uses."""
    found: list[Tensor] = []
    for members in bins(trajectories, micro_batch_tokens):
        packed = pack(members, critic.device)
        found += response_values(critic, packed).cpu().split(packed.response_lengths)
    return tuple(found)


def response_values(critic: Model, packed: Packed) -> Tensor:
    """The values [P] of the response tokens, with gradients."""
    hidden_PH = predicting_states(critic, packed)
    with critic.autocast():
        values_P: Tensor = critic.network.score(hidden_PH)[:, 0]
    return values_P.to(at_least_float32(critic.compute_dtype))
