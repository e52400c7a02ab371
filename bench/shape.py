"""A model of an exact architecture whose weights are drawn from a seed: for systems figures without a download.

What it costs is what the real one costs; what it says means nothing.
"""

import shutil
from pathlib import Path

from miniverl.bench import gguf
from miniverl.bench.fetch import fetch
from miniverl.bench.pin import ShapePin
from miniverl.bench.seeded_weights import write_weights
from miniverl.compiler.upstream import Progress
from miniverl.compiler.whole import json_text
from miniverl.engine.problem import Problem

WEIGHTS = "model.safetensors"
TOKENIZER = (
    "chat_template.jinja",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
)


def fill(pin: ShapePin, folder: Path, progress: Progress) -> None:
    """Write the model of `pin`; the tokenizer is another pin's, fetched where it is missing."""
    tokenizer = fetch([pin.tokenizer], progress)[pin.tokenizer]
    for name in TOKENIZER:
        shutil.copyfile(tokenizer / name, folder / name)
        (folder / name).chmod(0o644)
    (folder / "config.json").write_text(json_text(dict(pin.config)), "utf-8")
    write_weights(folder / WEIGHTS, pin.config, pin.seed, progress, pin.title)
    for name in (WEIGHTS, "config.json"):
        (folder / name).chmod(0o644)


def wrong_content(pin: ShapePin, folder: Path) -> list[Problem]:
    """Each file that is missing, too many, or not what the pin says, by content."""
    return gguf.wrong_files(folder, pin.weights_sha256, pin.files)
