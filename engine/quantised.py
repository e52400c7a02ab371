"""Loading a model with its layers' weights in NF4: one tensor at a time, so that its whole float weights never lie in memory.

What is quantised: every linear layer of the body. Embeddings, norms, biases and the head stay as they are, as
transformers leaves them for bitsandbytes. The quantised weights are kept on disk under the digest of those they came
from, and are taken from there by the next start:

    <folder>/1/<weights_sha256>/nf4.safetensors   the four tensors of each layer
                                manifest.json     their content digest
"""

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import AutoConfig

from miniverl.engine import disk, nf4
from miniverl.engine.digest import weights_sha256
from miniverl.engine.events import Event, Warned, WeightsQuantised
from miniverl.engine.nf4 import Nf4Linear, Nf4Weight
from miniverl.engine.problem import Problem, WrongCall
from miniverl.engine.whole import remove_whole, sweep, whole_folder

_VERSION = "1"  # of what is kept: another quantiser, another number
_FILE, _MANIFEST = "nf4.safetensors", "manifest.json"

Tensors = Mapping[str, Mapping[str, Tensor]]  # layer -> the tensors of its Nf4Weight


@dataclass(frozen=True, kw_only=True, slots=True)
class Kept:
    """Where quantised weights stay from one run to the next; `folder` None: nowhere."""

    folder: Path | None
    tell: Callable[[Event], None]


def load_quantised(
    auto_class: Any,
    folder: Path,
    sha256: str,
    dtype: torch.dtype,
    device: str,
    kept: Kept,
    *,
    role: str,
) -> Any:
    """The frozen network of an Auto class of transformers; what is not quantised of it has the type `dtype`.

    `sha256` is the digest of the folder's weights. Raises WrongCall where the folder has other weights than it, and
    for weights that are not finite.
    """
    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    with torch.device("meta"):
        network = auto_class.from_config(
            config, dtype=dtype, attn_implementation="sdpa", trust_remote_code=False
        )
    shapes = {name: each.shape for name, each in network.named_parameters()}
    body = f"{network.base_model_prefix}."
    layers = [
        name
        for name, each in network.named_modules()
        if isinstance(each, nn.Linear) and name.startswith(body)
    ]
    _require_same_tensors(network, folder, shapes)
    with _quantised(folder, sha256, layers, kept, role) as tensors:
        for name in layers:
            _put_layer(network, name, tensors[name], device)
    for name, value in _stored(folder):
        if name in shapes and name.removesuffix(".weight") not in tensors:
            # A copy: what is read lies in the mapped file.
            parameter = torch.empty(value.shape, dtype=dtype, device=device).copy_(value)
            _put(network, name, nn.Parameter(parameter, requires_grad=False))
    _require_tied(network, folder, shapes)
    network.tie_weights()
    network.base_model.rotary_emb = type(network.base_model.rotary_emb)(config=config)
    return network.to(device).eval()


@contextmanager
def _quantised(
    folder: Path, sha256: str, layers: Sequence[str], kept: Kept, role: str
) -> Iterator[Tensors]:
    """The layers' tensors, from where they are kept, else made and put there."""
    with ExitStack() as held:
        entry = _entry(kept, sha256, held)
        found = None if entry is None else _read(entry, layers, kept.tell)
        tensors = _made(folder, layers) if found is None else found
        if entry is not None and found is None:
            try:
                _write(entry, tensors)
            except OSError as error:
                kept.tell(_not_kept(entry, error))
    count = sum(each.nbytes for layer in tensors.values() for each in layer.values())
    kept.tell(WeightsQuantised(role=role, bytes=count, is_from_cache=found is not None))
    yield tensors


def _entry(kept: Kept, sha256: str, held: ExitStack) -> Path | None:
    """The folder of these weights, which no other process reads or fills while `held` is open."""
    if kept.folder is None:
        return None
    entry = kept.folder / _VERSION / sha256
    try:
        disk.make_folder(entry.parent)
        lock = held.enter_context(disk.opened(entry.with_name(f".{sha256}.lock")))
    except OSError as error:
        kept.tell(_not_kept(entry, error))
        return None
    fcntl.flock(lock, fcntl.LOCK_EX)
    return entry


def _read(
    entry: Path, layers: Sequence[str], tell: Callable[[Event], None]
) -> dict[str, dict[str, Tensor]] | None:
    """None where nothing is kept; what is not as it was written is removed."""
    if not entry.exists():
        return None
    try:
        manifest = json.loads((entry / _MANIFEST).read_text("utf-8"))
        is_whole = manifest == {"content_sha256": weights_sha256(entry)}
    except (OSError, ValueError, WrongCall):
        is_whole = False
    if not is_whole:
        message = f"{entry} is not what was written there: the weights are quantised again"
        tell(Warned(code="quantised_weights_damaged", message=message))
        remove_whole(entry)
        return None
    with safe_open(entry / _FILE, "pt") as file:
        return {
            layer: {name: file.get_tensor(f"{layer}.{name}").clone() for name in nf4.TENSORS}
            for layer in layers
        }


def _write(entry: Path, tensors: Tensors) -> None:
    sweep(entry.parent)  # what a process left that was killed while it wrote
    flat = {f"{layer}.{name}": each for layer, its in tensors.items() for name, each in its.items()}
    with whole_folder(entry) as beside:
        disk.write_tensors(beside / _FILE, flat, metadata=None)
        manifest = {"content_sha256": weights_sha256(beside)}
        disk.write(beside / _MANIFEST, (json.dumps(manifest, indent=1) + "\n").encode())


def _made(folder: Path, layers: Sequence[str]) -> dict[str, dict[str, Tensor]]:
    wanted = {f"{layer}.weight": layer for layer in layers}
    made = {wanted[name]: nf4.quantise(value) for name, value in _stored(folder, set(wanted))}
    wrong = [layer for layer, tensors in made.items() if not _is_finite(tensors)]
    if wrong:
        reason = f"weights that are not finite, or too large to quantise: {', '.join(wrong)}"
        raise WrongCall([_problem(folder, reason)])
    return made


def _is_finite(tensors: Mapping[str, Tensor]) -> bool:
    return all(bool(tensors[name].isfinite().all()) for name in ("nested_absmax", "nested_offset"))


def _stored(folder: Path, wanted: set[str] | None = None) -> Iterator[tuple[str, Tensor]]:
    """Names and tensors in the folder's files; each lies in a mapping that is let go with it."""
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            names = list(file.keys())
        for name in names:
            if wanted is None or name in wanted:
                with safe_open(path, "pt") as file:
                    yield name, file.get_tensor(name)


def _put_layer(network: nn.Module, name: str, tensors: Mapping[str, Tensor], device: str) -> None:
    plain = network.get_submodule(name)
    assert isinstance(plain, nn.Linear)
    weight = Nf4Weight(plain.weight.shape, {k: each.to(device) for k, each in tensors.items()})
    parent, _, leaf = name.rpartition(".")
    setattr(network.get_submodule(parent), leaf, Nf4Linear(weight, plain.bias))


def _put(network: nn.Module, name: str, parameter: nn.Parameter) -> None:
    parent, _, leaf = name.rpartition(".")
    setattr(network.get_submodule(parent), leaf, parameter)


def _require_same_tensors(network: Any, folder: Path, shapes: Mapping[str, torch.Size]) -> None:
    """The folder has what the network has; and may have tied weights twice."""
    found = dict(_stored_shapes(folder))
    twice = {name for name, _ in network.named_parameters(remove_duplicate=False)} - shapes.keys()
    problems = [
        _problem(folder, f"{kind}: {', '.join(sorted(names))}")
        for kind, names in (
            ("missing keys", shapes.keys() - found),
            ("mismatched keys", {n for n in shapes if n in found and found[n] != shapes[n]}),
            ("unexpected keys", found.keys() - shapes.keys() - twice),
        )
        if names
    ]
    if problems:
        raise WrongCall(problems)


def _stored_shapes(folder: Path) -> Iterator[tuple[str, torch.Size]]:
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118 - it is no mapping
                yield name, torch.Size(file.get_slice(name).get_shape())


def _require_tied(network: Any, folder: Path, shapes: Mapping[str, torch.Size]) -> None:
    """A second copy of tied weights is what they are."""
    embedding_VH: Tensor = network.get_input_embeddings().weight
    for name, value in _stored(folder):
        if name not in shapes and not torch.equal(value.to(embedding_VH.dtype), embedding_VH.cpu()):
            reason = f"{name} differs from the embedding, and its config says that they are one"
            raise WrongCall([_problem(folder, reason)])


def _not_kept(entry: Path, error: OSError) -> Warned:
    told = error.strerror or os.strerror(error.errno or 0)
    message = f"the quantised weights are not kept in {entry}, and made again next time: {told}"
    return Warned(code="quantised_weights_not_kept", message=message)


def _problem(folder: Path, reason: str) -> Problem:
    return Problem(
        field="model",
        value=str(folder),
        origin="bindings",
        reason=reason,
        fix="Give the folder of a whole Hugging Face model",
    )
