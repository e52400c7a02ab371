"""What a run leaves for others: the adapter as peft reads it, or the whole model as transformers does.

A critic is AutoModelForTokenClassification's, with one label: its adapter's file holds the head too, which peft
puts in the place of the one that transformers draws anew.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from miniverl.engine import disk, lora
from miniverl.engine.critic import HEAD
from miniverl.engine.lora import LoraLinear
from miniverl.engine.models import Model
from miniverl.engine.nf4 import Nf4Linear
from miniverl.engine.recipe import Critic, Policy
from miniverl.engine.whole import whole_folder

_MODEL_FILES = ("*.json", "*.jinja", "*.model", "*.txt")  # all but the weights
# The index of other shards, and what the cache notes about its own copy, times among it.
_NOT_EXPORTED = ("model.safetensors.index.json", "manifest.json")


def export(policy: Model, recipe: Policy, out: Path, source: Path) -> Path:
    """Write adapter/ or model/ into the run folder; `source` is the folder the model was loaded from."""
    if recipe.lora is not None:
        path = out / "adapter"
        with whole_folder(path) as beside:
            disk.write_tensors(
                beside / "adapter_model.safetensors",
                lora.peft_tensors(policy.network),
                metadata=None,
            )
            config = lora.peft_config(policy.network, recipe.lora)
            disk.write(beside / "adapter_config.json", config.encode())
        return path
    path = out / "model"
    with whole_folder(path) as beside:
        _write_model(policy, source, beside)
    return path


def export_critic(critic: Model, recipe: Critic, out: Path, source: Path) -> Path:
    """Write critic/ into the run folder, if a process that was killed behind it has not written it already."""
    path = out / "critic"
    if path.exists():
        return path
    with whole_folder(path) as beside:
        if recipe.lora is not None:
            head = {f"base_model.model.{name}": critic.trained()[name].detach() for name in HEAD}
            tensors = lora.peft_tensors(critic.network) | head
            disk.write_tensors(beside / "adapter_model.safetensors", tensors, metadata=None)
            config = lora.peft_config(
                critic.network, recipe.lora, task_type="TOKEN_CLS", modules_to_save=["score"]
            )
            disk.write(beside / "adapter_config.json", config.encode())
        else:
            _write_model(critic, source, beside)
            disk.write(beside / "config.json", _classifier_config(critic, source).encode())
    return path


def export_merged(policy: Model, path: Path, source: Path) -> None:
    """Write a whole model: each layer as it computes, its adapter added, and quantised weights taken back."""
    network = policy.network
    layers = {
        f"{name}.weight": each
        for name, each in network.named_modules()
        if isinstance(each, LoraLinear | Nf4Linear)
    }
    tensors = {
        name: each.detach().contiguous()
        for name, each in network.named_parameters()
        if name not in layers and not name.endswith((".lora_A", ".lora_B"))
    }
    like = network.get_input_embeddings().weight
    for name, layer in layers.items():
        tensors[name] = like.new_empty(layer.weight.shape)
        lora.write_effective_weight(layer, tensors[name])
    with whole_folder(path) as beside:
        _write_folder(tensors, source, beside)


def _write_model(model: Model, source: Path, folder: Path) -> None:
    tensors = {name: each.detach().contiguous() for name, each in model.trained().items()}
    _write_folder(tensors, source, folder)


def _write_folder(tensors: Mapping[str, Tensor], source: Path, folder: Path) -> None:
    """The weights, and what else the folder that they came from holds."""
    disk.write_tensors(folder / "model.safetensors", tensors, metadata={"format": "pt"})
    for pattern in _MODEL_FILES:
        for file in source.glob(pattern):
            if file.name not in _NOT_EXPORTED:
                disk.copy(file, folder / file.name)


def _classifier_config(critic: Model, source: Path) -> str:
    """The backbone's config, as that of a classifier with one label and no dropout."""
    config = json.loads((source / "config.json").read_text("utf-8")) | {
        "architectures": [type(critic.network).__name__],
        "classifier_dropout": 0.0,
        "id2label": {"0": "LABEL_0"},
        "label2id": {"LABEL_0": 0},
    }
    return json.dumps(config, indent=1, sort_keys=True, allow_nan=False) + "\n"
