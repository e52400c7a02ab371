"""Models with NF4 weights: what they compute, what training moves, and what a resumed run finds."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import peft
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

from miniverl.engine import loop, lora, models, nf4
from miniverl.engine import recipe as recipes
from miniverl.engine.decoder import Decoder
from miniverl.engine.digest import weights_sha256
from miniverl.engine.events import Event, to_dict
from miniverl.engine.models import Model, load_policy
from miniverl.engine.packed import pack
from miniverl.engine.problem import WrongCall
from miniverl.engine.quantised import Kept
from miniverl.engine.recipe import Policy, Recipe, Teacher
from miniverl.engine.score import bins, response_scores
from miniverl.engine.teachers import load_frozen
from miniverl.engine.trajectory import Trajectory

pytestmark = pytest.mark.slow

RUN = """
import sys
from pathlib import Path
from miniverl.engine import loop, recipe
model, train, validation, kept, *outs = map(Path, sys.argv[1:])
inputs = loop.Inputs(model=model, train=train, validation=validation, quantised=kept)
for out in outs:
    told = recipe.loads((out / "recipe.json").read_text(), "test")
    loop.run(told, inputs, out, device="cpu", threads=1, resume=True, listen=lambda event: None)
assert not {"bitsandbytes", "peft"} & sys.modules.keys(), "they take seconds to import"
"""
FILES = ("trajectories.jsonl", "metrics.jsonl", "adapter/adapter_model.safetensors")


@pytest.fixture(scope="module")
def recipe(tiny_recipe: Recipe) -> Recipe:
    """QLoRA: the tiny recipe over weights of 4 bits."""
    return replace(tiny_recipe, policy=replace(tiny_recipe.policy, quantization="nf4"))


@pytest.fixture
def policy(recipe: Recipe, tiny_model: Path) -> Model:
    """With an adapter that changes something."""
    policy = _loaded(recipe.policy, tiny_model, [])
    generator = torch.Generator().manual_seed(4)
    for name, parameter in policy.trained().items():
        if name.endswith("lora_B"):
            nn.init.normal_(parameter, std=0.3, generator=generator)
    return policy


def _loaded(recipe: Policy, folder: Path, told: list[Event], kept: Path | None = None) -> Model:
    place = Kept(folder=kept, tell=told.append)
    return load_policy(recipe, folder, adapter_seed=3, device="cpu", kept=place)


def _plain(folder: Path, into: Path) -> Path:
    """The model with the values of its quantised weights, in float32."""
    plain = Path(shutil.copytree(folder, into / "plain"))
    tensors = load_file(plain / "model.safetensors")
    for name, each in tensors.items():
        if name.endswith("_proj.weight"):
            tensors[name] = nf4.Nf4Weight(each.shape, nf4.quantise(each)).dense(torch.float32)
    save_file(tensors, plain / "model.safetensors", metadata={"format": "pt"})
    return plain


def _trajectories() -> list[Trajectory]:
    return [
        Trajectory(
            prompt_id=prompt,
            sample=sample,
            prompt_tokens=(1, 14, 5 + prompt),
            response_tokens=(7, 9, 4 + sample)[: 2 + sample],
            is_finished=True,
            response="",
            reward=0.0,
        )
        for prompt in range(2)
        for sample in range(2)
    ]


def _scored(model: Model) -> Tensor:
    (members,) = bins(_trajectories(), 1000)
    scores = response_scores(model, pack(members, model.device), temperature=1.0, entropy="told")
    return torch.cat(scores)


def _gradients(model: Model) -> dict[str, Tensor]:
    model.network.zero_grad()
    _scored(model).sum().backward()
    return {name: each.grad for name, each in model.trained().items() if each.grad is not None}


@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_scores_and_gradients_are_those_over_the_values(
    recipe: Recipe, tiny_model: Path, tmp_path: Path, dtype: recipes.Dtype, checkpoints: bool
) -> None:
    part = replace(recipe.policy, compute_dtype=dtype, checkpoints_activations=checkpoints)
    quantised = _loaded(part, tiny_model, [])
    plain = _loaded(replace(part, quantization=None), _plain(tiny_model, tmp_path), [])
    for model in (quantised, plain):
        for name, parameter in model.trained().items():
            if name.endswith("lora_B"):
                parameter.data.fill_(0.1)
    assert torch.equal(_scored(quantised), _scored(plain))
    expected = _gradients(plain)
    found = _gradients(quantised)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize("config", [LlamaConfig, Qwen2Config, Qwen3Config])
@pytest.mark.parametrize("is_tied", [False, True])
def test_every_family_loads_all_but_embeddings_norms_biases_and_head(
    recipe: Recipe,
    make_model: Callable[..., Path],
    tmp_path: Path,
    config: type,
    is_tied: bool,
) -> None:
    folder = make_model(config, tie_word_embeddings=is_tied)
    model = _loaded(replace(recipe.policy, lora=None), folder, [])
    plain = _loaded(replace(recipe.policy, lora=None, quantization=None), folder, [])
    quantised = {name for name, _ in nf4.nf4_weights(model.network)}
    assert quantised == {
        name for name, _ in plain.network.named_parameters() if "_proj.weight" in name
    }
    assert model.num_parameters() == plain.num_parameters()
    kept = dict(model.network.named_parameters())
    expected = {n: e for n, e in plain.network.named_parameters() if n not in quantised}
    assert kept.keys() == expected.keys()
    assert all(torch.equal(kept[name], expected[name]) for name in kept)
    assert not any(each.requires_grad for each in kept.values())
    of_values = _loaded(
        replace(recipe.policy, lora=None, quantization=None), _plain(folder, tmp_path), []
    )
    tokens = torch.tensor([[1, 14, 5, 2, 7]])
    assert torch.equal(model.network(tokens).logits, of_values.network(tokens).logits)


def test_only_the_adapter_is_trained_and_the_reference_is_the_quantised_model(
    recipe: Recipe, policy: Model, tiny_model: Path
) -> None:
    assert {name.rpartition(".")[2] for name in policy.trained()} == {"lora_A", "lora_B"}
    base = _loaded(replace(recipe.policy, lora=None), tiny_model, [])
    with models.reference_of(policy)() as reference:
        assert torch.equal(_scored(reference), _scored(base))
    assert not torch.equal(_scored(policy), _scored(base))


@pytest.mark.parametrize("weights", [None, "nf4"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sampling_over_a_merged_copy_or_over_4_bits_is_near_to_scoring(
    policy: Model, weights: recipes.Quantization | None, dtype: torch.dtype
) -> None:
    decoder = Decoder(policy, dtype, weights)
    decoder.load()
    decoder.open(2, 32)
    (prefilled,) = decoder.prefill([(1, 14, 5)])
    for row in range(2):
        decoder.enter(prefilled, row)
    logits_BV = torch.stack([prefilled.logits_V, decoder.step(torch.tensor([7, 9]))[0]])
    expected = policy.network(torch.tensor([[1, 14, 5, 7]])).logits[0, -2:]
    tolerance = 1e-4 if dtype == torch.float32 else 0.2
    torch.testing.assert_close(logits_BV.float(), expected, atol=tolerance, rtol=tolerance)


def test_a_row_sampled_over_4_bits_does_not_depend_on_the_others(policy: Model) -> None:
    def logits_of_first(rows: int) -> Tensor:
        decoder = Decoder(policy, torch.float32, "nf4")
        decoder.load()
        decoder.open(rows, 32)
        (prefilled,) = decoder.prefill([(1, 14, 5)])
        for row in range(rows):
            decoder.enter(prefilled, row)
        return decoder.step(torch.arange(4, 4 + rows))[0]

    assert torch.equal(logits_of_first(2), logits_of_first(5))


def test_sampling_over_4_bits_holds_adapter_head_and_norms_alone(policy: Model) -> None:
    merged, beside = (Decoder(policy, torch.bfloat16, weights) for weights in (None, "nf4"))
    merged.load()
    beside.load()
    # bfloat16: embedding 34 x 32 and the head as often; 4 norms and the last one of 32; adapters of rank 2.
    adapters = 2 * 2 * (2 * 64 + 2 * 48 + 3 * 80)
    assert beside.num_bytes == 2 * (2 * 34 * 32 + 5 * 32 + adapters)
    assert merged.num_bytes == 2 * (2 * 34 * 32 + 5 * 32 + 2 * (2 * 1024 + 2 * 512 + 3 * 1536))


def _run(recipe: Recipe, inputs: loop.Inputs, out: Path, listen: Callable[[Event], None]) -> None:
    out.mkdir(exist_ok=True)
    (out / "recipe.json").write_text(recipes.dumps(recipe))
    loop.run(recipe, inputs, out, device="cpu", threads=1, resume=False, listen=listen)


class _Killed(BaseException):
    pass


def test_runs_train_and_a_new_process_goes_on_with_them_to_the_same_bytes(
    recipe: Recipe, tiny_model: Path, tiny_train: Path, tiny_validation: Path, tmp_path: Path
) -> None:
    kept = tmp_path / "kept"
    inputs = loop.Inputs(
        model=tiny_model, train=tiny_train, validation=tiny_validation, quantised=kept
    )

    def kill(event: Event) -> None:
        if to_dict(event).get("phase") == "update" and to_dict(event)["step"] == 3:
            raise _Killed

    ways: dict[str, recipes.Quantization | None] = {"merged": None, "nf4": "nf4"}
    for way, weights in ways.items():
        chosen = replace(recipe, rollout=replace(recipe.rollout, weights=weights))
        told: list[Event] = []
        _run(chosen, inputs, tmp_path / f"straight-{way}", told.append)
        loaded = [to_dict(each) for each in told if each.name == "sampler_loaded"]
        assert [each["weights"] for each in loaded] == [way]
        with pytest.raises(_Killed):
            _run(chosen, inputs, tmp_path / f"broken-{way}", kill)
    paths = [tiny_model, tiny_train, tiny_validation, kept]
    outs = [tmp_path / f"broken-{way}" for way in ways]
    subprocess.run([sys.executable, "-c", RUN, *map(str, paths + outs)], check=True)
    for way in ways:
        straight, broken = tmp_path / f"straight-{way}", tmp_path / f"broken-{way}"
        for name in FILES:
            assert (broken / name).read_bytes() == (straight / name).read_bytes(), name
        first, last = (
            load_file(straight / "checkpoints" / step / "adapter.safetensors")
            for step in ("step-000004", "step-000005")
        )
        assert any(not torch.equal(first[name], last[name]) for name in first)


def test_peft_reads_the_exported_adapter_over_the_values(
    recipe: Recipe, policy: Model, tiny_model: Path, tmp_path: Path
) -> None:
    from miniverl.engine.export import export

    adapter = export(policy, recipe.policy, tmp_path, tiny_model)
    base = AutoModelForCausalLM.from_pretrained(_plain(tiny_model, tmp_path), dtype=torch.float32)
    read = peft.PeftModel.from_pretrained(base, str(adapter))
    tokens = torch.tensor([[1, 14, 5, 2, 7]])
    expected = policy.network(tokens).logits
    torch.testing.assert_close(read(tokens).logits, expected)
    again = load_policy(
        recipe.policy,
        tiny_model,
        adapter_seed=9,
        device="cpu",
        adapter=adapter,
        kept=Kept(folder=None, tell=lambda event: None),
    )
    assert torch.equal(again.network(tokens).logits, expected)


def test_a_teacher_is_quantised_alone(tiny_model: Path) -> None:
    teacher = Teacher(
        key=None, weights_sha256=weights_sha256(tiny_model), dtype="float32", quantization="nf4"
    )
    told: list[Event] = []
    model = load_frozen(teacher, tiny_model, "cpu", Kept(folder=None, tell=told.append))
    assert not model.trained()
    assert [(each.role, each.is_from_cache) for each in told] == [("teacher", False)]  # type: ignore[union-attr]


def test_recipes_without_quantisation_keep_their_digest(recipe: Recipe) -> None:
    plain = json.loads(
        recipes.dumps(replace(recipe, policy=replace(recipe.policy, quantization=None)))
    )
    assert "quantization" not in plain["policy"]
    assert "weights" not in plain["rollout"]
    stated = json.loads(recipes.dumps(recipe))
    assert stated["policy"].pop("quantization") == "nf4"
    assert stated == plain
    assert recipes.loads(recipes.dumps(recipe), "test") == recipe


def test_what_quantisation_needs_is_asked_for(recipe: Recipe) -> None:
    plain = recipes.to_dict(recipe)
    plain["policy"]["lora"] = None
    with pytest.raises(WrongCall, match="nothing would be trained"):
        recipes.from_dict(plain, "test")
    plain = recipes.to_dict(recipe)
    del plain["policy"]["quantization"]
    plain["rollout"]["weights"] = "nf4"
    with pytest.raises(WrongCall, match="not in nf4"):
        recipes.from_dict(plain, "test")


def test_adapters_of_quantised_and_plain_layers_start_alike(
    recipe: Recipe, tiny_model: Path
) -> None:
    quantised = _loaded(recipe.policy, tiny_model, [])
    plain = _loaded(replace(recipe.policy, quantization=None), tiny_model, [])
    one, other = lora.peft_tensors(quantised.network), lora.peft_tensors(plain.network)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
