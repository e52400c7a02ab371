"""A GGUF file as a Hugging Face folder that depends on the file alone, not on the libraries' versions.

Run as a process of its own, so that the caller loads no torch and sees none of its libraries' notices:

    python -m miniverl.bench.convert FILE.gguf FOLDER
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

# What a library writes of itself, of this machine, or of where the file came from: the same weights
# would get another config.json with the next release. `model_max_length` is a stand-in for "unknown".
_SAYS_NOTHING_OF_THE_MODEL = frozenset(
    {
        "_from_model_config",
        "_model_name_or_path",
        "_name_or_path",
        "is_local",
        "local_files_only",
        "model_max_length",
        "transformers_version",
    }
)


def convert(gguf: Path, folder: Path) -> None:
    """Write float32 safetensors, config, tokenizer and chat template of `gguf` to `folder`.

    `dequantize=True` turns every quantised block into plain float32 on loading; without it
    transformers marks the model as GGUF-quantised and refuses to save it.
    """
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(
        gguf.parent, gguf_file=gguf.name, trust_remote_code=False
    )
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        gguf_file=gguf.name,
        dtype=torch.float32,
        trust_remote_code=False,
        quantization_config=GgufConfig(dequantize=True),
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    for path in sorted(folder.iterdir()):
        if path.suffix == ".json" and path.name != "tokenizer.json":
            _rewrite(path)
        path.chmod(0o644)


def _rewrite(path: Path) -> None:
    plain: dict[str, Any] = json.loads(path.read_text())
    kept = {key: value for key, value in plain.items() if key not in _SAYS_NOTHING_OF_THE_MODEL}
    path.write_text(json.dumps(kept, indent=1, sort_keys=True, allow_nan=False) + "\n")


if __name__ == "__main__":
    os.umask(0o022)
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
