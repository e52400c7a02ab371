"""The critic: a backbone and a head, loaded as upstream loads it, and its values against transformers' own."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForTokenClassification, LlamaConfig, Qwen2Config, Qwen3Config

from miniverl.engine import models
from miniverl.engine.critic import check_critic, load_critic
from miniverl.engine.digest import weights_sha256
from miniverl.engine.models import Model
from miniverl.engine.packed import pack
from miniverl.engine.problem import Refused, WrongCall
from miniverl.engine.recipe import Critic
from miniverl.engine.trajectory import Trajectory
from miniverl.engine.value import response_values, values


def _trajectory(prompt_id: int, prompt: list[int], response: list[int], sample: int) -> Trajectory:
    return Trajectory(
        prompt_id=prompt_id,
        sample=sample,
        prompt_tokens=tuple(prompt),
        response_tokens=tuple(response),
        is_finished=True,
        response="",
        reward=0.0,
    )


TRAJECTORIES = (
    _trajectory(0, [1, 14, 5, 7, 2], [4, 9, 3], 0),
    _trajectory(0, [1, 14, 5, 7, 2], [6], 1),
    _trajectory(1, [1, 15, 2], [6, 8, 8, 5, 3], 0),
)


def _transformers_values(network: Any) -> list[Tensor]:
    """One row at a time: the classifier's output from the last prompt token to the last but one."""
    rows = []
    for each in TRAJECTORIES:
        logits_1T1 = network(torch.tensor([each.prompt_tokens + each.response_tokens])).logits
        rows.append(logits_1T1[0, len(each.prompt_tokens) - 1 : -1, 0])
    return rows


def _with_head(folder: Path, to: Path, **head: Tensor) -> Path:
    """The model in `folder`, its weights with a head beside them."""
    shutil.copytree(folder, to)
    tensors = load_file(to / "model.safetensors")
    named = {f"score.{name}": tensor for name, tensor in head.items()}
    save_file(tensors | named, to / "model.safetensors", metadata={"format": "pt"})
    return to


def _load(recipe: Critic, folder: Path, seed: int = 3) -> Model:
    return load_critic(recipe, folder, seed=seed, device="cpu")


@pytest.mark.parametrize("config_class", [LlamaConfig, Qwen2Config, Qwen3Config])
@pytest.mark.parametrize("is_adapted", [True, False])
def test_values_and_gradients_equal_those_of_transformers_token_classifier(
    make_model: Callable[..., Path],
    tiny_critic: Critic,
    config_class: type,
    is_adapted: bool,
    tmp_path: Path,
) -> None:
    head = {"weight": torch.linspace(-1, 1, 32)[None], "bias": torch.tensor([0.25])}
    folder = _with_head(make_model(config_class), tmp_path / "critic", **head)
    recipe = tiny_critic if is_adapted else replace(tiny_critic, lora=None)
    critic = _load(recipe, folder)
    theirs = AutoModelForTokenClassification.from_pretrained(
        folder, num_labels=1, dtype=torch.float32
    ).eval()
    for ours, expected in zip(
        values(critic, TRAJECTORIES, micro_batch_tokens=9),
        _transformers_values(theirs),
        strict=True,
    ):
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)
    own_P = response_values(critic, pack(TRAJECTORIES, critic.device))
    weights_P = torch.linspace(-1, 1, len(own_P))
    parameters = list(critic.trained().values())
    by_own = torch.autograd.grad((own_P * weights_P).sum(), parameters, materialize_grads=True)
    theirs_P = torch.cat(_transformers_values(critic.network))
    expected_by = torch.autograd.grad(
        (theirs_P * weights_P).sum(), parameters, materialize_grads=True
    )
    assert any(each.abs().max() > 0.01 for each in by_own)
    for own, other in zip(by_own, expected_by, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-5)


def test_values_do_not_depend_on_what_stands_beside_a_trajectory(
    tiny_critic: Critic, tiny_model: Path
) -> None:
    critic = _load(tiny_critic, tiny_model)
    together = values(critic, TRAJECTORIES, micro_batch_tokens=100)
    assert [each.shape for each in together] == [(3,), (1,), (5,)]
    assert all(not each.requires_grad for each in together)
    for budget in (1, 12):
        apart = values(critic, TRAJECTORIES, micro_batch_tokens=budget)
        for one, other in zip(together, apart, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_a_new_head_is_drawn_by_its_seed_and_by_no_global_generator(
    tiny_critic: Critic, tiny_model: Path
) -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = _load(tiny_critic, tiny_model).network.score
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    again = _load(tiny_critic, tiny_model).network.score
    other = _load(tiny_critic, tiny_model, seed=4).network.score
    assert torch.equal(first.weight, again.weight)
    assert not torch.equal(first.weight, other.weight)
    assert first.bias.tolist() == [0.0]
    assert 0.2 < float(first.weight.detach().std()) < 0.8  # initializer_range is 0.4


def test_a_head_that_the_folder_holds_is_taken_and_a_missing_bias_is_zero(
    tiny_critic: Critic, tiny_model: Path, tmp_path: Path
) -> None:
    weight = torch.arange(32.0)[None]
    folder = _with_head(tiny_model, tmp_path / "critic", weight=weight)
    head = _load(tiny_critic, folder).network.score
    assert torch.equal(head.weight, weight)
    assert head.bias.tolist() == [0.0]


def test_a_head_of_two_outputs_is_refused(
    tiny_critic: Critic, tiny_model: Path, tmp_path: Path
) -> None:
    folder = _with_head(tiny_model, tmp_path / "critic", weight=torch.zeros(2, 32))
    with pytest.raises(WrongCall, match=r"mismatched keys.*score\.weight") as caught:
        _load(tiny_critic, folder)
    assert [each.field for each in caught.value.problems] == ["critic"]


def test_an_untied_language_head_is_left_behind(
    tiny_critic: Critic, make_model: Callable[..., Path]
) -> None:
    folder = make_model(LlamaConfig, tie_word_embeddings=False)
    assert "lm_head.weight" in load_file(folder / "model.safetensors")
    names = dict(_load(replace(tiny_critic, lora=None), folder).network.named_parameters())
    assert "lm_head.weight" not in names


def test_with_an_adapter_the_head_is_trained_whole_and_nothing_else_is(
    tiny_critic: Critic, tiny_model: Path
) -> None:
    names = _load(tiny_critic, tiny_model).trained()
    others = [name for name in names if not name.endswith((".lora_A", ".lora_B"))]
    assert others == ["score.weight", "score.bias"]
    assert len(names) == 2 + 2 * 2 * 7  # A and B of seven layers, twice
    whole = _load(replace(tiny_critic, lora=None), tiny_model)
    assert whole.trained().keys() == dict(whole.network.named_parameters()).keys()


def test_a_folder_that_is_not_the_recipes_critic_is_refused_with_every_reason(
    tiny_critic: Critic, tiny_model: Path, tmp_path: Path
) -> None:
    tokenizer = models.load_tokenizer(tiny_model)
    check_critic(tiny_critic, tiny_model, tokenizer)
    folder = tmp_path / "other"
    shutil.copytree(tiny_model, folder)
    text = (folder / "tokenizer.json").read_text("utf-8")
    (folder / "tokenizer.json").write_text(text.replace('"a"', '"A"'), "utf-8")
    other = replace(tiny_critic, weights_sha256="0" * 64)
    with pytest.raises(WrongCall) as caught:
        check_critic(other, folder, tokenizer)
    assert [each.field for each in caught.value.problems] == ["critic", "critic"]
    assert weights_sha256(tiny_model) in caught.value.problems[0].reason
    assert "1 of the policy's tokens" in caught.value.problems[1].reason


def test_a_critic_needs_no_chat_template(
    tiny_critic: Critic, tiny_model: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(tiny_model, tmp_path / "plain"))
    (folder / "chat_template.jinja").unlink()
    check_critic(tiny_critic, folder, models.load_tokenizer(tiny_model))


def test_a_layer_that_the_critic_lacks_is_named_as_the_critics(
    tiny_critic: Critic, tiny_model: Path
) -> None:
    assert tiny_critic.lora is not None
    adapter = replace(tiny_critic.lora, target_modules=("q_proj", "score"))
    with pytest.raises(Refused) as caught:
        _load(replace(tiny_critic, lora=adapter), tiny_model)
    (problem,) = caught.value.problems
    assert (problem.field, problem.value) == ("recipe.critic.lora.target_modules", "score")


@pytest.mark.parametrize("kind", ["TokenClassification", "SequenceClassification", "Whisper"])
def test_classifiers_of_the_same_families_are_critics_too(
    tiny_critic: Critic, tiny_model: Path, tmp_path: Path, kind: str
) -> None:
    folder = tmp_path / "classifier"
    shutil.copytree(tiny_model, folder)
    config = json.loads((folder / "config.json").read_text("utf-8"))
    config["architectures"] = [f"LlamaFor{kind}"]
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    tokenizer = models.load_tokenizer(tiny_model)
    if kind != "Whisper":
        check_critic(tiny_critic, folder, tokenizer)
        return
    with pytest.raises(WrongCall, match="its architecture LlamaForWhisper is not one of"):
        check_critic(tiny_critic, folder, tokenizer)
