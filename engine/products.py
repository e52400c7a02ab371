"""The products of sampling: the policy's linear layers as the decoder multiplies by them, with their adapters.

Over a copy, the layers of one input lie one below the other, each with its adapter merged, rounded once to the
copy's type. Over quantised weights nothing is copied: each product takes the weights back from their 4 bits, and the
adapter is multiplied beside. Either way, on a CPU the weights are packed for oneDNN, whose products for a row do not
depend on the other rows (observed for two rows and more).
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from miniverl.engine.layer import Product
from miniverl.engine.lora import Linear, LoraLinear, write_effective_weight
from miniverl.engine.nf4 import Nf4Weight
from miniverl.engine.recipe import Quantization

Joined = Callable[[Tensor], tuple[Tensor, ...]]

_PACKED_ROWS = 16  # the row count that the packed layout is chosen for; any other works


class Products:
    """Makes products in one type, and counts the bytes that they hold beside the layers'."""

    def __init__(self, like: Tensor, dtype: torch.dtype, over: Quantization | None) -> None:
        """`like` has the type and the device of the policy's parameters. `over` None: over a copy."""
        self._like = like
        self._dtype = dtype
        self._is_quantised = over is not None
        self.num_bytes = 0

    def joined(self, layers: Sequence[Linear]) -> Joined:
        """x -> the outputs of several layers of one input."""
        if self._is_quantised:
            return partial(_each, [self._beside(layer) for layer in layers])
        return partial(_split, self._merged(layers), [layer.weight.shape[0] for layer in layers])

    def single(self, layer: Linear) -> Product:
        return self._beside(layer) if self._is_quantised else self._merged([layer])

    def own(self, weight: Tensor) -> Tensor:
        """The weight in the type of the products."""
        owned = weight.detach().to(self._dtype)
        self.num_bytes += 0 if owned.data_ptr() == weight.data_ptr() else owned.nbytes
        return owned

    def _merged(self, layers: Sequence[Linear]) -> Product:
        """x -> x W^T (+ bias) for the layers' weights one below the other."""
        sizes = [layer.weight.shape[0] for layer in layers]
        weight = self._like.new_empty(sum(sizes), layers[0].weight.shape[1])
        for layer, part in zip(layers, weight.split(sizes), strict=True):
            write_effective_weight(layer, part)
        biases: list[Tensor] = [layer.bias for layer in layers if layer.bias is not None]
        bias = torch.cat(biases).detach().to(self._dtype) if biases else None
        return self._held(weight.to(self._dtype), bias)

    def _beside(self, layer: Linear) -> Product:
        """x -> x W^T (+ bias) + (x A^T) (scale B)^T."""
        bias = None if layer.bias is None else layer.bias.detach().to(self._dtype)
        if isinstance(layer.weight, Nf4Weight):
            base: Product = partial(_unpacked, layer.weight, bias, self._dtype)
        else:
            base = self._held(layer.weight.detach().to(self._dtype), bias)
        if not isinstance(layer, LoraLinear):
            return base
        down = self._held(layer.lora_A.detach().to(self._dtype), None)
        up = self._held((layer.scale * layer.lora_B.detach()).to(self._dtype), None)
        return partial(_with_adapter, base, down, up)

    def _held(self, weight: Tensor, bias: Tensor | None) -> Product:
        self.num_bytes += weight.nbytes + (0 if bias is None else bias.nbytes)
        return product(weight, bias)


def product(weight: Tensor, bias: Tensor | None) -> Product:
    """x -> x W^T (+ bias)."""
    if weight.device.type == "cpu" and _can_pack(weight.dtype):
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, _PACKED_ROWS)
        return partial(_packed_linear, packed, bias)
    return partial(_linear, weight, bias)


def _can_pack(dtype: torch.dtype) -> bool:
    """Whether oneDNN is there and multiplies this type on this CPU."""
    if not torch.backends.mkldnn.is_available():
        return False
    is_bfloat16 = dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return dtype == torch.float32 or bool(is_bfloat16)


def _each(products: Sequence[Product], inputs: Tensor) -> tuple[Tensor, ...]:
    return tuple(each(inputs) for each in products)


def _split(joined: Product, sizes: list[int], inputs: Tensor) -> tuple[Tensor, ...]:
    return torch.split(joined(inputs), sizes, -1)


def _with_adapter(base: Product, down: Product, up: Product, inputs: Tensor) -> Tensor:
    return base(inputs) + up(down(inputs))


def _unpacked(weight: Nf4Weight, bias: Tensor | None, dtype: torch.dtype, inputs: Tensor) -> Tensor:
    return product(weight.dense(dtype), bias)(inputs)


def _linear(weight: Tensor, bias: Tensor | None, inputs: Tensor) -> Tensor:
    return functional.linear(inputs, weight, bias)


def _packed_linear(packed: Tensor, bias: Tensor | None, inputs: Tensor) -> Tensor:
    outputs: Tensor = torch.ops.mkldnn._linear_pointwise(inputs, packed, bias, "none", [], "")
    return outputs
