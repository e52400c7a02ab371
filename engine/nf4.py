"""NF4: linear layers with weights of 4 bits, in bitsandbytes' format and with its numbers, by arithmetic of our own.

    a block of 64 weights w      each is the nearest of 16 levels to w / absmax, two in a byte, the first above
    a block of 256 such absmax   each is the nearest of 256 numbers to (absmax - mean) / the largest |absmax - mean|
    back                         level * (number * largest + mean), in float32, then rounded to the products' type

(QLoRA: arXiv 2305.14314.) Quantising is bitsandbytes 0.50.2's on a CPU, byte for byte, whatever the device of the
run. Its layers are not used: on a CPU with AVX512-BF16 its Linear4bit repacks its weight in place at the first
forward without gradients (nn/modules.py:613), and from then on gradients, values and saved bytes are others. Here
the bytes never change, and forward and backward each take the weights back from them.

Axes: N weights of a matrix, row by row, K blocks of them, C blocks of blocks.
"""

import math
from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

BLOCK, BLOCK_OF_BLOCKS = 64, 256

# Of equal mass under a normal distribution, 0 and both ends among them (arXiv 2305.14314, appendix E).
LEVELS = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
    *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
    *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
_LEAST = 1e-38  # what an absmax counts as at least, where it divides
_GRID = 65535  # steps from -1 to 1 that bitsandbytes looks its 256 numbers up by (csrc/cpu_ops.cpp)


class Nf4Weight(nn.Module):
    """A frozen matrix in 4 bits: about 0.516 bytes for each of its weights."""

    codes: Tensor  # [N / 2], two levels in each
    absmax: Tensor  # [K], places among the 256 numbers
    nested_absmax: Tensor  # [C]
    nested_offset: Tensor  # []

    def __init__(self, shape: torch.Size, tensors: dict[str, Tensor]) -> None:
        """`tensors` by the names of the buffers."""
        super().__init__()
        self.shape = shape
        for name in TENSORS:
            self.register_buffer(name, tensors[name])

    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        return sum(each.nbytes for each in self.buffers())

    @torch.no_grad()
    def dense(self, dtype: torch.dtype) -> Tensor:
        """The weights that the bytes stand for."""
        device = self.codes.device
        numbers_K = _numbers(device)[self.absmax.int()]
        largest_K = self.nested_absmax.repeat_interleave(BLOCK_OF_BLOCKS)[: len(numbers_K)]
        absmax_K1 = (numbers_K * largest_K + self.nested_offset)[:, None]
        codes = functional.pad(self.codes, (0, len(absmax_K1) * BLOCK // 2 - len(self.codes)))
        values_N4 = _fours(device).index_select(0, codes.view(torch.uint16).int())
        values_KB = values_N4.view(-1, BLOCK).mul_(absmax_K1)
        return values_KB.flatten()[: self.numel()].view(self.shape).to(dtype)


TENSORS = tuple(name for name in Nf4Weight.__annotations__)


class Nf4Linear(nn.Module):
    """A frozen linear layer over such a weight."""

    def __init__(self, weight: Nf4Weight, bias: nn.Parameter | None) -> None:
        super().__init__()
        self.weight = weight
        self.bias = bias
        self.out_features, self.in_features = weight.shape

    def forward(self, inputs: Tensor) -> Tensor:
        return linear(inputs, self.weight, self.bias)


def linear(inputs: Tensor, weight: Tensor | Nf4Weight, bias: Tensor | None) -> Tensor:
    """x W^T + b, in the type that autocast multiplies in, or that of the inputs."""
    if isinstance(weight, Tensor):
        return functional.linear(inputs, weight, bias)
    kind = inputs.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else inputs.dtype
    product: Tensor = _Product.apply(  # type: ignore[no-untyped-call]
        inputs.to(dtype), weight, None if bias is None else bias.to(dtype)
    )
    return product


def nf4_weights(network: nn.Module) -> Iterator[tuple[str, Nf4Weight]]:
    """Those of a network, by name."""
    for name, each in network.named_modules():
        if isinstance(each, Nf4Weight):
            yield name, each


@torch.no_grad()
def quantise(weight: Tensor) -> dict[str, Tensor]:
    """The tensors of the Nf4Weight nearest to a matrix on the CPU, as bitsandbytes' quantize_4bit makes them there.

    With its `quant_type="nf4", blocksize=64, compress_statistics=True`; absmax of absmax included.
    """
    values_N = weight.flatten().float()
    whole = len(values_N) // BLOCK * BLOCK
    blocks_KB, rest = values_N[:whole].view(-1, BLOCK), values_N[whole:]
    absmax_K = blocks_KB.abs().amax(-1)
    # A whole block is multiplied by 1 / absmax and a last, shorter one divided: other roundings.
    scaled = [(blocks_KB * (1 / absmax_K.clamp(min=_LEAST))[:, None]).flatten()]
    if len(rest):
        absmax_of_rest = rest.abs().amax().clamp(min=_LEAST)
        absmax_K = torch.cat([absmax_K, absmax_of_rest[None]])
        scaled.append(rest / absmax_of_rest)
        scaled.append(rest.new_zeros(len(rest) % 2))
    levels = torch.tensor(LEVELS)
    bounds = (levels[:-1] + levels[1:]) / 2
    levels_N = torch.bucketize(torch.cat(scaled).clamp_(-1, 1), bounds, out_int32=True).byte()
    offset = _mean(absmax_K)
    absmax, nested_absmax = _numbered(absmax_K - offset)
    return {
        "codes": levels_N[::2] << 4 | levels_N[1::2],
        "absmax": absmax,
        "nested_absmax": nested_absmax,
        "nested_offset": offset,
    }


class _Product(torch.autograd.Function):
    """x W^T + b with W made for the product and let go; its backward makes it again."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Nf4Weight, bias: Tensor | None) -> Tensor:
        ctx.weight = weight
        return functional.linear(inputs, weight.dense(inputs.dtype), bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (by_outputs,) = gradients
        return by_outputs @ ctx.weight.dense(by_outputs.dtype), None, None


def _numbered(values_K: Tensor) -> tuple[Tensor, Tensor]:
    """For each value the place of the nearest of the 256 numbers times its block's absmax; and these absmax."""
    count = len(values_K)
    blocks_CB = functional.pad(values_K, (0, -count % BLOCK_OF_BLOCKS)).view(-1, BLOCK_OF_BLOCKS)
    absmax_C = blocks_CB.abs().amax(-1)
    scaled_CB = (blocks_CB * (1 / absmax_C)[:, None]).clamp_(-1, 1)
    steps_CB = (
        (scaled_CB + 1) * 0.5
    ).double() * _GRID + 0.5  # one rounding, as one instruction has
    places_CB = _places()[steps_CB.float().nan_to_num().int()]
    places_CB[absmax_C == 0] = 0
    return places_CB.flatten()[:count], absmax_C


def _mean(values: Tensor) -> Tensor:
    """By one thread: several add up in an order of their own, and the bytes must not depend on how many there are."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return values.mean()
    finally:
        torch.set_num_threads(threads)


@cache
def _fours(device: torch.device) -> Tensor:
    """Two bytes, the first below -> their four levels."""
    levels = torch.tensor(LEVELS, device=device)
    codes = torch.arange(2**16, device=device)
    return torch.stack([levels[codes >> shift & 15] for shift in (4, 0, 12, 8)], -1)


@cache
def _numbers(device: torch.device) -> Tensor:
    """256 numbers from -0.993 to 1, denser towards 0: tenfold smaller ones from half as many (arXiv 1511.04561)."""
    above_zero = []
    for exponent in range(7):
        edges = torch.linspace(0.1, 1, 2**exponent + 1)
        above_zero.append(10.0 ** (exponent - 6) * ((edges[:-1] + edges[1:]) / 2))
    one_side = torch.cat(above_zero)
    return torch.cat([one_side, -one_side, torch.tensor([0.0, 1.0])]).sort().values.to(device)


@cache
def _places() -> Tensor:
    """Step of the grid -> the nearest of the 256 numbers."""
    numbers = _numbers(torch.device("cpu"))
    values = -1 + 2.0 * torch.arange(_GRID + 1, dtype=torch.float32) / _GRID
    return torch.bucketize(values, (numbers[:-1] + numbers[1:]) * 0.5).byte()
