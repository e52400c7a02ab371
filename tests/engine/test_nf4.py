"""NF4 weights: bitsandbytes' bytes and numbers, products equal to those over the values, and bytes that never move."""

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from miniverl.engine import lora, nf4, seeds
from miniverl.engine.nf4 import LEVELS, Nf4Linear, Nf4Weight, quantise
from miniverl.engine.recipe import Lora

_MIDDLES = [(low + high) / 2 for low, high in pairwise(LEVELS)]


def _random(*shape: int) -> Tensor:
    return 0.05 * torch.randn(shape, generator=torch.Generator().manual_seed(1))


def _one_large() -> Tensor:
    weight = torch.zeros(64, 64)
    weight[3, 5] = 7.0
    return weight


def _scaled_rows() -> Tensor:
    exponents = torch.arange(-30, 34).float()[:, None]
    return _random(64, 640) * 10**exponents


# Matrices at which a quantiser can go astray: nothing to scale by, values between two levels, and many scales.
MATRICES: dict[str, Callable[[], Tensor]] = {
    "random": lambda: _random(576, 192),
    "bfloat16": lambda: _random(64, 96).bfloat16(),
    "float16": lambda: _random(64, 96).half(),
    "rows shorter than a block": lambda: _random(32, 48),
    "a last block that is shorter": lambda: _random(5, 26),
    "an odd count": lambda: _random(3, 7),
    "zeros": lambda: torch.zeros(64, 64),
    "below 1e-38": lambda: torch.full((64, 64), 1e-40),
    "one large among zeros": _one_large,
    "the levels": lambda: torch.tensor(LEVELS).repeat(64).view(16, 64),
    "between two levels": lambda: torch.tensor([1.0, *_MIDDLES]).repeat(64).view(16, 64),
    "all equal": lambda: torch.full((640, 64), 0.3),
    "small whole numbers": lambda: (_random(640, 64) * 60).round(),
    "all negative": lambda: -_random(64, 64).abs(),
    "sixty orders of magnitude": _scaled_rows,
}


def _weight(matrix: Tensor) -> Nf4Weight:
    return Nf4Weight(matrix.shape, quantise(matrix))


@pytest.fixture(scope="module")
def peer() -> object:
    """bitsandbytes' functions; the engine itself never loads it."""
    from bitsandbytes import functional as bitsandbytes

    return bitsandbytes


@pytest.mark.parametrize("name", MATRICES)
def test_bytes_and_scales_are_those_of_bitsandbytes(name: str, peer: object) -> None:
    matrix = MATRICES[name]()
    packed, state = peer.quantize_4bit(  # type: ignore[attr-defined]
        matrix, quant_type="nf4", blocksize=64, compress_statistics=True
    )
    found = quantise(matrix)
    assert torch.equal(found["codes"], packed[:, 0])
    assert torch.equal(found["absmax"], state.absmax)
    assert torch.equal(found["nested_absmax"], state.state2.absmax)
    assert torch.equal(found["nested_offset"], state.offset)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "name", sorted(MATRICES.keys() - {"an odd count"})
)  # for which it compiles code
def test_values_are_those_of_bitsandbytes(name: str, dtype: torch.dtype, peer: object) -> None:
    matrix = MATRICES[name]().float()
    packed, state = peer.quantize_4bit(  # type: ignore[attr-defined]
        matrix, quant_type="nf4", blocksize=64, compress_statistics=True
    )
    state.dtype = dtype
    if (
        matrix.shape[1] % 64
    ):  # its kernel of the CPU starts a new block with each row, unlike its own quantiser
        state.shape = torch.Size([1, matrix.numel()])
    expected = peer.dequantize_4bit(packed, state).view(matrix.shape)  # type: ignore[attr-defined]
    assert torch.equal(_weight(matrix).dense(dtype), expected)


def test_a_level_is_found_again_and_zero_stays_zero() -> None:
    matrix = torch.tensor(LEVELS).repeat(4)[None]
    values = _weight(matrix).dense(torch.float32)
    assert torch.equal(values, matrix)
    assert not _weight(torch.zeros(2, 64)).dense(torch.float32).any()


def test_a_weight_takes_half_a_byte_and_its_scales() -> None:
    weight = _weight(_random(64, 256))
    # 16384 weights: half a byte each, a byte for each of 256 blocks, 4 for their one scale and 4 for the mean.
    assert weight.num_bytes == 8192 + 256 + 4 + 4


def test_bytes_do_not_depend_on_the_number_of_threads() -> None:
    matrix = _random(1024, 3072)  # enough blocks for several threads to share their sum
    one = quantise(matrix)
    torch.set_num_threads(4)
    many = quantise(matrix)
    assert torch.get_num_threads() == 4
    assert all(torch.equal(one[name], many[name]) for name in nf4.TENSORS)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_product_and_gradient_are_those_over_the_values(dtype: torch.dtype) -> None:
    weight, bias = _weight(_random(96, 64)), nn.Parameter(_random(96), requires_grad=False)
    layer = Nf4Linear(weight, bias)
    inputs = _random(7, 64).requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
        outputs = layer(inputs)
        (by_inputs,) = torch.autograd.grad(outputs.float().square().sum(), inputs)
        values = weight.dense(torch.float32)
        expected = functional.linear(inputs, values, bias)
        (by_expected,) = torch.autograd.grad(expected.float().square().sum(), inputs)
    assert outputs.dtype == dtype
    assert torch.equal(outputs, expected)
    assert torch.equal(by_inputs, by_expected)


def test_a_forward_without_gradients_changes_nothing() -> None:
    """What bitsandbytes' Linear4bit does at the first such forward on a CPU with AVX512-BF16."""
    layer = Nf4Linear(_weight(_random(64, 64)), None)
    inputs = _random(4, 64)
    saved = {name: each.clone() for name, each in layer.state_dict().items()}
    values = layer.weight.dense(torch.float32)
    layer.eval()
    with torch.no_grad():
        layer(inputs.bfloat16())
    with torch.inference_mode():
        layer(inputs)
    wanted = inputs.clone().requires_grad_()
    layer(wanted).sum().backward()
    assert wanted.grad is not None
    torch.testing.assert_close(wanted.grad, values.sum(0).expand(4, -1))
    assert torch.equal(layer.weight.dense(torch.float32), values)
    assert layer.state_dict().keys() == saved.keys()
    assert all(torch.equal(layer.state_dict()[name], each) for name, each in saved.items())


def test_an_adapter_stands_beside_a_quantised_weight() -> None:
    base = Nf4Linear(_weight(_random(64, 64)), None)
    recipe = Lora(rank=2, alpha=4.0, target_modules=("all-linear",), excluded_modules=())
    layer = lora.LoraLinear(base, recipe, seeds.generator(0, "test"), _random(1))
    nn.init.normal_(layer.lora_B, generator=seeds.generator(1, "test"))
    assert [name for name, _ in layer.named_parameters()] == ["lora_A", "lora_B"]
    merged = torch.empty(64, 64)
    lora.write_effective_weight(layer, merged)
    values = base.weight.dense(torch.float32)
    assert torch.equal(merged, torch.addmm(values, layer.lora_B, layer.lora_A, alpha=2.0))
    inputs = _random(3, 64)
    torch.testing.assert_close(layer(inputs), inputs @ merged.T)
