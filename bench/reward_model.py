"""A small reward model made from a pinned language model: its first layers, and a head of seeded numbers.

It has learnt nothing: it is there so that a whole run with a reward model can be measured, on any machine from the
same bytes. The head is uniform, since sums and products are rounded alike everywhere, and logarithms are not.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from miniverl.bench import gguf
from miniverl.bench.fetch import fetch
from miniverl.bench.pin import RewardModelPin
from miniverl.compiler.upstream import Progress
from miniverl.compiler.whole import json_text
from miniverl.engine.problem import Problem

_WEIGHTS = "model.safetensors"
_TOKENIZER = ("chat_template.jinja", "tokenizer.json", "tokenizer_config.json")
_LAYER = "model.layers."


def fill(pin: RewardModelPin, folder: Path, progress: Progress) -> None:
    """Write the reward model of `pin`, whose language model is fetched where it is missing."""
    derive(fetch([pin.base], progress)[pin.base], folder, layers=pin.layers, seed=pin.seed)


def wrong_content(pin: RewardModelPin, folder: Path) -> list[Problem]:
    """Each file that is missing, too many, or not what the pin says, by content."""
    return gguf.wrong_files(folder, pin.weights_sha256, pin.files)


def derive(model: Path, folder: Path, *, layers: int, seed: int) -> None:
    """Write a sequence classifier with one output to the empty `folder`: the first `layers` of `model`, float32."""
    config: dict[str, Any] = json.loads((model / "config.json").read_text("utf-8"))
    weights = _backbone(model / _WEIGHTS, layers)
    weights["score.weight"] = _head(config, seed)
    save_file(weights, folder / _WEIGHTS, metadata={"format": "pt"})
    classifier = _classifier_config(config, layers)
    (folder / "config.json").write_text(json_text(classifier), "utf-8")
    for name in _TOKENIZER:
        shutil.copyfile(model / name, folder / name)
    for path in folder.iterdir():
        path.chmod(0o644)


def _backbone(path: Path, layers: int) -> dict[str, np.ndarray]:
    with safe_open(path, framework="np") as file:
        names = [name for name in file.keys() if _is_kept(name, layers)]  # noqa: SIM118
        return {name: file.get_tensor(name) for name in names}


def _is_kept(name: str, layers: int) -> bool:
    if name.startswith(_LAYER):
        return int(name.removeprefix(_LAYER).partition(".")[0]) < layers
    return name.startswith("model.")  # and not the output projection


def _head(config: Mapping[str, Any], seed: int) -> np.ndarray:
    """[1, H], with the standard deviation that the model's own weights started from."""
    limit: float = config["initializer_range"] * 3**0.5
    drawn_1H = np.random.RandomState(seed).random_sample((1, config["hidden_size"]))
    head_1H: np.ndarray = ((2 * drawn_1H - 1) * limit).astype(np.float32)
    return head_1H


def _classifier_config(config: Mapping[str, Any], layers: int) -> dict[str, Any]:
    (language_model,) = config["architectures"]
    return {
        **config,
        "architectures": [language_model.replace("ForCausalLM", "ForSequenceClassification")],
        "id2label": {"0": "LABEL_0"},
        "label2id": {"LABEL_0": 0},
        "num_hidden_layers": layers,
    }
