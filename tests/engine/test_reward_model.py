"""A reward model reads what upstream's does, scores each conversation alone, and scores a whole run."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers.processors import TemplateProcessing
from transformers import AutoModelForSequenceClassification, AutoTokenizer, LlamaConfig

from miniverl.engine import loop
from miniverl.engine.digest import weights_sha256
from miniverl.engine.events import Event, ModelLoaded, StepFinished
from miniverl.engine.inputs import Inputs
from miniverl.engine.models import DTYPES
from miniverl.engine.problem import Refused, WrongCall
from miniverl.engine.recipe import Dtype, Recipe
from miniverl.engine.recipe import RewardModel as RewardModelRecipe
from miniverl.engine.reward import Answer
from miniverl.engine.reward_model import RewardModel
from miniverl.engine.trajectory import Prompt

pytestmark = pytest.mark.slow

EOS = "<|end|>"  # number 3; <|user|> is 1, <|assistant|> 2, a digit is 4 more than it says
SHAPE: dict[str, Any] = {
    "vocab_size": 34,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.4,
    "pad_token_id": 3,
}
COMPARED = ("trajectories.jsonl", "validation.jsonl", "metrics.jsonl", "adapter", "checkpoints")
MESSAGES = ({"role": "user", "content": "1+2="},)
BOTH = "{% for m in messages %}{{ '<|user|>' if m.role == 'user' else '<|assistant|>' }}{{ m.content }}{% endfor %}"


@pytest.fixture(scope="module")
def classifier(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A classifier of our tiny shape, with the policy's tokenizer but for the chat template and what is changed."""

    def make(*, template: str = BOTH, puts_in_front: str | None = None, **changes: Any) -> Path:
        folder = tmp_path_factory.mktemp("classifier")
        with torch.random.fork_rng():
            torch.manual_seed(1)
            config = LlamaConfig(**SHAPE | {"num_labels": 1} | changes)
            AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)
        tokenizer = AutoTokenizer.from_pretrained(tiny_model)
        tokenizer.chat_template = template
        if puts_in_front is not None:
            tokenizer.bos_token = puts_in_front
            number = tokenizer.convert_tokens_to_ids(puts_in_front)
            tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
                single=f"{puts_in_front} $A", special_tokens=[(puts_in_front, number)]
            )
        tokenizer.save_pretrained(folder)
        return folder

    return make


@pytest.fixture(scope="module")
def folder(classifier: Callable[..., Path]) -> Path:
    return classifier()


def loaded(folder: Path, dtype: Dtype = "float32", eos_token: str = EOS) -> RewardModel:
    model = RewardModel(recipe_of(folder, dtype), folder, eos_token=eos_token)
    model.load("cpu")
    return model


def recipe_of(folder: Path, dtype: Dtype = "float32") -> RewardModelRecipe:
    return RewardModelRecipe(weights_sha256=weights_sha256(folder), dtype=dtype)


def prompt(messages: tuple[dict[str, str], ...] = MESSAGES) -> Prompt:
    return Prompt(
        prompt_id=7,
        messages=messages,
        tokens=(1, 5),
        ground_truth=None,
        data_source="here",
        extra={},
    )


def answer(raw_text: str) -> Answer:
    return Answer(text="not read", raw_text=raw_text, num_tokens=1)


def plain_score(folder: Path, tokens: list[int], dtype: Dtype = "float32") -> float:
    """transformers' own classification of these tokens, which it reads at the last one without padding."""
    network = AutoModelForSequenceClassification.from_pretrained(folder, dtype=DTYPES[dtype])
    network.config.pad_token_id = None
    with torch.inference_mode():
        return float(network.eval()(torch.tensor([tokens])).logits[0, -1])


@pytest.mark.parametrize(("dtype", "rounding"), [("float32", 1e-6), ("bfloat16", 1e-2)])
def test_the_score_is_the_raw_logit_at_the_last_token_of_prompt_and_response(
    folder: Path, dtype: Dtype, rounding: float
) -> None:
    # user 1 + 2 = assistant 3
    tokens = [1, 5, 14, 6, 16, 2, 7]
    expected = pytest.approx(plain_score(folder, tokens, dtype), abs=rounding)
    assert loaded(folder, dtype).score(prompt(), answer("3")) == expected


def test_every_end_token_of_the_policy_goes_and_other_special_tokens_stay(folder: Path) -> None:
    read = loaded(folder).tokens(prompt(), answer("3<|end|><|user|>4<|end|>"))
    assert read == [1, 5, 14, 6, 16, 2, 7, 1, 8]


def test_the_last_token_is_read_even_if_it_looks_like_padding(
    classifier: Callable[..., Path],
) -> None:
    ended = classifier(template=BOTH + "<|end|>")
    read = loaded(ended)
    tokens = [1, 5, 14, 6, 16, 2, 7, 3]
    assert read.tokens(prompt(), answer("3")) == tokens
    assert read.score(prompt(), answer("3")) == pytest.approx(plain_score(ended, tokens), abs=1e-6)


def test_a_beginning_token_of_the_template_and_of_the_tokenizer_are_one(
    classifier: Callable[..., Path],
) -> None:
    both = classifier(template="?" + BOTH, puts_in_front="?")
    neither = classifier(puts_in_front="?")
    expected = [0, 1, 5, 14, 6, 16, 2, 7]
    assert loaded(both).tokens(prompt(), answer("3")) == expected
    assert loaded(neither).tokens(prompt(), answer("3")) == expected


def test_a_beginning_token_that_only_the_template_writes_is_lost_as_it_is_upstream(
    classifier: Callable[..., Path],
) -> None:
    folder = classifier()
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"bos_token": "<|user|>"}))
    assert loaded(folder).tokens(prompt(), answer("3")) == [5, 14, 6, 16, 2, 7]


def test_the_whole_conversation_is_read_not_the_last_question_alone(folder: Path) -> None:
    messages = (
        {"role": "user", "content": "1"},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": "3"},
    )
    assert loaded(folder).tokens(prompt(messages), answer("4")) == [1, 5, 2, 6, 1, 7, 2, 8]


def test_no_score_depends_on_what_else_is_scored(folder: Path) -> None:
    texts = ["3", "1234567890" * 4, "", "ab", "3"]
    alone = [loaded(folder).score(prompt(), answer(text)) for text in texts]
    model = loaded(folder)
    together = {text: model.score(prompt(), answer(text)) for text in reversed(texts)}
    assert alone == [together[text] for text in texts]


def test_a_conversation_that_is_longer_than_the_model_reads_is_refused(folder: Path) -> None:
    model = loaded(folder)
    model.score(prompt(), answer("1" * 58))
    with pytest.raises(Refused, match=r"prompt 7 = '65 tokens'.*reads 1 to 64 tokens"):
        model.score(prompt(), answer("1" * 59))


def test_other_weights_than_the_recipe_names_are_refused(
    folder: Path, classifier: Callable[..., Path]
) -> None:
    other = classifier(num_hidden_layers=1)
    with pytest.raises(WrongCall, match=r"reward_model = .* digest") as raised:
        RewardModel(recipe_of(folder), other, eos_token=EOS)
    assert raised.value.problems[0].fix.startswith("Bind the folder of a whole")


def test_a_language_model_is_no_reward_model(tiny_model: Path) -> None:
    with pytest.raises(WrongCall, match=r"reward_model = .*LlamaForCausalLM is not one of"):
        RewardModel(recipe_of(tiny_model), tiny_model, eos_token=EOS)


def test_a_classifier_of_several_classes_is_refused(classifier: Callable[..., Path]) -> None:
    with pytest.raises(WrongCall, match="it has 3 outputs, and a reward is one number"):
        loaded(classifier(num_labels=3))


def test_a_classifier_without_a_head_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    headless = Path(shutil.copytree(tiny_model, tmp_path / "headless"))
    config = json.loads((headless / "config.json").read_text())
    config |= {"architectures": ["LlamaForSequenceClassification"], "num_labels": 1}
    (headless / "config.json").write_text(json.dumps(config))
    with pytest.raises(WrongCall, match=r"reward_model = .*missing keys: score\.weight"):
        loaded(headless)


@pytest.fixture(scope="module")
def inputs(tiny_model: Path, tiny_train: Path, tiny_validation: Path, folder: Path) -> Inputs:
    return Inputs(
        model=tiny_model, train=tiny_train, validation=tiny_validation, reward_model=folder
    )


@pytest.fixture(scope="module")
def scored(tiny_recipe: Recipe, folder: Path) -> Recipe:
    reward = replace(tiny_recipe.reward, scorer="reward_model", model=recipe_of(folder))
    return replace(tiny_recipe, reward=reward)


def _run(
    recipe: Recipe,
    inputs: Inputs,
    out: Path,
    *,
    resume: bool = False,
    listen: Callable[[Event], None] = lambda event: None,
) -> list[Event]:
    events: list[Event] = []

    def heard(event: Event) -> None:
        events.append(event)
        listen(event)

    loop.run(recipe, inputs, out, device="cpu", threads=1, resume=resume, listen=heard)
    return events


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def _files(folder: Path) -> dict[str, bytes]:
    paths = (path for name in COMPARED for path in (folder / name, *(folder / name).rglob("*")))
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths if path.is_file()}


class _Stop(Exception):
    """Ends a run from its listener."""


def test_a_run_takes_every_reward_from_the_model_and_goes_on_to_the_same_bytes(
    scored: Recipe, inputs: Inputs, folder: Path, tmp_path: Path
) -> None:
    straight, stopped = tmp_path / "straight", tmp_path / "stopped"
    events = _run(scored, inputs, straight)
    roles = {event.role: event for event in events if isinstance(event, ModelLoaded)}
    assert roles["reward_model"].trainable_parameters == 0
    assert roles["reward_model"].parameters == loaded(folder).num_parameters()

    model = loaded(folder)
    asked = {number: f"{'ab'[number % 2]}{number}+1=" for number in range(10)}
    for name in ("trajectories.jsonl", "validation.jsonl"):
        rows = _rows(straight / name)
        assert rows
        for row in rows:
            messages = ({"role": "user", "content": asked[row["prompt_id"]]},)
            # Two thirds of the vocabulary are characters: what ends a response is taken off.
            raw = AutoTokenizer.from_pretrained(inputs.model).decode(row["response_tokens"])
            assert row["reward"] == model.score(prompt(messages), answer(raw)), name

    def stop(event: Event) -> None:
        if isinstance(event, StepFinished) and event.step == 3:
            raise _Stop

    with pytest.raises(_Stop):
        _run(scored, inputs, stopped, listen=stop)
    _run(scored, inputs, stopped, resume=True)
    files = _files(straight)
    assert files.keys() == _files(stopped).keys()
    for name, content in _files(stopped).items():
        assert content == files[name], name


def test_a_recipe_with_a_reward_model_needs_one_bound(
    scored: Recipe, inputs: Inputs, tmp_path: Path
) -> None:
    with pytest.raises(WrongCall, match=r"reward_model = None .*none is bound"):
        _run(scored, replace(inputs, reward_model=None), tmp_path / "run")
