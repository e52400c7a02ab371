"""The same numbers computed in two ways: how many differ in a byte, by how much, and where the first one is."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Tier = Literal["same_process", "batch_invariant"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """`what` was computed twice, the second time as `how` says.

    `largest_difference` of gradients is relative to the largest gradient, of all else it is absolute, and of tokens
    it is 0; None where a side has a number that is not finite. `has_to_be_equal` False: it is told, and decides nothing.
    """

    tier: Tier
    what: str
    how: str
    values: int
    differing: int
    largest_difference: float | None
    first_difference: str | None
    has_to_be_equal: bool


# Numbers, each with what it is of: what a comparison compares.
Numbers = Mapping[str, Tensor]


def compared(
    one: Numbers,
    other: Numbers,
    *,
    tier: Tier,
    what: str,
    how: str,
    has_to_be_equal: bool,
    scale: float = 1.0,
) -> Comparison:
    """Number by number; a row that is longer on one side differs in what the other lacks."""
    assert one.keys() == other.keys(), "the same things are computed in both ways"
    differing, largest, first = 0, 0.0, None
    for name, expected in one.items():
        found = other[name]
        length = min(len(expected), len(found))
        is_other = _bytes(expected[:length]) != _bytes(found[:length])
        lacking = abs(len(expected) - len(found))
        if not lacking and not is_other.any():
            continue
        differing += int(is_other.sum()) + lacking
        if is_other.any() and expected.is_floating_point():
            apart = (expected[:length].double() - found[:length].double()).abs() / scale
            largest = max(largest, _largest(apart))
        if is_other.any():
            place = int(is_other.flatten().nonzero()[0, 0])
            sides = [each.flatten()[place].item() for each in (expected[:length], found[:length])]
            first = first or f"{name}, number {place}: {' and '.join(map(repr, sides))}"
        first = first or f"{name}: {len(expected)} and {len(found)} numbers"
    return Comparison(
        tier=tier,
        what=what,
        how=how,
        values=sum(each.numel() for each in one.values()),
        differing=differing,
        largest_difference=largest if math.isfinite(largest) else None,
        first_difference=first,
        has_to_be_equal=has_to_be_equal,
    )


def _bytes(numbers: Tensor) -> Tensor:
    """The numbers by their bytes: 0 is not -0, and a NaN is itself."""
    integers = {8: torch.int64, 4: torch.int32, 2: torch.int16}
    return numbers.contiguous().view(integers[numbers.element_size()])


def _largest(apart: Tensor) -> float:
    return float(apart.max()) if bool(apart.isfinite().all()) else math.inf
