"""What is sampled beside a response changes none of its tokens and none of its log-probs, to the byte.

For every family, in both types that oneDNN packs, with an adapter merged and without; prompts of many lengths.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, Qwen2Config, Qwen3Config

from miniverl.engine.decoder import Decoder
from miniverl.engine.models import load_policy
from miniverl.engine.recipe import Recipe
from miniverl.engine.sample import Response, Sampling, generate
from miniverl.engine.trajectory import Prompt

pytestmark = pytest.mark.slow

# Below and above the columns that attention reads at a time.
LENGTHS = (2, 33, 12, 64)
SAMPLING = Sampling(
    samples_per_prompt=3, max_tokens=10, temperature=1.0, top_p=0.9, top_k=8, end_tokens=(3,)
)
# More than the tiny shape's few lanes, so that other kernels are met: several tiles, and a rest.
WIDE = {
    "hidden_size": 192,
    "intermediate_size": 328,
    "head_dim": 64,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "max_position_embeddings": 128,
    "initializer_range": 0.1,
}


def _prompts() -> list[Prompt]:
    random = torch.Generator().manual_seed(1)
    return [
        Prompt(
            prompt_id=number,
            messages=(),
            tokens=tuple(torch.randint(4, 34, (length,), generator=random).tolist()),
            ground_truth=None,
            data_source="tiny",
            extra={},
        )
        for number, length in enumerate(LENGTHS)
    ]


def _decoder(recipe: Recipe, folder: Path, *, has_adapter: bool, dtype: torch.dtype) -> Decoder:
    policy = recipe.policy if has_adapter else replace(recipe.policy, lora=None)
    model = load_policy(policy, folder, adapter_seed=3, device="cpu")
    random = torch.Generator().manual_seed(4)
    for name, parameter in model.trained().items():
        if name.endswith("lora_B"):
            torch.nn.init.normal_(parameter, std=0.3, generator=random)
    decoder = Decoder(model, dtype)
    decoder.load()
    return decoder


def _sampled(
    decoder: Decoder, prompts: Sequence[Prompt], sampling: Sampling = SAMPLING, **limits: int
) -> dict[tuple[int, int], Response]:
    found = generate(decoder, prompts, sampling, seed=5, policy_version=0, **limits)
    return {(each.prompt.prompt_id, each.sample): each for each in found}


def _assert_equal_in_every_batch(decoder: Decoder) -> None:
    prompts = _prompts()
    expected = _sampled(decoder, prompts)
    assert len({len(each.tokens) for each in expected.values()}) > 1, "rows that end at other times"
    found = [
        _sampled(decoder, prompts[::-1]),
        *(_sampled(decoder, prompts, max_rows=rows) for rows in (2, 7)),
        _sampled(decoder, prompts[3:4]),
        _sampled(decoder, prompts[1:2], replace(SAMPLING, samples_per_prompt=1)),
    ]
    for way in found:
        for row, response in way.items():
            assert response == expected[row]


@pytest.mark.parametrize(
    ("has_adapter", "dtype"),
    [(True, torch.float32), (True, torch.bfloat16), (False, torch.float32)],
)
@pytest.mark.parametrize("config_class", [LlamaConfig, Qwen2Config, Qwen3Config])
def test_batch_order_and_refill_change_no_token_and_no_log_prob(
    make_model: Callable[..., Path],
    tiny_recipe: Recipe,
    config_class: type,
    has_adapter: bool,
    dtype: torch.dtype,
) -> None:
    folder = make_model(config_class, max_position_embeddings=128)
    decoder = _decoder(tiny_recipe, folder, has_adapter=has_adapter, dtype=dtype)
    _assert_equal_in_every_batch(decoder)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nor_do_they_in_wider_layers(
    make_model: Callable[..., Path], tiny_recipe: Recipe, dtype: torch.dtype
) -> None:
    folder = make_model(LlamaConfig, **WIDE)
    decoder = _decoder(tiny_recipe, folder, has_adapter=True, dtype=dtype)
    _assert_equal_in_every_batch(decoder)
