"""Weights in NF4 on the disk: the next start takes what was kept, and other weights than the model's are refused."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from miniverl.engine.events import Event, Warned, WeightsQuantised
from miniverl.engine.models import Model, load_policy
from miniverl.engine.problem import WrongCall
from miniverl.engine.quantised import Kept
from miniverl.engine.recipe import Policy, Recipe


@pytest.fixture(scope="module")
def quantised(tiny_recipe: Recipe) -> Policy:
    return replace(tiny_recipe.policy, quantization="nf4")


def _loaded(policy: Policy, folder: Path, told: list[Event], kept: Path | None = None) -> Model:
    place = Kept(folder=kept, tell=told.append)
    return load_policy(policy, folder, adapter_seed=3, device="cpu", kept=place)


def assert_same_weights(first: Model, second: Model) -> None:
    """Of the layers in 4 bits: their buffers."""
    for (name, one), (_, other) in zip(
        first.network.named_buffers(), second.network.named_buffers(), strict=True
    ):
        assert torch.equal(one, other), name


def _kept_events(told: list[Event]) -> Iterator[tuple[str, Any]]:
    for event in told:
        if isinstance(event, WeightsQuantised):
            yield "from cache", event.is_from_cache
        if isinstance(event, Warned):
            yield "warned", event.code


def test_the_next_start_finds_the_quantised_weights(
    quantised: Policy, tiny_model: Path, tmp_path: Path
) -> None:
    told: list[Event] = []
    first, second = (_loaded(quantised, tiny_model, told, tmp_path) for _ in range(2))
    assert [*_kept_events(told)] == [("from cache", False), ("from cache", True)]
    assert_same_weights(first, second)
    assert [path.name for path in (tmp_path / "1").iterdir() if path.name[0] != "."] == [
        quantised.weights_sha256
    ]


@pytest.mark.parametrize("damage", ["bytes", "manifest", "file"])
def test_damaged_quantised_weights_are_made_again(
    quantised: Policy, tiny_model: Path, tmp_path: Path, damage: str
) -> None:
    told: list[Event] = []
    intact = _loaded(quantised, tiny_model, told, tmp_path)
    entry = tmp_path / "1" / quantised.weights_sha256
    if damage == "bytes":
        content = bytearray((entry / "nf4.safetensors").read_bytes())
        content[-1] ^= 1
        (entry / "nf4.safetensors").write_bytes(content)
    else:
        (entry / {"manifest": "manifest.json", "file": "nf4.safetensors"}[damage]).unlink()
    mended = _loaded(quantised, tiny_model, told, tmp_path)
    _loaded(quantised, tiny_model, told, tmp_path)
    assert [*_kept_events(told)] == [
        ("from cache", False),
        ("warned", "quantised_weights_damaged"),
        ("from cache", False),
        ("from cache", True),
    ]
    assert_same_weights(mended, intact)


def test_a_place_that_cannot_be_written_costs_time_only(
    quantised: Policy, tiny_model: Path, tmp_path: Path
) -> None:
    told: list[Event] = []
    (tmp_path / "file").touch()
    _loaded(quantised, tiny_model, told, tmp_path / "file")
    assert [*_kept_events(told)] == [
        ("warned", "quantised_weights_not_kept"),
        ("from cache", False),
    ]


def _changed(folder: Path, into: Path, change: Callable[[dict[str, Tensor]], None]) -> Path:
    changed = Path(shutil.copytree(folder, into / "changed"))
    tensors = load_file(changed / "model.safetensors")
    change(tensors)
    save_file(tensors, changed / "model.safetensors", metadata={"format": "pt"})
    return changed


PROJECTION = "model.layers.0.mlp.up_proj.weight"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda tensors: tensors.pop(PROJECTION), f"missing keys: {PROJECTION}"),
        (lambda tensors: tensors.update(other=torch.ones(1)), "unexpected keys: other"),
        (
            lambda tensors: tensors.update({PROJECTION: torch.ones(3, 32)}),
            f"mismatched keys: {PROJECTION}",
        ),
        (lambda tensors: tensors[PROJECTION].fill_(torch.nan), "not finite"),
        (lambda tensors: tensors[PROJECTION].fill_(torch.inf), "not finite"),
        (
            lambda tensors: tensors.update({"lm_head.weight": torch.ones(34, 32)}),
            "lm_head.weight differs from the embedding",
        ),
    ],
)
def test_weights_that_are_not_the_models_are_refused(
    quantised: Policy,
    tiny_model: Path,
    tmp_path: Path,
    change: Callable[[dict[str, Tensor]], None],
    reason: str,
) -> None:
    folder = _changed(tiny_model, tmp_path, change)
    with pytest.raises(WrongCall, match=reason):
        _loaded(quantised, folder, [])


def test_a_second_copy_of_the_embedding_is_taken_for_it(
    quantised: Policy, tiny_model: Path, tmp_path: Path
) -> None:
    def untie(tensors: dict[str, Tensor]) -> None:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()

    folder = _changed(tiny_model, tmp_path, untie)
    model = _loaded(quantised, folder, [])
    assert model.head_VH is model.network.get_input_embeddings().weight
