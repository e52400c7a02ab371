"""Models: the policy that is trained, the reference it is held to, and the tokenizer, from a Hugging Face folder.

Axes: H hidden, V vocabulary.
"""

import copy
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
import transformers
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from miniverl.engine import lora, nf4, prompts
from miniverl.engine.adapter import load_adapter
from miniverl.engine.footprint import FAMILIES
from miniverl.engine.problem import CannotHere, Problem, WrongCall
from miniverl.engine.quantised import Kept, load_quantised
from miniverl.engine.recipe import Dtype
from miniverl.engine.recipe import Policy as PolicyRecipe

ARCHITECTURES = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")

DTYPES: dict[Dtype, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


class Model:
    """The transformers module of a language model, or of a critic, and how engine/forward.py runs it."""

    def __init__(
        self, network: Any, *, compute_dtype: torch.dtype, checkpoints_activations: bool
    ) -> None:
        self.network = network
        self.compute_dtype = compute_dtype
        self.checkpoints_activations = checkpoints_activations

    @property
    def is_known(self) -> bool:
        """Whether it has a form of its own here; else transformers computes it (engine/transformers_forward.py)."""
        return self.network.config.model_type in FAMILIES

    @property
    def device(self) -> torch.device:
        return self._embedding_VH.device

    @property
    def head_VH(self) -> Tensor:
        """The output projection: logits are hidden states times its transpose."""
        weight: Tensor = self.network.get_output_embeddings().weight
        return weight

    def autocast(self) -> torch.autocast:
        """Multiplies in `compute_dtype` where the parameters have another type."""
        return torch.autocast(
            self.device.type,
            dtype=self.compute_dtype,
            enabled=self.compute_dtype != self._embedding_VH.dtype,
        )

    def trained(self) -> dict[str, nn.Parameter]:
        """The parameters that the optimizer changes, by name, in the network's order."""
        return {name: each for name, each in self.network.named_parameters() if each.requires_grad}

    def num_parameters(self) -> int:
        """Weights of the model itself; adapters are not counted."""
        return num_weights(self.network)

    @property
    def _embedding_VH(self) -> Tensor:
        """Has the type and the device of every parameter; quantised weights are none."""
        weight: Tensor = self.network.get_input_embeddings().weight
        return weight


Reference = Callable[[], AbstractContextManager[Model]]


def num_weights(network: nn.Module) -> int:
    """Of the network itself: quantised ones count, those of adapters do not."""
    plain = sum(
        each.numel()
        for name, each in network.named_parameters()
        if not name.endswith((".lora_A", ".lora_B"))
    )
    return plain + sum(each.numel() for _, each in nf4.nf4_weights(network))


class Tokenizer(prompts.Tokenizer, Protocol):
    chat_template: str | None
    eos_token: str
    eos_token_id: int

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str: ...

    def get_vocab(self) -> dict[str, int]: ...


def check_folder(folder: Path, architectures: Sequence[str] | None = None) -> None:
    """Raises WrongCall with everything that keeps the folder from being a model of these architectures.

    None: of any language model that transformers has.

    To be called before transformers reads it, which would look elsewhere for a missing file.
    """
    problems = []
    checks: dict[str, Callable[[Mapping[str, Any]], Iterator[str]]] = {
        "config.json": partial(_config_reasons, architectures=architectures),
        "generation_config.json": _generation_reasons,
    }
    for name, check in checks.items():
        path = folder / name
        if path.is_file():
            problems += _json_problems(path, check)
        elif name == "config.json":
            problems.append(_problem(folder, "no config.json in this folder"))
    if not any(folder.glob("*.safetensors")):
        problems.append(_problem(folder, "no *.safetensors file in this folder"))
    if not (folder / "tokenizer.json").is_file():
        problems.append(_problem(folder, "no tokenizer.json in this folder"))
    if problems:
        raise WrongCall(problems)


def load_policy(
    recipe: PolicyRecipe,
    folder: Path,
    *,
    adapter_seed: int,
    device: str,
    adapter: Path | None = None,
    kept: Kept | None = None,
    role: str = "policy",
) -> Model:
    """The model in `folder`, ready to be trained; its adapter is new, or the one in the folder `adapter`.

    Raises WrongCall for a folder that holds no such model.
    """
    dtype = DTYPES[recipe.parameter_dtype]
    if recipe.quantization is None:
        network = load_network(AutoModelForCausalLM, folder, dtype, device)
    else:
        _require_known(folder)
        assert kept is not None, "who loads quantised weights says where they stay"
        sha256 = recipe.weights_sha256
        network = load_quantised(
            AutoModelForCausalLM, folder, sha256, dtype, device, kept, role=role
        )
    if recipe.lora is not None:
        lora.attach(network, network.get_output_embeddings(), recipe.lora, adapter_seed)
        if adapter is not None:
            load_adapter(network, adapter)
    return Model(
        network,
        compute_dtype=DTYPES[recipe.compute_dtype],
        checkpoints_activations=recipe.checkpoints_activations,
    )


def load_network(
    auto_class: Any,
    folder: Path,
    dtype: torch.dtype,
    device: str,
    *,
    new: Sequence[str] = (),
    unused: Sequence[str] = (),
    **config: Any,
) -> Any:
    """The network of an Auto class of transformers, with changes to its config.

    Raises WrongCall where the folder has other weights than it; but it may lack those named in `new`, which
    then hold noise without a seed, and have those named in `unused`.
    """
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        with torch.random.fork_rng(devices=()):  # the noise of what is new
            network, loading = auto_class.from_pretrained(
                folder,
                dtype=dtype,
                attn_implementation="sdpa",
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                ignore_mismatched_sizes=True,  # then it lists them, where it would only say that there are some
                output_loading_info=True,
                **config,
            )
    except (
        ImportError,
        ValueError,
    ) as error:  # of an architecture that it knows, but not like this
        reason = f"transformers does not load it: {str(error).splitlines()[0]}"
        raise WrongCall(
            [_problem(folder, reason, "Take a model of another architecture")]
        ) from error
    problems = [
        _problem(folder, f"{kind.replace('_', ' ')}: {', '.join(sorted(map(str, wrong)))}")
        for kind, allowed in (
            ("missing_keys", new),
            ("mismatched_keys", ()),
            ("unexpected_keys", unused),
        )
        if (wrong := set(loading[kind]).difference(allowed))
    ]
    if problems:
        raise WrongCall(problems)
    return network.to(device).eval()


def reference_of(policy: Model) -> Reference:
    """The policy as it was loaded: its adapters off, or a frozen copy of its present weights."""
    if lora.adapters(policy.network):
        return lambda: _adapters_off(policy)
    frozen = Model(
        copy.deepcopy(policy.network).requires_grad_(False),
        compute_dtype=policy.compute_dtype,
        checkpoints_activations=False,
    )
    return lambda: _always(frozen)


def read_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer in `folder`, of a model that is given tokens. Raises WrongCall where it cannot be read."""
    try:
        found: Any = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    except (OSError, ValueError) as error:
        raise WrongCall([_problem(folder, f"its tokenizer cannot be read: {error}")]) from error
    tokenizer: Tokenizer = found
    return tokenizer


def load_tokenizer(folder: Path) -> Tokenizer:
    """That of a model that is given conversations. Raises WrongCall also where it has no chat template or no end token."""
    tokenizer = read_tokenizer(folder)
    problems = []
    if tokenizer.chat_template is None:
        problems.append(_problem(folder, "its tokenizer has no chat template"))
    if tokenizer.eos_token_id is None:
        problems.append(_problem(folder, "its tokenizer has no end-of-sequence token"))
    if problems:
        raise WrongCall(problems)
    return tokenizer


def renumbered(its: Tokenizer, policys: Tokenizer) -> str | None:
    """Why another model would misread the policy's tokens, which reach it as numbers; None where it would not."""
    numbers = its.get_vocab()
    other = sorted(
        token for token, number in policys.get_vocab().items() if numbers.get(token) != number
    )
    if not other:
        return None
    shown = ", ".join(map(repr, other[:3]))
    return f"its tokenizer gives {len(other)} of the policy's tokens another number: {shown}"


def end_tokens(tokenizer: Tokenizer, folder: Path) -> tuple[int, ...]:
    """The tokens that end a response: the tokenizer's, and those of generation_config.json, as vLLM stops."""
    path = folder / "generation_config.json"
    named = json.loads(path.read_text("utf-8")).get("eos_token_id") if path.exists() else None
    more = [named] if isinstance(named, int) else named or []
    return tuple(sorted({tokenizer.eos_token_id, *more}))


def require_device(device: str) -> None:
    """Raises CannotHere for a CUDA device that this torch cannot use."""
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise CannotHere(
            [
                Problem(
                    field="device",
                    value=device,
                    origin="command line",
                    reason=f"torch {torch.__version__} sees no CUDA device",
                    fix="Run with --device cpu, or install the driver and the CUDA build of torch",
                )
            ]
        )


def _json_problems(
    path: Path, check: Callable[[Mapping[str, Any]], Iterator[str]]
) -> list[Problem]:
    """What is wrong with a JSON file of the model's folder."""
    try:
        content = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        return [_problem(path.parent, f"its {path.name} is not JSON: {error}")]
    if not isinstance(content, Mapping):
        return [_problem(path.parent, f"its {path.name} holds no object")]
    return [_problem(path.parent, reason) for reason in check(content)]


def _require_known(folder: Path) -> None:
    family = json.loads((folder / "config.json").read_text("utf-8")).get("model_type")
    if family not in FAMILIES:
        reason = f"weights of 4 bits are for {', '.join(FAMILIES)}, and it is {family}"
        raise WrongCall([_problem(folder, reason, "Bind no quantization, or another model")])


def _config_reasons(
    config: Mapping[str, Any], architectures: Sequence[str] | None
) -> Iterator[str]:
    named = (config.get("architectures") or ["none"])[0]
    if architectures is None and named not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values():
        yield f"its architecture {named} is no language model of transformers {transformers.__version__}"
    elif architectures is not None and named not in architectures:
        yield f"its architecture {named} is not one of {', '.join(architectures)}"
    if config.get("final_logit_softcapping"):
        yield "it bends its logits (final_logit_softcapping), which scoring here does not"
    if "quantization_config" in config:
        yield "its weights are quantised"
    if config.get("attention_dropout"):
        yield "it has dropout, which would train on unnamed noise"
    if config.get("use_sliding_window"):
        yield "it attends through a sliding window"


def _generation_reasons(config: Mapping[str, Any]) -> Iterator[str]:
    named = config.get("eos_token_id")
    listed = named if isinstance(named, list) else [] if named is None else [named]
    if not all(type(token) is int for token in listed):
        yield f"the eos_token_id of its generation_config.json is no token number: {named!r}"


@contextmanager
def _adapters_off(policy: Model) -> Iterator[Model]:
    with lora.disabled(policy.network):
        yield policy


@contextmanager
def _always(model: Model) -> Iterator[Model]:
    yield model


def _problem(
    folder: Path,
    reason: str,
    fix: str = "Give the folder of a whole Hugging Face causal language model",
) -> Problem:
    return Problem(field="model", value=str(folder), origin="bindings", reason=reason, fix=fix)
