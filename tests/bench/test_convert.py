"""GGUF to a Hugging Face folder: the same bytes every time, nothing of the libraries, and a model that answers."""

import hashlib
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import gguf
import numpy
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from miniverl.bench.disk import file_sha256
from miniverl.bench.fetch import fetch
from miniverl.bench.gguf import content_sha256, fill, wrong_content
from miniverl.bench.pin import GgufPin, pin
from miniverl.compiler.upstream import Wheel, quiet
from miniverl.engine.problem import CannotHere, Refused

pytestmark = pytest.mark.slow

HIDDEN, HEADS, MIDDLE = 64, 2, 64
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *map(chr, range(97, 123)), "ab"]
NORM = numpy.ones(HIDDEN, numpy.float32)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A one-layer Llama whose output projection is quantised, as GGUF."""
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("Somebody's Tiny")
    writer.add_context_length(64)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(1)
    writer.add_feed_forward_length(MIDDLE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 3, 3, *[1] * 27])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template("{% for message in messages %}{{ message['content'] }}{% endfor %}")
    random = numpy.random.default_rng(0)
    shapes = {
        "attn_q": (HIDDEN, HIDDEN),
        "attn_k": (HIDDEN, HIDDEN),
        "attn_v": (HIDDEN, HIDDEN),
        "ffn_gate": (MIDDLE, HIDDEN),
        "ffn_up": (MIDDLE, HIDDEN),
        "ffn_down": (HIDDEN, MIDDLE),
    }
    writer.add_tensor("token_embd.weight", _normal(random, (len(TOKENS), HIDDEN)))
    for name, shape in shapes.items():
        writer.add_tensor(f"blk.0.{name}.weight", _normal(random, shape))
    quantised = gguf.quantize(_output_projection(), gguf.GGMLQuantizationType.Q4_1)
    writer.add_tensor(
        "blk.0.attn_output.weight", quantised, raw_dtype=gguf.GGMLQuantizationType.Q4_1
    )
    for name in ("blk.0.attn_norm.weight", "blk.0.ffn_norm.weight", "output_norm.weight"):
        writer.add_tensor(name, NORM)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _normal(random: numpy.random.Generator, shape: tuple[int, int]) -> numpy.ndarray:
    return random.standard_normal(shape).astype(numpy.float32)


def _output_projection() -> numpy.ndarray:
    """0 to 15 in every block of 32: what 4 bits, a scale of 1 and a minimum of 0 hold exactly."""
    return numpy.tile(numpy.arange(16, dtype=numpy.float32), HIDDEN * HIDDEN // 16).reshape(
        HIDDEN, HIDDEN
    )


def _converted(gguf_file: Path, folder: Path) -> Path:
    folder.mkdir()
    command = [sys.executable, "-P", "-m", "miniverl.bench.convert", str(gguf_file), str(folder)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    subprocess.run(command, env=environment, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def folder(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _converted(tiny, tmp_path_factory.mktemp("converted") / "one")


def test_two_processes_write_the_same_bytes(tiny: Path, folder: Path, tmp_path: Path) -> None:
    again = _converted(tiny, tmp_path / "two")
    one = {path.name: path.read_bytes() for path in folder.iterdir()}
    two = {path.name: path.read_bytes() for path in again.iterdir()}
    assert one == two
    assert set(one) >= {"config.json", "model.safetensors", "tokenizer.json"}


def test_quantised_blocks_become_the_numbers_that_they_stand_for(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    found = weights["model.layers.0.self_attn.o_proj.weight"]
    assert found.dtype == torch.float32
    assert torch.equal(found, torch.from_numpy(_output_projection()))


def test_no_file_tells_which_library_wrote_it_or_where(folder: Path) -> None:
    for path in folder.glob("*.json"):
        text = path.read_text()
        assert "version" not in text.replace('"version": "1.0"', ""), path.name
        assert "Tiny" not in text
        assert str(folder.parent) not in text
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o644}


def test_the_layout_of_a_json_file_does_not_count(tmp_path: Path) -> None:
    one, two, other = (tmp_path / f"{name}.json" for name in ("one", "two", "other"))
    one.write_text('{"a": 1, "b": [2.0]}')
    two.write_text('{\n "b": [2],\n "a": 1\n}\n')
    other.write_text('{"a": 1, "b": [3]}')
    assert content_sha256(one) == content_sha256(two) != content_sha256(other)


def test_each_file_with_another_content_is_named(folder: Path) -> None:
    chosen = pin("smollm2-135m-instruct")
    assert isinstance(chosen, GgufPin)
    right = {path.name: content_sha256(path) for path in folder.iterdir()}
    del right["model.safetensors"]
    changed = replace(chosen, files={**right, "config.json": "0" * 64, "vocab.json": "1" * 64})
    fields = [problem.field for problem in wrong_content(changed, folder)]
    assert fields == ["model.safetensors", "config.json", "vocab.json"]
    del right["config.json"]
    (extra,) = wrong_content(replace(chosen, files=right), folder)[1:]
    assert (extra.field, extra.value) == ("config.json", "a file")


def _packaged(content: bytes, member_sha256: str, cache: Path) -> GgufPin:
    """The default model's pin over a wheel that holds `content`; the wheel is in the cache already."""
    chosen = pin("smollm2-135m-instruct")
    assert isinstance(chosen, GgufPin)
    wheel = cache / "wheels" / "tiny-1.0-py3-none-any.whl"
    wheel.parent.mkdir(parents=True)
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny/tiny.gguf", content)
    file = Wheel(
        name="tiny",
        version="1.0",
        file=wheel.name,
        bytes=wheel.stat().st_size,
        sha256=file_sha256(wheel),
    )
    return replace(chosen, wheel=file, member="tiny/tiny.gguf", member_sha256=member_sha256)


def test_another_gguf_in_the_package_is_refused_by_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINIVERL_CACHE", str(tmp_path))
    found = hashlib.sha256(b"other").hexdigest()
    folder = tmp_path / "arriving"
    with pytest.raises(Refused) as caught:
        fill(_packaged(b"other", "0" * 64, tmp_path), folder, quiet)
    (problem,) = caught.value.problems
    assert problem.field == "tiny.gguf"
    assert problem.reason.endswith(f"expected {'0' * 64}, found {found}")
    assert {path.name for path in tmp_path.iterdir()} == {"wheels"}


def test_a_failed_conversion_ends_with_the_librarys_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINIVERL_CACHE", str(tmp_path))
    broken = _packaged(b"no GGUF", hashlib.sha256(b"no GGUF").hexdigest(), tmp_path)
    folder = tmp_path / "arriving"
    folder.mkdir()
    with pytest.raises(CannotHere) as caught:
        fill(broken, folder, quiet)
    (problem,) = caught.value.problems
    assert problem.reason.startswith("the conversion ended with 1; its last words: ")
    assert "Error" in problem.reason
    assert {path.name for path in tmp_path.iterdir()} == {"arriving", "wheels"}


@pytest.fixture(scope="module")
def smollm2() -> Path:
    return fetch(["smollm2-135m-instruct"], quiet)["smollm2-135m-instruct"]


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Beside other work two threads wait for each other longer than they compute."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
def test_the_pinned_model_answers_with_sense(smollm2: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    model = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32)
    answers = {
        "What is the capital of France?": "The capital of France is Paris.",
        "What is 7 + 5? Answer with the number only.": "7 + 5 = 12.",
    }
    for question, answer in answers.items():
        prompt = tokenizer.apply_chat_template(
            [{"role": "user", "content": question}],
            add_generation_prompt=True,
            return_tensors="pt",
            return_dict=True,
        )
        tokens = model.generate(**prompt, max_new_tokens=16, do_sample=False)[0]
        said = tokens[prompt["input_ids"].shape[1] :]
        assert tokenizer.decode(said, skip_special_tokens=True) == answer
        assert said[-1] == tokenizer.eos_token_id == tokenizer.pad_token_id


def test_the_pinned_models_config_is_the_published_architecture(smollm2: Path) -> None:
    config = json.loads((smollm2 / "config.json").read_text())
    assert config["model_type"] == "llama"
    assert config["tie_word_embeddings"]
    shape = ("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads")
    assert [config[name] for name in shape] == [30, 576, 9, 3]
