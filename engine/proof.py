"""What a run exported, read by the libraries that others read it with, against the engine's own models.

    python -P -m miniverl.engine.proof REQUEST.json ANSWER.json

The engine's weights come from the last checkpoint, not from what is proven. Both sides compute in float32, one
sequence at a time. Axes: T tokens, V vocabulary.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification

from miniverl.engine import models
from miniverl.engine import recipe as recipes
from miniverl.engine.critic import load_critic
from miniverl.engine.export import export_merged
from miniverl.engine.models import Model
from miniverl.engine.quantised import Kept
from miniverl.engine.recipe import Critic, Policy

# Of the largest number. Sums in another order differ by 1e-6 of it.
TOLERANCE = 1e-4

Sequences = Sequence[Sequence[int]]


def load_trained(policy: Policy, base: Path, checkpoint: Path) -> Model:
    """The engine's policy as the checkpoint has it, in float32; quantised where the recipe says so."""
    policy = replace(policy, parameter_dtype="float32", compute_dtype="float32")
    kept = Kept(folder=None, tell=lambda _: None)
    model = models.load_policy(policy, base, adapter_seed=0, device="cpu", kept=kept)
    _put(model, checkpoint / ("model" if policy.lora is None else "adapter"))
    return model


@torch.no_grad()
def compare(
    policy: Policy, base: Path, checkpoint: Path, exported: Path, sequences: Sequences
) -> dict[str, Any]:
    """The largest difference between the logits of both, and how large it may be.

    `exported` is a whole model, or an adapter over `base`: then both sides have that model's own weights, however the
    run held them, and `held_difference` is how far that moves the logits from those of the run. `change` is how far
    they are from those of `base`: with none of it, two models without an adapter would agree too.
    """
    is_adapter = (exported / "adapter_config.json").exists()
    held = load_trained(policy, base, checkpoint)
    own = held
    if is_adapter and policy.quantization is not None:
        own = load_trained(replace(policy, quantization=None), base, checkpoint)
    untrained = _load(AutoModelForCausalLM, base)
    if is_adapter:
        theirs = PeftModel.from_pretrained(_load(AutoModelForCausalLM, base), exported).eval()
    else:
        theirs = _load(AutoModelForCausalLM, exported)
    seen = []
    for tokens in sequences:
        row_T = torch.tensor([list(tokens)])
        own_TV, their_TV, base_TV, held_TV = (
            network(row_T).logits[0] for network in (own.network, theirs, untrained, held.network)
        )
        more = {"change": own_TV - base_TV, "held_difference": own_TV - held_TV}
        seen.append(_largest(max_difference=own_TV - their_TV, largest=own_TV, **more))
    return _answer(seen, sequences)


@torch.no_grad()
def compare_critic(
    critic: Critic, base: Path, checkpoint: Path, exported: Path, sequences: Sequences
) -> dict[str, Any]:
    """The same of the values, which are a token classifier's only logit."""
    critic = replace(critic, parameter_dtype="float32", compute_dtype="float32")
    own = load_critic(critic, base, seed=0, device="cpu")
    _put(own, checkpoint / "critic")
    theirs = _load(AutoModelForTokenClassification, exported)
    seen = []
    for tokens in sequences:
        row_T = torch.tensor([list(tokens)])
        own_T1, their_T1 = (network(row_T).logits[0] for network in (own.network, theirs))
        seen.append(_largest(max_difference=own_T1 - their_T1, largest=own_T1))
    return _answer(seen, sequences)


def _largest(**tensors: Tensor) -> dict[str, float]:
    return {name: float(each.abs().max()) for name, each in tensors.items()}


def _answer(seen: Sequence[Mapping[str, float]], sequences: Sequences) -> dict[str, Any]:
    """The largest of what was seen in every sequence, and whether it is small enough."""
    most = {name: max(each[name] for each in seen) for name in seen[0]}
    return {
        **most,
        "is_same": most["max_difference"] <= TOLERANCE * most["largest"],
        "positions": sum(map(len, sequences)),
        "tolerance": TOLERANCE,
    }


@torch.no_grad()
def _put(model: Model, file: Path) -> None:
    saved = load_file(file.with_suffix(".safetensors"))
    for name, parameter in model.trained().items():
        parameter.copy_(saved[name])


def _load(auto_class: Any, folder: Path) -> Any:
    loaded = auto_class.from_pretrained(
        folder,
        dtype=torch.float32,
        attn_implementation="sdpa",
        local_files_only=True,
        trust_remote_code=False,
        use_safetensors=True,
    )
    return loaded.eval()


def main(request_path: str, answer_path: str) -> None:
    """Of the run in the request: merges it where asked to, and proves every model that was trained."""
    request = json.loads(Path(request_path).read_text("utf-8"))
    torch.set_num_threads(request["threads"])
    recipe = recipes.loads(Path(request["recipe"]).read_text("utf-8"), request["recipe"])
    sequences = request["sequences"]
    checkpoint, policy = Path(request["checkpoint"]), _places(request["policy"])
    if request["is_merged"]:
        trained = load_trained(recipe.policy, policy["base"], checkpoint)
        export_merged(trained, policy["exported"], policy["base"])
    proofs = {
        "policy": compare(recipe.policy, checkpoint=checkpoint, sequences=sequences, **policy)
    }
    if recipe.critic is not None:
        critic = _places(request["critic"])
        proofs["critic"] = compare_critic(
            recipe.critic, checkpoint=checkpoint, sequences=sequences, **critic
        )
    Path(answer_path).write_text(json.dumps(proofs, allow_nan=False), "utf-8")


def _places(stated: Mapping[str, str]) -> dict[str, Path]:
    return {name: Path(path) for name, path in stated.items()}


if __name__ == "__main__":
    main(*sys.argv[1:])
