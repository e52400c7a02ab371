"""An adapter that was trained before, in peft's two files: what a run may start from in place of a new one.

peft's pickled adapter_model.bin is not read. The base model below it is the run's own.
"""

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn

from miniverl.engine import lora
from miniverl.engine.digest import other_weights
from miniverl.engine.problem import Problem, WrongCall
from miniverl.engine.recipe import Lora

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"

# What peft computes otherwise with: at any other value the adapter is not the sum W + (alpha / r) B A.
_PLAIN: Mapping[str, tuple[Any, ...]] = {
    "bias": ("none",),
    "lora_dropout": (0, 0.0),
    "use_dora": (None, False),
    "use_rslora": (None, False),
    "fan_in_fan_out": (None, False),
    "rank_pattern": (None, {}),
    "alpha_pattern": (None, {}),
    "modules_to_save": (None, []),
    "layers_to_transform": (None, []),
    "target_parameters": (None, []),
    "trainable_token_indices": (None, []),
    "layer_replication": (None, []),
    "lora_bias": (None, False),
}


def check_adapter(recipe: Lora, sha256: str, folder: Path) -> None:
    """Raises WrongCall with all that keeps the folder from being the adapter that the recipe starts from."""
    missing = [name for name in (CONFIG, WEIGHTS) if not (folder / name).is_file()]
    if missing:
        raise WrongCall([_problem(folder, f"no {name} in this folder") for name in missing])
    reasons = [*_config_reasons(folder / CONFIG, recipe)]
    other = other_weights(folder, sha256)
    if other is not None:
        reasons.append(other)
    if reasons:
        raise WrongCall([_problem(folder, reason) for reason in reasons])


@torch.no_grad()
def load_adapter(network: nn.Module, folder: Path) -> None:
    """Put the tensors in `folder` into the adapters of `network`. Raises WrongCall where they are of other layers."""
    saved = load_file(folder / WEIGHTS)
    places = lora.peft_tensors(network)
    reasons = [
        *(f"it has {name}, and the recipe puts no adapter there" for name in saved.keys() - places),
        *(f"it lacks {name}" for name in places.keys() - saved),
        *(
            f"{name} has the shape {list(saved[name].shape)}, and {list(places[name].shape)} is needed"
            for name in saved.keys() & places
            if saved[name].shape != places[name].shape
        ),
        *(f"{name} is not finite" for name, each in saved.items() if not each.isfinite().all()),
    ]
    if reasons:
        raise WrongCall([_problem(folder, reason) for reason in sorted(reasons)])
    for name, place in places.items():
        place.copy_(saved[name])


def _config_reasons(path: Path, recipe: Lora) -> Iterator[str]:
    """Upstream takes rank and scale from this file, and the recipe has them from the launch: they must agree."""
    try:
        config = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        yield f"its {path.name} is not JSON: {error}"
        return
    if not isinstance(config, dict):
        yield f"its {path.name} holds no object"
        return
    if config.get("peft_type") != "LORA":
        yield f"its peft_type is {config.get('peft_type')!r}, and only LORA is read"
    if config.get("r") != recipe.rank:
        yield f"its rank is {config.get('r')!r}, and the launch says {recipe.rank}"
    alpha: Any = config.get("lora_alpha")
    if type(alpha) not in (int, float) or not math.isclose(alpha, recipe.alpha):
        yield f"its lora_alpha is {alpha!r}, and the launch says {recipe.alpha:g}"
    for name, plain in _PLAIN.items():
        if config.get(name, plain[0]) not in plain:
            yield f"its {name} is {config[name]!r}, which computes something else"


def _problem(folder: Path, reason: str) -> Problem:
    return Problem(
        field="adapter",
        value=str(folder),
        origin="bindings",
        reason=reason,
        fix="Give the folder of the LoRA adapter that the recipe was compiled for, as peft saves it",
    )
