"""The products of sampling: the policy's linear layers as the decoder multiplies by them, with their adapters.

Over a copy, the layers of one input lie one below the other, each with its adapter merged, rounded once to the
copy's type. Over quantised weights nothing is copied: each product takes the weights back from their 4 bits, and the
adapter is multiplied beside. Either way, on a CPU the weights are packed for oneDNN. In float32 its products for a row do
not depend on the other rows (observed for two rows and more); nor do they in bfloat16, except on a CPU with tiles (AMX),
where they are cut by the number of rows. A record says what was found (engine/determinism.py).
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from miniverl.engine.lora import Linear, LoraLinear, write_effective_weight
from miniverl.engine.nf4 import Nf4Weight
from miniverl.engine.recipe import Quantization

_PACKED_ROWS = 16  # the row count that the packed layout is chosen for; any other works


class Product(ABC):
    """x [S, in] -> x W^T (+ bias) [S, out]; what is done to it next can be part of the same operation."""

    @abstractmethod
    def __call__(self, inputs: Tensor) -> Tensor: ...

    def plus(self, inputs: Tensor, other: Tensor) -> Tensor:
        return self(inputs).add_(other)

    def times(self, inputs: Tensor, other: Tensor) -> Tensor:
        return self(inputs).mul_(other)

    def silu(self, inputs: Tensor) -> Tensor:
        return functional.silu(self(inputs), inplace=True)


class Products:
    """Makes products in one type, and counts the bytes that they hold beside the layers'."""

    def __init__(self, like: Tensor, dtype: torch.dtype, over: Quantization | None) -> None:
        """`like` has the type and the device of the policy's parameters. `over` None: over a copy."""
        self._like = like
        self._dtype = dtype
        self._is_quantised = over is not None
        self.num_bytes = 0

    def grouped(self, layers: Sequence[Linear], num_groups: int) -> Product:
        """The outputs of several layers of one input: first the first group of each, then the second of each, ..."""
        if self._is_quantised:
            return _Grouped([self._beside(layer) for layer in layers], num_groups)
        weights = [self._merged(layer) for layer in layers]
        biases = [layer.bias.detach() for layer in layers if layer.bias is not None]
        bias = self.own(_by_groups(biases, num_groups)) if biases else None
        return self._held(_by_groups(weights, num_groups), bias)

    def single(self, layer: Linear) -> Product:
        if self._is_quantised:
            return self._beside(layer)
        return self._held(self._merged(layer), _bias(layer, self._dtype))

    def own(self, weight: Tensor) -> Tensor:
        """The weight in the type of the products."""
        owned = weight.detach().to(self._dtype)
        self.num_bytes += 0 if owned.data_ptr() == weight.data_ptr() else owned.nbytes
        return owned

    def _merged(self, layer: Linear) -> Tensor:
        """Its weight with its adapter."""
        weight = self._like.new_empty(layer.weight.shape)
        write_effective_weight(layer, weight)
        return weight.to(self._dtype)

    def _beside(self, layer: Linear) -> Product:
        """x -> x W^T (+ bias) + (x A^T) (scale B)^T."""
        bias = _bias(layer, self._dtype)
        if isinstance(layer.weight, Nf4Weight):
            base: Product = _Unpacked(layer.weight, bias, self._dtype)
        else:
            base = self._held(layer.weight.detach().to(self._dtype), bias)
        if not isinstance(layer, LoraLinear):
            return base
        down = self._held(layer.lora_A.detach().to(self._dtype), None)
        up = self._held((layer.scale * layer.lora_B.detach()).to(self._dtype), None)
        return _WithAdapter(base, down, up)

    def _held(self, weight: Tensor, bias: Tensor | None) -> Product:
        self.num_bytes += weight.nbytes + (0 if bias is None else bias.nbytes)
        return product(weight, bias)


def product(weight: Tensor, bias: Tensor | None) -> Product:
    """Packed, where this device and type can be."""
    can_be_packed = weight.device.type == "cpu" and _can_pack(weight.dtype)
    return _Packed(weight, bias) if can_be_packed else _Plain(weight, bias)


def _can_pack(dtype: torch.dtype) -> bool:
    """Whether oneDNN is there and multiplies this type on this CPU."""
    if not torch.backends.mkldnn.is_available():
        return False
    is_bfloat16 = dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return dtype == torch.float32 or bool(is_bfloat16)


class _Packed(Product):
    """By oneDNN, which adds, multiplies and activates as it writes."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, _PACKED_ROWS)
        self._bias = bias

    def __call__(self, inputs: Tensor) -> Tensor:
        return self._then("none", inputs)

    def plus(self, inputs: Tensor, other: Tensor) -> Tensor:
        return self._with("add", inputs, other)

    def times(self, inputs: Tensor, other: Tensor) -> Tensor:
        return self._with("mul", inputs, other)

    def silu(self, inputs: Tensor) -> Tensor:
        return self._then("swish", inputs)

    def _then(self, name: str, inputs: Tensor) -> Tensor:
        outputs: Tensor = torch.ops.mkldnn._linear_pointwise(
            inputs, self._weight, self._bias, name, [], ""
        )
        return outputs

    def _with(self, name: str, inputs: Tensor, other: Tensor) -> Tensor:
        outputs: Tensor = torch.ops.mkldnn._linear_pointwise.binary(
            inputs, other, self._weight, self._bias, name
        )
        return outputs


class _Plain(Product):
    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight = weight
        self._bias = bias

    def __call__(self, inputs: Tensor) -> Tensor:
        return functional.linear(inputs, self._weight, self._bias)


class _Unpacked(Product):
    """Of weights that are taken back from their 4 bits each time."""

    def __init__(self, weight: Nf4Weight, bias: Tensor | None, dtype: torch.dtype) -> None:
        self._weight = weight
        self._bias = bias
        self._dtype = dtype

    def __call__(self, inputs: Tensor) -> Tensor:
        return product(self._weight.dense(self._dtype), self._bias)(inputs)


class _WithAdapter(Product):
    def __init__(self, base: Product, down: Product, up: Product) -> None:
        self._base = base
        self._down = down
        self._up = up

    def __call__(self, inputs: Tensor) -> Tensor:
        return self._up.plus(self._down(inputs), self._base(inputs))


class _Grouped(Product):
    def __init__(self, parts: Sequence[Product], num_groups: int) -> None:
        self._parts = parts
        self._num_groups = num_groups

    def __call__(self, inputs: Tensor) -> Tensor:
        return _by_groups([part(inputs) for part in self._parts], self._num_groups, axis=-1)


def _by_groups(parts: Sequence[Tensor], num_groups: int, axis: int = 0) -> Tensor:
    """Each part cut into as many groups along the axis; the first of each, the second of each, ..."""
    cut = [part.unflatten(axis, (num_groups, -1)) for part in parts]
    if axis < 0:
        return torch.cat(cut, -1).flatten(-2)
    return torch.cat(cut, 1).flatten(0, 1)


def _bias(layer: Linear, dtype: torch.dtype) -> Tensor | None:
    return None if layer.bias is None else layer.bias.detach().to(dtype)
