"""What has to be equal, beside the recipe and the content that it names, for two processes to compute equal bytes.

Each field has a name, which a refusal tells and which `--allow-changed` takes. What a model's folder holds beside
its weights (config, tokenizer, chat template) goes by "input/file", and cannot be accepted when it differs:
it is an input as the weights are, only not one that the recipe has a digest of.
"""

import difflib
import hashlib
import json
import os
import platform
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from miniverl.engine.inputs import Inputs
from miniverl.engine.problem import Problem, WrongCall
from miniverl.engine.recipe import Recipe

_CODE = "engine_sha256"
_PACKAGES = ("jinja2", "numpy", "safetensors", "tokenizers", "torch", "transformers")
_PACKAGES_OF_SCORERS = {"math_verify": ("latex2sympy2-extended", "math-verify", "sympy")}
# What transformers reads of a model's folder beside its weights.
_READ_BESIDE_WEIGHTS = (
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "config.json",
    "generation_config.json",
    "merges.txt",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
)
# transformers writes its own version into these two: of them the content counts.
_STAMPED = ("config.json", "generation_config.json")
_STAMPS = ("transformers_version", "_name_or_path")


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """A field that differs between the process that wrote a checkpoint and the one that goes on from it."""

    name: str
    then: str | None
    now: str | None

    @property
    def accepted_as(self) -> str | None:
        """The name that --allow-changed takes for it; None where nothing makes it acceptable."""
        if "/" in self.name:
            return None
        # A field that only one of the two knows is a matter of what their code looks at.
        return _CODE if self.then is None or self.now is None else self.name


def identity(recipe: Recipe, inputs: Inputs, device: str, threads: int) -> dict[str, str]:
    """Versions, device kind, thread count, the engine's code and the inputs' small files, each under its name."""
    packages = (*_PACKAGES, *_PACKAGES_OF_SCORERS.get(recipe.reward.scorer, ()))
    return {
        **{name: version(name) for name in packages},
        "python": platform.python_version(),
        "device": _device_kind(device),
        "threads": str(threads),
        _CODE: engine_sha256(),
        **{
            f"{name}/{file_name}": _content_sha256(folder / file_name)
            for name, folder in _model_folders(recipe, inputs)
            for file_name in _READ_BESIDE_WEIGHTS
            if (folder / file_name).exists()
        },
    }


def changes(then: Mapping[str, str], now: Mapping[str, str]) -> list[Change]:
    """The fields that differ, by name."""
    return [
        Change(name=name, then=then.get(name), now=now.get(name))
        for name in sorted(then.keys() | now.keys())
        if then.get(name) != now.get(name)
    ]


def require_names(allowed: Iterable[str], now: Mapping[str, str]) -> None:
    """Raises WrongCall for names that --allow-changed does not take."""
    known = sorted(name for name in now if "/" not in name)
    problems = [
        Problem(
            field="--allow-changed",
            value=name,
            origin="command line",
            reason="a resume compares no field of this name that may differ",
            fix=_known_or_meant(name, known),
        )
        for name in allowed
        if name not in known
    ]
    if problems:
        raise WrongCall(problems)


def make_deterministic(device: str, threads: int) -> None:
    """The same kernels and the same split of work in every process. To be called before any work."""
    if device.startswith("cuda"):
        # Before CUDA starts: without it, products may take their workspaces in any order.
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.benchmark = False
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True)
    # Would write NaN into every new tensor, at the price of a pass over it.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    # Attention takes one of two kernels, whatever else a build of torch offers. Flash's backward adds up in a fixed
    # order where algorithms are to be deterministic; the plain one is products and a softmax.
    torch.backends.cuda.enable_flash_sdp(True)
    torch.backends.cuda.enable_math_sdp(True)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_cudnn_sdp(False)


def caveats(device: str) -> tuple[str, ...]:
    """What equal bytes depend on, on this kind of device, and nothing here compares or controls."""
    if device == "cpu":
        return ("oneDNN and MKL choose kernels by the CPU: machines were not compared",)
    return (
        "cuBLAS chooses kernels by the number of rows: samples may depend on what is beside them",
        "a resume compares torch and the card, and not driver, CUDA and cuBLAS",
        "attention may take torch's flash kernel, deterministic by torch's word",
    )


def engine_sha256() -> str:
    """SHA-256 over the names and digests of the engine's modules."""
    lines = [
        f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n"
        for path in sorted(Path(__file__).parent.glob("*.py"))
    ]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _device_kind(device: str) -> str:
    """The instruction sets of a CPU, the model of a GPU: each has kernels of its own."""
    if device == "cpu":
        more = {
            "BF16": torch.cpu._is_avx512_bf16_supported,
            "AMX": torch.cpu._is_amx_tile_supported,
        }
        kinds = [name for name, is_supported in more.items() if is_supported()]
        return " ".join(["cpu", torch.backends.cpu.get_cpu_capability(), *kinds])
    return f"{torch.device(device).type} {torch.cuda.get_device_name(device)}"


def _model_folders(recipe: Recipe, inputs: Inputs) -> Iterator[tuple[str, Path]]:
    """The inputs that are models, by the recipe's names."""
    teachers = () if recipe.distillation is None else recipe.distillation.teachers
    yield "model", inputs.model
    for name, folder in (("critic", inputs.critic), ("reward_model", inputs.reward_model)):
        if name in recipe.inputs and folder is not None:
            yield name, folder
    for teacher, folder in zip(teachers, inputs.teachers, strict=True):
        yield teacher.input, folder


def _content_sha256(path: Path) -> str:
    content = path.read_bytes()
    if path.name in _STAMPED:
        stated: dict[str, Any] = json.loads(content)
        kept = {name: stated[name] for name in stated if name not in _STAMPS}
        content = json.dumps(kept, sort_keys=True).encode()
    return hashlib.sha256(content).hexdigest()


def _known_or_meant(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"Did you mean {close[0]}?" if close else f"Name one of {', '.join(known)}"
