"""What a run exported, read by the libraries that others read it with, against the engine's own model.

    python -P -m miniverl.engine.proof REQUEST.json ANSWER.json

The engine's weights come from the last checkpoint, not from what is proven. Both sides compute in float32 over the
base model's own weights, however the run held them, one sequence at a time. Axes: T tokens, V vocabulary.
"""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from miniverl.engine import models
from miniverl.engine import recipe as recipes
from miniverl.engine.recipe import Recipe

# Of the largest logit. Sums in another order differ by 1e-6 of it.
TOLERANCE = 1e-4


@torch.no_grad()
def compare(
    recipe: Recipe, base: Path, checkpoint: Path, exported: Path, sequences: Sequence[Sequence[int]]
) -> dict[str, Any]:
    """The largest difference between the logits of both, and how large it may be.

    `exported` is an adapter over `base` where the recipe has one, else the whole model. `change` is how far the
    logits are from those of `base`: with none of it, two models without an adapter would agree too.
    """
    policy = replace(
        recipe.policy, parameter_dtype="float32", compute_dtype="float32", quantization=None
    )
    own = models.load_policy(policy, base, adapter_seed=0, device="cpu")
    weights = "adapter" if recipe.policy.lora is not None else "model"
    saved = load_file(checkpoint / f"{weights}.safetensors")
    for name, parameter in own.trained().items():
        parameter.copy_(saved[name])
    untrained = _load(base)
    theirs = _load(exported if recipe.policy.lora is None else base)
    if recipe.policy.lora is not None:
        theirs = PeftModel.from_pretrained(theirs, exported).eval()
    difference = change = largest = 0.0
    for tokens in sequences:
        row_T = torch.tensor([list(tokens)])
        own_TV, their_TV, base_TV = (
            _logits(network, row_T) for network in (own.network, theirs, untrained)
        )
        difference = max(difference, float((own_TV - their_TV).abs().max()))
        change = max(change, float((own_TV - base_TV).abs().max()))
        largest = max(largest, float(own_TV.abs().max()))
    return {
        "change": change,
        "is_same": difference <= TOLERANCE * largest,
        "largest_logit": largest,
        "max_difference": difference,
        "positions": sum(map(len, sequences)),
        "tolerance": TOLERANCE,
    }


def _load(folder: Path) -> Any:
    loaded = AutoModelForCausalLM.from_pretrained(
        folder,
        dtype=torch.float32,
        attn_implementation="sdpa",
        local_files_only=True,
        trust_remote_code=False,
        use_safetensors=True,
    )
    return loaded.eval()


def _logits(network: Callable[..., Any], row_T: Tensor) -> Tensor:
    logits_TV: Tensor = network(row_T).logits[0].float()
    return logits_TV


def main(request_path: str, answer_path: str) -> None:
    request = json.loads(Path(request_path).read_text("utf-8"))
    torch.set_num_threads(request["threads"])
    recipe = recipes.loads(Path(request["recipe"]).read_text("utf-8"), request["recipe"])
    answer = compare(
        recipe,
        Path(request["base"]),
        Path(request["checkpoint"]),
        Path(request["exported"]),
        request["sequences"],
    )
    Path(answer_path).write_text(json.dumps(answer, allow_nan=False), "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
