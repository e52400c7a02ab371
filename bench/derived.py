"""A small model made from a pinned language model: its first layers, and for a reward model a head of seeded numbers.

The head has learnt nothing: it is there so that a whole run with a reward model can be measured, on any machine from
the same bytes. It is uniform, since sums and products are rounded alike everywhere, and logarithms are not.
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
from miniverl.bench.pin import DerivedPin
from miniverl.compiler.upstream import Progress
from miniverl.compiler.whole import json_text
from miniverl.engine.problem import Problem

_WEIGHTS = "model.safetensors"
_TOKENIZER = ("chat_template.jinja", "tokenizer.json", "tokenizer_config.json")
_GENERATION = "generation_config.json"
_BACKBONE = "model."
_LAYER = "model.layers."


def fill(pin: DerivedPin, folder: Path, progress: Progress) -> None:
    """Write the model of `pin`, whose language model is fetched where it is missing."""
    model = fetch([pin.base], progress)[pin.base]
    if pin.head_seed is None:
        shorten(model, folder, layers=pin.layers)
    else:
        make_reward_model(model, folder, layers=pin.layers, head_seed=pin.head_seed)


def wrong_content(pin: DerivedPin, folder: Path) -> list[Problem]:
    """Each file that is missing, too many, or not what the pin says, by content."""
    return gguf.wrong_files(folder, pin.weights_sha256, pin.files)


def shorten(model: Path, folder: Path, *, layers: int) -> None:
    """Write a language model to the empty `folder`: the first `layers` of `model`, and all around them."""
    config = {**_config(model), "num_hidden_layers": layers}
    _write(folder, _first_layers(model / _WEIGHTS, layers), config)
    _copy(model, folder, (*_TOKENIZER, _GENERATION))


def make_reward_model(model: Path, folder: Path, *, layers: int, head_seed: int) -> None:
    """Write a sequence classifier with one output to the empty `folder`: the first `layers` of `model`, float32."""
    config = _config(model)
    weights = {
        name: weight
        for name, weight in _first_layers(model / _WEIGHTS, layers).items()
        if name.startswith(_BACKBONE)  # and not the output projection
    }
    weights["score.weight"] = _head(config, head_seed)
    _write(folder, weights, _classifier_config(config, layers))
    _copy(model, folder, _TOKENIZER)


def _config(model: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((model / "config.json").read_text("utf-8"))
    return config


def _write(folder: Path, weights: Mapping[str, np.ndarray], config: Mapping[str, Any]) -> None:
    save_file(dict(weights), folder / _WEIGHTS, metadata={"format": "pt"})
    (folder / "config.json").write_text(json_text(config), "utf-8")
    for name in (_WEIGHTS, "config.json"):
        (folder / name).chmod(0o644)


def _copy(model: Path, folder: Path, names: tuple[str, ...]) -> None:
    for name in names:
        shutil.copyfile(model / name, folder / name)
        (folder / name).chmod(0o644)


def _first_layers(path: Path, layers: int) -> dict[str, np.ndarray]:
    with safe_open(path, framework="np") as file:
        names = [name for name in file.keys() if _is_kept(name, layers)]  # noqa: SIM118
        return {name: file.get_tensor(name) for name in names}


def _is_kept(name: str, layers: int) -> bool:
    if not name.startswith(_LAYER):
        return True
    return int(name.removeprefix(_LAYER).partition(".")[0]) < layers


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
