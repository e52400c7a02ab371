"""Loading a policy, its reference and its tokenizer from a folder, and what is refused."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from miniverl.engine import models
from miniverl.engine.models import Model, load_policy, reference_of
from miniverl.engine.problem import CannotHere, WrongCall
from miniverl.engine.recipe import Recipe

TOKENS = torch.tensor([[1, 14, 5, 2, 7], [1, 15, 9, 2, 3]])


def _logits(model: Model) -> torch.Tensor:
    logits_BTV: torch.Tensor = model.network(TOKENS, use_cache=False).logits
    return logits_BTV


def _copy(folder: Path, into: Path) -> Path:
    return Path(shutil.copytree(folder, into / "model"))


def _change_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def _reasons(folder: Path) -> list[str]:
    with pytest.raises(WrongCall) as caught:
        models.check_folder(folder)
    return [problem.reason for problem in caught.value.problems]


def test_an_adapted_policy_trains_the_adapter_only(tiny_model: Path, tiny_recipe: Recipe) -> None:
    policy = load_policy(tiny_recipe.policy, tiny_model, adapter_seed=3, device="cpu")
    assert {name.rpartition(".")[2] for name in policy.trained()} == {"lora_A", "lora_B"}
    # 2 layers of: q and o 32+32, k and v 32+16, gate, up and down 32+48, each times rank 2
    assert sum(each.numel() for each in policy.trained().values()) == 2 * 2 * (
        2 * 64 + 2 * 48 + 3 * 80
    )


def test_parameters_of_the_model_do_not_count_the_adapter(
    tiny_model: Path, tiny_recipe: Recipe
) -> None:
    whole = replace(tiny_recipe.policy, lora=None)
    adapted = load_policy(tiny_recipe.policy, tiny_model, adapter_seed=3, device="cpu")
    plain = load_policy(whole, tiny_model, adapter_seed=3, device="cpu")
    # embeddings 34 x 32 (tied), per layer 32*32*2 + 32*16*2 + 3*32*48 and two norms, one last norm
    expected = 34 * 32 + 2 * (2 * 1024 + 2 * 512 + 3 * 1536 + 64) + 32
    assert adapted.num_parameters() == plain.num_parameters() == expected
    assert sum(each.numel() for each in plain.trained().values()) == expected


def test_the_reference_of_an_adapted_policy_is_the_model_without_adapter(
    tiny_model: Path, tiny_recipe: Recipe, tiny_policy: Model
) -> None:
    whole = replace(tiny_recipe.policy, lora=None)
    plain = load_policy(whole, tiny_model, adapter_seed=0, device="cpu")
    adapted_BTV = _logits(tiny_policy)
    with reference_of(tiny_policy)() as reference:
        reference_BTV = _logits(reference)
    assert torch.equal(reference_BTV, _logits(plain))
    assert not torch.equal(adapted_BTV, reference_BTV)
    assert torch.equal(_logits(tiny_policy), adapted_BTV)


def test_the_reference_of_a_whole_policy_stays_while_the_policy_moves(
    tiny_model: Path, tiny_recipe: Recipe
) -> None:
    policy = load_policy(
        replace(tiny_recipe.policy, lora=None), tiny_model, adapter_seed=0, device="cpu"
    )
    before_BTV = _logits(policy)
    reference = reference_of(policy)
    for parameter in policy.trained().values():
        parameter.data.mul_(1.1)
    with reference() as model:
        assert torch.equal(_logits(model), before_BTV)
        assert not model.trained()
    assert not torch.equal(_logits(policy), before_BTV)


def test_every_missing_part_of_a_folder_is_named_at_once(tmp_path: Path) -> None:
    reasons = _reasons(tmp_path)
    assert len(reasons) == 3
    for part in ("config.json", "*.safetensors", "tokenizer.json"):
        assert any(part in reason for reason in reasons), part


@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
@pytest.mark.parametrize(("text", "expected"), [("{", "not JSON"), ("[]", "holds no object")])
def test_a_config_that_is_no_json_object_is_refused(
    tiny_model: Path, tmp_path: Path, name: str, text: str, expected: str
) -> None:
    folder = _copy(tiny_model, tmp_path)
    (folder / name).write_text(text)
    (reason,) = _reasons(folder)
    assert f"its {name}" in reason
    assert expected in reason


@pytest.mark.parametrize("named", ["</s>", [1, None], True])
def test_an_end_token_that_is_no_number_is_refused(
    tiny_model: Path, tmp_path: Path, named: object
) -> None:
    folder = _copy(tiny_model, tmp_path)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": named}))
    (reason,) = _reasons(folder)
    assert "no token number" in reason


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"architectures": ["BertForMaskedLM"]}, "architecture BertForMaskedLM"),
        ({"final_logit_softcapping": 30.0}, "it bends its logits"),
        ({"quantization_config": {}}, "quantised"),
        ({"attention_dropout": 0.1}, "dropout"),
        ({"use_sliding_window": True}, "sliding window"),
    ],
)
def test_a_model_we_would_train_wrongly_is_refused(
    tiny_model: Path, tmp_path: Path, changes: dict[str, Any], expected: str
) -> None:
    folder = _copy(tiny_model, tmp_path)
    _change_config(folder, **changes)
    (reason,) = _reasons(folder)
    assert expected in reason


def test_weights_that_lack_a_tensor_are_refused(
    tiny_model: Path, tiny_recipe: Recipe, tmp_path: Path
) -> None:
    folder = _copy(tiny_model, tmp_path)
    _change_config(folder, num_hidden_layers=3)
    with pytest.raises(WrongCall) as caught:
        load_policy(tiny_recipe.policy, folder, adapter_seed=0, device="cpu")
    assert "missing keys" in caught.value.problems[0].reason


def test_weights_of_another_shape_are_named(
    tiny_model: Path, tiny_recipe: Recipe, tmp_path: Path
) -> None:
    folder = _copy(tiny_model, tmp_path)
    _change_config(folder, intermediate_size=40)
    with pytest.raises(WrongCall) as caught:
        load_policy(tiny_recipe.policy, folder, adapter_seed=0, device="cpu")
    (reason,) = [problem.reason for problem in caught.value.problems]
    assert reason.startswith("mismatched keys: ")
    assert "model.layers.0.mlp.up_proj.weight" in reason


def test_a_tokenizer_without_chat_template_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    folder = _copy(tiny_model, tmp_path)
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(WrongCall, match="no chat template"):
        models.load_tokenizer(folder)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_tokenizer_that_cannot_be_read_is_refused(
    tiny_model: Path, tmp_path: Path, name: str
) -> None:
    folder = _copy(tiny_model, tmp_path)
    (folder / name).write_text("{")
    with pytest.raises(WrongCall, match="its tokenizer cannot be read"):
        models.load_tokenizer(folder)


def test_responses_end_at_the_tokens_of_tokenizer_and_generation_config(
    tiny_model: Path, tmp_path: Path
) -> None:
    folder = _copy(tiny_model, tmp_path)
    tokenizer = models.load_tokenizer(folder)
    path = folder / "generation_config.json"
    path.unlink(missing_ok=True)
    assert models.end_tokens(tokenizer, folder) == (3,)
    path.write_text('{"eos_token_id": [2, 3]}')
    assert models.end_tokens(tokenizer, folder) == (2, 3)
    path.write_text('{"eos_token_id": null}')
    assert models.end_tokens(tokenizer, folder) == (3,)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has what the test lacks")
def test_a_cuda_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(CannotHere, match="sees no CUDA device"):
        models.require_device("cuda")
