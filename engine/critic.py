"""The critic: a backbone like the policy's, under a head that gives each position one number, its value.

Upstream's is transformers' AutoModelForTokenClassification with one label and no dropout
(verl/utils/model.py:637, v0.9.0).
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import AutoModelForTokenClassification

from miniverl.engine import lora, models, seeds
from miniverl.engine.digest import other_weights
from miniverl.engine.models import DTYPES, Model
from miniverl.engine.problem import Problem, Refused, WrongCall, told_of
from miniverl.engine.recipe import Critic, Lora

ARCHITECTURES = tuple(
    name.replace("CausalLM", kind)
    for kind in ("CausalLM", "TokenClassification", "SequenceClassification")
    for name in models.ARCHITECTURES
)

HEAD = ("score.weight", "score.bias")
_LANGUAGE_HEAD = ("lm_head.weight",)


def check_critic(recipe: Critic, folder: Path, tokenizer: models.Tokenizer) -> None:
    """Raises WrongCall if the folder is not the model that the recipe names, or reads other tokens."""
    with told_of(field="critic"):
        models.check_folder(folder, ARCHITECTURES)
        its_tokenizer = models.read_tokenizer(folder)
    problems = list(_problems(recipe, folder, models.renumbered(its_tokenizer, tokenizer)))
    if problems:
        raise WrongCall(problems)


def load_critic(recipe: Critic, folder: Path, *, seed: int, device: str) -> Model:
    """The backbone in `folder` and a head, ready to be trained; with an adapter, the head is still trained whole.

    A head with one output that the folder holds is taken from there. What it lacks of it is new, as
    transformers makes it: weights normal of the config's `initializer_range`, drawn by `seed`; the bias 0.
    Raises WrongCall for a folder that holds no such model.
    """
    with told_of(field="critic"):
        network = models.load_network(
            AutoModelForTokenClassification,
            folder,
            DTYPES[recipe.parameter_dtype],
            device,
            new=HEAD,
            unused=_LANGUAGE_HEAD,
            num_labels=1,
        )
    held = _tensor_names(folder)
    with torch.no_grad():
        if "score.weight" not in held:
            network.score.weight.copy_(_new_weight(network, seed))
        if "score.bias" not in held:
            network.score.bias.zero_()
    if recipe.lora is not None:
        _attach(network, recipe.lora, seed)
    return Model(
        network,
        compute_dtype=DTYPES[recipe.compute_dtype],
        checkpoints_activations=recipe.checkpoints_activations,
    )


def _attach(network: Any, adapter: Lora, seed: int) -> None:
    try:
        lora.attach(network, network.score, adapter, seed)
    except Refused as error:
        raise Refused(
            replace(each, field=each.field.replace("policy", "critic", 1))
            for each in error.problems
        ) from error
    network.score.requires_grad_(True)


def _new_weight(network: Any, seed: int) -> Tensor:
    weight_1H = torch.empty(1, network.config.hidden_size)
    generator = seeds.generator(seed, "value_head")
    return nn.init.normal_(weight_1H, std=network.config.initializer_range, generator=generator)


def _tensor_names(folder: Path) -> set[str]:
    names: set[str] = set()
    for path in folder.glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            names |= set(file.keys())
    return names


def _problems(recipe: Critic, folder: Path, misread: str | None) -> Iterator[Problem]:
    others = other_weights(folder, recipe.weights_sha256)
    if others is not None:
        yield _problem(folder, others, "Bind that model, or compile again with this one")
    if misread is not None:
        yield _problem(folder, misread, "Bind a critic with the policy's tokenizer")


def _problem(folder: Path, reason: str, fix: str) -> Problem:
    return Problem(field="critic", value=str(folder), origin="bindings", reason=reason, fix=fix)
