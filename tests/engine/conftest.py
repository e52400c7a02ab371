"""A language model of a few thousand weights, its tokenizer, prompts and a recipe: a whole run in a second."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import WordLevel
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

from miniverl.engine import loop
from miniverl.engine import recipe as recipes
from miniverl.engine.algorithm import Aggregation
from miniverl.engine.digest import rows_sha256, weights_sha256
from miniverl.engine.inputs import Inputs
from miniverl.engine.models import Model, load_policy
from miniverl.engine.recipe import Critic, Recipe
from miniverl.engine.rows import read_rows

SPECIAL = ("?", "<|user|>", "<|assistant|>", "<|end|>")
CHARACTERS = "0123456789+-= abcdefghijklmnop"
TEMPLATE = (
    "{% for message in messages %}<|user|>{{ message.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def settings_restored() -> Iterator[None]:
    """A run sets torch's process-wide switches; other tests must not see them."""
    was = torch.are_deterministic_algorithms_enabled()
    yield
    torch.use_deterministic_algorithms(was)
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama with 2 layers, 2 of 4 heads for keys and values, tied embeddings, and one token per character."""
    folder = tmp_path_factory.mktemp("tiny")
    save_model(LlamaConfig(**tiny_shape(), tie_word_embeddings=True), folder)
    return folder


@pytest.fixture(scope="session")
def tiny_train(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_prompts(tmp_path_factory.mktemp("train") / "train.parquet", range(10))


@pytest.fixture(scope="session")
def tiny_validation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_prompts(tmp_path_factory.mktemp("validation") / "validation.parquet", range(3))


@pytest.fixture(scope="session")
def tiny_recipe(tiny_model: Path, tiny_train: Path, tiny_validation: Path) -> Recipe:
    return make_recipe(tiny_model, tiny_train, tiny_validation)


@pytest.fixture(scope="session")
def tiny_inputs(tiny_model: Path, tiny_train: Path, tiny_validation: Path) -> Inputs:
    return Inputs(model=tiny_model, train=tiny_train, validation=tiny_validation)


@pytest.fixture(scope="session")
def tiny_run(
    tiny_recipe: Recipe, tiny_inputs: Inputs, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The folder of tiny_recipe's run, which nothing interrupted. Nobody changes it."""
    folder = tmp_path_factory.mktemp("straight") / "run"
    was = torch.are_deterministic_algorithms_enabled()
    loop.run(
        tiny_recipe,
        tiny_inputs,
        folder,
        device="cpu",
        threads=1,
        resume=False,
        listen=lambda event: None,
    )
    torch.use_deterministic_algorithms(was)
    return folder


@pytest.fixture(scope="session")
def tiny_critic(tiny_recipe: Recipe) -> Critic:
    return make_critic(tiny_recipe)


@pytest.fixture
def tiny_policy(tiny_model: Path, tiny_recipe: Recipe) -> Model:
    """With an adapter that changes something: as loaded, B is zero."""
    policy = load_policy(tiny_recipe.policy, tiny_model, adapter_seed=3, device="cpu")
    generator = torch.Generator().manual_seed(4)
    for name, parameter in policy.trained().items():
        if name.endswith("lora_B"):
            torch.nn.init.normal_(parameter, std=0.3, generator=generator)
    return policy


@pytest.fixture(scope="session")
def make_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A folder with a model of the given transformers config class and our tiny shape."""

    def make(config_class: type, **changes: Any) -> Path:
        folder = tmp_path_factory.mktemp(config_class.__name__)
        save_model(config_class(**tiny_shape() | changes), folder)
        return folder

    return make


def make_recipe(model: Path, train: Path, validation: Path) -> Recipe:
    """GRPO with an adapter: 5 steps of 2 prompts and 3 samples, a checkpoint every other step."""
    plain: dict[str, Any] = {
        "schema_version": 2,
        "seeds": {"sampling": 3, "data": 2, "parameters": 3, "mini_batches": 42},
        "data": {
            "train_sha256": rows_sha256(read_rows(train)),
            "validation_sha256": rows_sha256(read_rows(validation)),
            "prompt_field": "prompt",
            "max_prompt_tokens": 12,
            "drops_overlong": True,
            "chat_template_arguments": {},
            "max_rows": None,
            "shuffles": True,
            "first_permutation": 2,
            "prompts_per_step": 2,
            "prompts_per_draw": 2,
        },
        "policy": {
            "weights_sha256": weights_sha256(model),
            "parameter_dtype": "float32",
            "compute_dtype": "float32",
            "lora": {
                "rank": 2,
                "alpha": 4.0,
                "target_modules": ["all-linear"],
                "excluded_modules": [],
            },
            "checkpoints_activations": False,
        },
        "rollout": {
            "samples_per_prompt": 3,
            "max_response_tokens": 6,
            "temperature": 1.0,
            "top_p": 1.0,
            "top_k": 0,
            "ignores_eos": False,
            "dtype": "float32",
        },
        "validation": {
            "before_training": True,
            "every_steps": 2,
            "samples_per_prompt": 1,
            "temperature": 0.0,
            "top_p": 1.0,
            "top_k": 0,
        },
        "group_filter": None,
        "reward": {
            "scorer": "last_number",
            "arguments": {},
            "function": None,
            "model": None,
            "overlong_penalty": None,
        },
        "kl_reward": None,
        "rollout_correction": None,
        "advantage": {
            "estimator": "grpo",
            "divides_by_std": True,
            "gamma": None,
            "gae_lambda": None,
        },
        "policy_loss": {
            "name": "vanilla",
            "arguments": {"clip_low": 0.2, "clip_high": 0.2, "dual_clip": 3.0},
            "aggregation": {"mode": "token-mean", "horizon": None},
            "entropy_coefficient": 0.01,
        },
        "kl_loss": {"estimator": "k3", "coefficient": 0.1},
        "distillation": None,
        "critic": None,
        "optimizer": {
            "name": "adamw",
            "learning_rate": 0.02,
            "betas": [0.9, 0.999],
            "epsilon": 1e-8,
            "weight_decay": 0.01,
            "max_gradient_norm": 1.0,
        },
        "learning_rate_schedule": {
            "kind": "constant",
            "warmup_steps": 0,
            "total_steps": 5,
            "min_ratio": 0.0,
            "num_cycles": 0.5,
            "zero_indexed": True,
        },
        "update": {
            "prompts_per_mini_batch": 1,
            "epochs": 2,
            "shuffles": True,
            "micro_batch_tokens": 32,
        },
        "steps": {"num_steps": 5, "num_epochs": 9, "checkpoint_every": 2, "keep_checkpoints": 2},
    }
    return recipes.from_dict(plain, "conftest")


def make_critic(recipe: Recipe) -> Critic:
    """The policy's backbone with an adapter, trained faster and in other mini-batches than the policy."""
    return Critic(
        weights_sha256=recipe.policy.weights_sha256,
        parameter_dtype="float32",
        compute_dtype="float32",
        lora=recipe.policy.lora,
        checkpoints_activations=False,
        value_clip=0.5,
        aggregation=Aggregation(mode="token-mean", horizon=None),
        optimizer=replace(recipe.optimizer, learning_rate=0.05),
        learning_rate_schedule=replace(recipe.learning_rate_schedule, warmup_steps=2),
        update=replace(recipe.update, prompts_per_mini_batch=2, micro_batch_tokens=24),
        mini_batch_seed=7,
        warmup_steps=2,
    )


def tiny_shape() -> dict[str, Any]:
    return {
        "vocab_size": len(SPECIAL) + len(CHARACTERS),
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 64,
        "initializer_range": 0.4,
        "bos_token_id": 3,
        "eos_token_id": 3,
        "pad_token_id": None,  # its embedding would be zero
    }


def save_model(config: Any, folder: Path) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = AutoModelForCausalLM.from_config(config)
    network.save_pretrained(folder)
    _tokenizer().save_pretrained(folder)


def _tokenizer() -> PreTrainedTokenizerFast:
    vocabulary = {token: number for number, token in enumerate((*SPECIAL, *CHARACTERS))}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token=SPECIAL[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token=SPECIAL[0],
        eos_token=SPECIAL[3],
        pad_token=SPECIAL[3],
        additional_special_tokens=list(SPECIAL[1:3]),
        chat_template=TEMPLATE,
    )


def write_prompts(path: Path, numbers: range) -> Path:
    rows = [
        {
            "data_source": "tiny",
            "prompt": [{"role": "user", "content": f"{'ab'[number % 2]}{number}+1="}],
            "ability": "arithmetic",
            "reward_model": {"style": "rule", "ground_truth": str((number + 1) % 10)},
            "extra_info": {"index": number},
        }
        for number in numbers
    ]
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path
