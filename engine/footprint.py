"""What a model costs, from its config.json alone: parameters, bytes and floating-point operations. Loads no torch.

A multiplication and its addition are two operations. Norms, activations and softmax are left out of the
operations: they are below 2 % of them. What activations take is not here: it depends on the kernels.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from miniverl.engine.problem import Problem, WrongCall
from miniverl.engine.recipe import Dtype, Lora, Quantization

DTYPE_BYTES: dict[Dtype, int] = {"float32": 4, "bfloat16": 2, "float16": 2}
# Of a weight in NF4: 4 bits, a byte for 64 of them and 4 bytes for 64 x 256 (engine/nf4.py).
NF4_BYTES = 0.5 + 1 / 64 + 4 / (64 * 256)
_MOMENTS = 2  # of AdamW, each as large as what it is for


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelShape:
    """The sizes of a Llama, Qwen2 or Qwen3."""

    vocabulary: int
    hidden: int
    num_layers: int
    num_query_heads: int
    num_kv_heads: int
    head_size: int
    mlp: int
    has_tied_head: bool
    has_query_key_value_bias: bool
    has_output_bias: bool
    has_mlp_bias: bool
    has_query_key_norm: bool

    @property
    def query_width(self) -> int:
        return self.num_query_heads * self.head_size

    @property
    def kv_width(self) -> int:
        return self.num_kv_heads * self.head_size

    def linears(self) -> dict[str, tuple[int, int]]:
        """Inputs and outputs of the linear layers of one layer, by the last part of their name."""
        return {
            "q_proj": (self.hidden, self.query_width),
            "k_proj": (self.hidden, self.kv_width),
            "v_proj": (self.hidden, self.kv_width),
            "o_proj": (self.query_width, self.hidden),
            "gate_proj": (self.hidden, self.mlp),
            "up_proj": (self.hidden, self.mlp),
            "down_proj": (self.mlp, self.hidden),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Parameters:
    """Counts by part; `head` is 0 where it is the embedding."""

    embedding: int
    linear: int
    bias: int
    norm: int
    head: int

    @property
    def total(self) -> int:
        return self.embedding + self.linear + self.bias + self.norm + self.head


# Those that engine/forward.py and engine/decoder.py compute; transformers computes other language models.
FAMILIES = ("llama", "qwen2", "qwen3")


def model_shape(config: Mapping[str, Any], origin: str) -> ModelShape:
    """The shape in a config.json. Raises WrongCall naming everything that it lacks; `origin` is named there."""
    family = config.get("model_type")
    needed = (
        "vocab_size",
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "intermediate_size",
    )
    problems = [
        _problem(name, config.get(name), origin, "expected a positive whole number")
        for name in needed
        if type(config.get(name)) is not int or config[name] < 1
    ]
    if family not in FAMILIES:
        known = ", ".join(FAMILIES)
        problems.append(_problem("model_type", family, origin, f"not one of {known}"))
    if problems:
        raise WrongCall(problems)
    has_bias = bool(config.get("attention_bias", False))
    return ModelShape(
        vocabulary=config["vocab_size"],
        hidden=config["hidden_size"],
        num_layers=config["num_hidden_layers"],
        num_query_heads=config["num_attention_heads"],
        num_kv_heads=config.get("num_key_value_heads") or config["num_attention_heads"],
        head_size=config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"],
        mlp=config["intermediate_size"],
        has_tied_head=bool(config.get("tie_word_embeddings", False)),
        has_query_key_value_bias=has_bias or family == "qwen2",
        has_output_bias=has_bias and family != "qwen2",
        has_mlp_bias=bool(config.get("mlp_bias", False)),
        has_query_key_norm=family == "qwen3",
    )


def parameters(shape: ModelShape) -> Parameters:
    per_layer_bias = (
        shape.has_query_key_value_bias * (shape.query_width + 2 * shape.kv_width)
        + shape.has_output_bias * shape.hidden
        + shape.has_mlp_bias * (2 * shape.mlp + shape.hidden)
    )
    per_layer_norm = 2 * shape.hidden + shape.has_query_key_norm * 2 * shape.head_size
    table = shape.vocabulary * shape.hidden
    return Parameters(
        embedding=table,
        linear=shape.num_layers * _linear_parameters(shape),
        bias=shape.num_layers * per_layer_bias,
        norm=shape.num_layers * per_layer_norm + shape.hidden,
        head=0 if shape.has_tied_head else table,
    )


def adapter_parameters(shape: ModelShape, lora: Lora) -> int:
    """Rank times inputs plus outputs of every adapted layer. Names are matched as engine/lora.py does it."""
    total = 0
    for layer in range(shape.num_layers):
        for leaf, (inputs, outputs) in shape.linears().items():
            part = "mlp" if leaf in ("gate_proj", "up_proj", "down_proj") else "self_attn"
            name = f"model.layers.{layer}.{part}.{leaf}"
            is_target = lora.target_modules == ("all-linear",) or _is_named(
                name, lora.target_modules
            )
            if is_target and not _is_named(name, lora.excluded_modules):
                total += lora.rank * (inputs + outputs)
    return total


def trained_parameters(shape: ModelShape, lora: Lora | None) -> int:
    return parameters(shape).total if lora is None else adapter_parameters(shape, lora)


def weight_bytes(shape: ModelShape, dtype: Dtype, quantization: Quantization | None = None) -> int:
    """The model's own weights, adapters not counted. Linear layers but the head may be quantised."""
    counted = parameters(shape)
    if quantization is None:
        return counted.total * DTYPE_BYTES[dtype]
    rest = (counted.total - counted.linear) * DTYPE_BYTES[dtype]
    return int(counted.linear * NF4_BYTES) + rest


def optimizer_bytes(num_trained: int, dtype: Dtype) -> int:
    """Both moments of AdamW, in the type of the parameters."""
    return num_trained * _MOMENTS * DTYPE_BYTES[dtype]


def cache_bytes_per_token(shape: ModelShape, dtype: Dtype) -> int:
    """Keys and values of one token in every layer."""
    return 2 * shape.num_layers * shape.kv_width * DTYPE_BYTES[dtype]


def decode_bytes_per_step(
    shape: ModelShape, dtype: Dtype, *, rows: int, mean_tokens: float
) -> float:
    """What has to be read to append one token to `rows` rows that hold `mean_tokens`: weights once, the cache.

    The head is read whole, tied or not; of the embedding, one line a row.
    """
    counted = parameters(shape)
    read = counted.total - counted.embedding - counted.head + shape.vocabulary * shape.hidden
    return (read + rows * shape.hidden) * DTYPE_BYTES[dtype] + rows * mean_tokens * (
        cache_bytes_per_token(shape, dtype)
    )


def decode_flops_per_token(shape: ModelShape, *, mean_tokens: float) -> float:
    """Layers, head, and attention to `mean_tokens` tokens."""
    return body_flops_per_token(shape, mean_tokens=mean_tokens) + head_flops_per_token(shape)


def body_flops_per_token(shape: ModelShape, *, mean_tokens: float) -> float:
    """One forward of the layers for one token that attends to `mean_tokens` tokens (half a sequence, if causal)."""
    attention = 4 * shape.num_layers * shape.query_width * mean_tokens
    return 2 * shape.num_layers * _linear_parameters(shape) + attention


def head_flops_per_token(shape: ModelShape) -> int:
    """Logits of one position."""
    return 2 * shape.vocabulary * shape.hidden


def update_flops_per_token(
    shape: ModelShape, lora: Lora | None, *, checkpoints_activations: bool, mean_tokens: float
) -> float:
    """Forward and backward of the layers for one token.

    A backward multiplies as often as a forward for the inputs' gradients, and as often again for the weights',
    which an adapter needs for itself only. Checkpointed activations repeat the forward.
    """
    linear = 2.0 * shape.num_layers * _linear_parameters(shape)
    attention = body_flops_per_token(shape, mean_tokens=mean_tokens) - linear
    repeats = 1 if checkpoints_activations else 0
    if lora is None:
        return (3 + repeats) * linear + (3 + repeats) * attention
    adapter = 2 * adapter_parameters(shape, lora)
    return (2 + repeats) * linear + (3 + repeats) * (attention + adapter)


def _linear_parameters(shape: ModelShape) -> int:
    """Of one layer."""
    return sum(inputs * outputs for inputs, outputs in shape.linears().values())


def _is_named(name: str, patterns: tuple[str, ...]) -> bool:
    return any(name == pattern or name.endswith(f".{pattern}") for pattern in patterns)


def _problem(name: str, value: object, origin: str, reason: str) -> Problem:
    return Problem(
        field=name,
        value=value,
        origin=origin,
        reason=reason,
        fix="Give the config.json of a Llama, Qwen2 or Qwen3",
    )
