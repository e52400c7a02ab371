"""What a run leaves for others: the adapter as peft reads it, or the whole model as transformers does."""

import shutil
from pathlib import Path

from miniverl.engine import lora
from miniverl.engine.models import Model
from miniverl.engine.recipe import Policy
from miniverl.engine.whole import save_tensors, whole_folder

_MODEL_FILES = ("*.json", "*.jinja", "*.model", "*.txt")  # all but the weights
# The index of other shards, and what the cache notes about its own copy, times among it.
_NOT_EXPORTED = ("model.safetensors.index.json", "manifest.json")


def export(policy: Model, recipe: Policy, out: Path, source: Path) -> Path:
    """Write adapter/ or model/ into the run folder; `source` is the folder the model was loaded from."""
    if recipe.lora is not None:
        path = out / "adapter"
        with whole_folder(path) as beside:
            save_tensors(lora.peft_tensors(policy.network), beside / "adapter_model.safetensors")
            config = lora.peft_config(policy.network, recipe.lora)
            (beside / "adapter_config.json").write_text(config, "utf-8")
        return path
    path = out / "model"
    with whole_folder(path) as beside:
        tensors = {name: each.detach().contiguous() for name, each in policy.trained().items()}
        save_tensors(tensors, beside / "model.safetensors", metadata={"format": "pt"})
        for pattern in _MODEL_FILES:
            for file in source.glob(pattern):
                if file.name not in _NOT_EXPORTED:
                    shutil.copyfile(file, beside / file.name)
    return path
