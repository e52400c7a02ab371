"""Low-rank adapters on linear layers: y = x W^T + (alpha / rank) (x A^T) B^T, with W frozen.

Named, initialised and exported as peft does it (LoRA: arXiv 2106.09685), without its import time. W may be
quantised (engine/nf4.py); the adapter never is.
"""

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from miniverl.engine import seeds
from miniverl.engine.nf4 import Nf4Linear, Nf4Weight, linear
from miniverl.engine.problem import Problem, Refused
from miniverl.engine.recipe import Lora

ALL_LINEAR = ("all-linear",)

_NO_LAYER = "no layer is left to put an adapter on: nothing would be trained"


class LoraLinear(nn.Module):
    """A frozen linear layer and its adapter. `weight` keeps its name, so that the base's names stay."""

    weight: Tensor | Nf4Weight

    def __init__(
        self, base: nn.Linear | Nf4Linear, lora: Lora, generator: torch.Generator, like: Tensor
    ) -> None:
        """The adapter has the type and the device of `like`."""
        super().__init__()
        self.weight = base.weight
        self.bias = base.bias
        self.scale = lora.alpha / lora.rank
        down = torch.empty(lora.rank, base.in_features)
        nn.init.kaiming_uniform_(down, a=math.sqrt(5), generator=generator)
        self.lora_A = nn.Parameter(down.to(like))
        self.lora_B = nn.Parameter(like.new_zeros(base.out_features, lora.rank))
        self.is_enabled = True

    def forward(self, inputs: Tensor) -> Tensor:
        if not self.is_enabled:
            return linear(inputs, self.weight, self.bias)
        if inputs.dim() == 2:
            kind = inputs.device.type
            is_cast = torch.is_autocast_enabled(kind)
            outputs: Tensor = _Adapted.apply(  # type: ignore[no-untyped-call]
                inputs,
                self.weight,
                self.bias,
                self.lora_A,
                self.lora_B,
                self.scale,
                torch.get_autocast_dtype(kind) if is_cast else inputs.dtype,
            )
            return outputs
        outputs = linear(inputs, self.weight, self.bias)
        down = functional.linear(inputs, self.lora_A)
        return outputs + self.scale * functional.linear(down, self.lora_B)


class _Adapted(torch.autograd.Function):
    """x W^T + b + scale (x A^T) B^T over a frozen W, multiplied in one type; both sums in place, as one node.

    A quantised W is made for each product and let go.
    """

    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        weight: Tensor | Nf4Weight,
        bias: Tensor | None,
        down_RI: Tensor,
        up_OR: Tensor,
        scale: float,
        dtype: torch.dtype,
    ) -> Tensor:
        cast_SI, own = inputs.to(dtype), None if bias is None else bias.to(dtype)
        outputs_SO = functional.linear(cast_SI, _dense(weight, dtype), own)
        lowered_SR = functional.linear(cast_SI, down_RI.to(dtype))
        outputs_SO.addmm_(lowered_SR, up_OR.to(dtype).T, alpha=scale)
        ctx.save_for_backward(cast_SI, lowered_SR, down_RI, up_OR)
        ctx.weight, ctx.scale, ctx.inputs_dtype = weight, scale, inputs.dtype
        return outputs_SO

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (by_outputs_SO,) = gradients
        cast_SI, lowered_SR, down_RI, up_OR = ctx.saved_tensors
        dtype = cast_SI.dtype
        by_lowered_SR = (by_outputs_SO @ up_OR.to(dtype)).mul_(ctx.scale)
        by_up_OR = (by_outputs_SO.T @ lowered_SR).mul_(ctx.scale)
        by_inputs_SI = None
        if ctx.needs_input_grad[0]:
            by_inputs_SI = by_outputs_SO @ _dense(ctx.weight, dtype)
            by_inputs_SI = by_inputs_SI.addmm_(by_lowered_SR, down_RI.to(dtype))
            by_inputs_SI = by_inputs_SI.to(ctx.inputs_dtype)
        by_down_RI = (by_lowered_SR.T @ cast_SI).to(down_RI.dtype)
        return by_inputs_SI, None, None, by_down_RI, by_up_OR.to(up_OR.dtype), None, None


def _dense(weight: Tensor | Nf4Weight, dtype: torch.dtype) -> Tensor:
    return weight.dense(dtype) if isinstance(weight, Nf4Weight) else weight.to(dtype)


Linear = nn.Linear | Nf4Linear | LoraLinear
_LINEARS = (nn.Linear, Nf4Linear)


def attach(network: Any, head: nn.Module, lora: Lora, seed: int) -> None:
    """Freeze `network` and put an adapter on every targeted linear layer, in place.

    A is drawn for each layer by its name, B is zero: the adapted network starts as the base network.
    Raises Refused where a target names no linear layer.
    """
    linears = {
        name: module
        for name, module in network.named_modules()
        if isinstance(module, _LINEARS) and module is not head
    }
    targets = _targets(list(linears), lora)
    like: Tensor = network.get_input_embeddings().weight
    network.requires_grad_(False)
    for name in targets:
        generator = seeds.generator(seed, f"lora:{name}")
        parent, _, leaf = name.rpartition(".")
        adapted = LoraLinear(linears[name], lora, generator, like)
        setattr(network.get_submodule(parent), leaf, adapted)


def adapters(network: nn.Module) -> dict[str, LoraLinear]:
    """The adapted layers by name; empty for a network without adapters."""
    return {name: each for name, each in network.named_modules() if isinstance(each, LoraLinear)}


@contextmanager
def disabled(network: nn.Module) -> Iterator[None]:
    """Inside, the network computes what it computed before it was adapted."""
    layers = adapters(network).values()
    for layer in layers:
        layer.is_enabled = False
    try:
        yield
    finally:
        for layer in layers:
            layer.is_enabled = True


@torch.no_grad()
def write_effective_weight(layer: Linear, into: Tensor) -> None:
    """Write W + (alpha / rank) B A of an adapted layer, W of a plain one."""
    weight = _dense(layer.weight, into.dtype)
    if isinstance(layer, LoraLinear):
        torch.addmm(weight, layer.lora_B, layer.lora_A, alpha=layer.scale, out=into)
    else:
        into.copy_(weight)


def peft_tensors(network: nn.Module) -> dict[str, Tensor]:
    """The adapter under the names of peft's adapter_model.safetensors."""
    tensors = {}
    for name, layer in adapters(network).items():
        tensors[f"base_model.model.{name}.lora_A.weight"] = layer.lora_A.detach()
        tensors[f"base_model.model.{name}.lora_B.weight"] = layer.lora_B.detach()
    return tensors


def peft_config(network: nn.Module, lora: Lora, **more: Any) -> str:
    """The text of peft's adapter_config.json, with `more` in it. Names no base model: paths are not the adapter's."""
    config: Mapping[str, Any] = {
        "base_model_name_or_path": None,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
        "lora_alpha": lora.alpha,
        "lora_dropout": 0.0,
        "peft_type": "LORA",
        "r": lora.rank,
        "target_modules": sorted(_shortest_names(network)),
        "task_type": "CAUSAL_LM",
        "use_rslora": False,
        **more,
    }
    return json.dumps(config, indent=1, sort_keys=True, allow_nan=False) + "\n"


def _targets(names: list[str], lora: Lora) -> list[str]:
    """The layers to adapt, matched as peft matches a list: a whole name, or its end behind a dot."""
    wanted = names if lora.target_modules == ALL_LINEAR else []
    problems = []
    for field, patterns in (
        ("target_modules", () if wanted else lora.target_modules),
        ("excluded_modules", lora.excluded_modules),
    ):
        for pattern in patterns:
            if not any(_matches(name, pattern) for name in names):
                problems.append(_no_such_layer(field, pattern, names))
    if problems:
        raise Refused(problems)
    if not wanted:
        wanted = [name for name in names if any(_matches(name, p) for p in lora.target_modules)]
    left = [name for name in wanted if not any(_matches(name, p) for p in lora.excluded_modules)]
    if not left:
        excluded = ", ".join(lora.excluded_modules)
        raise Refused([_problem("excluded_modules", excluded, _NO_LAYER, "Exclude fewer layers")])
    return left


def _matches(name: str, pattern: str) -> bool:
    return name == pattern or name.endswith(f".{pattern}")


def _shortest_names(network: nn.Module) -> set[str]:
    """Last parts of the adapted layers' names where those select the same layers, else whole names."""
    adapted = set(adapters(network))
    leaves = {name.rpartition(".")[2] for name in adapted}
    plain = {name for name, each in network.named_modules() if isinstance(each, _LINEARS)}
    is_ambiguous = any(_matches(name, leaf) for name in plain for leaf in leaves)
    return adapted if is_ambiguous else leaves


def _no_such_layer(field: str, pattern: str, names: list[str]) -> Problem:
    leaves = sorted({name.rpartition(".")[2] for name in names})
    fix = f"Name some of {', '.join(leaves)}, or all-linear"
    return _problem(field, pattern, "the model has no linear layer of this name", fix)


def _problem(field: str, value: str, reason: str, fix: str) -> Problem:
    return Problem(
        field=f"recipe.policy.lora.{field}", value=value, origin="recipe", reason=reason, fix=fix
    )
