"""The layers of the validator: each finding has a code, a place, what was found, what was wanted, and a fix."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from miniverl.bench import failure, privacy
from miniverl.bench import record as records
from miniverl.bench.finding import CODES, Finding
from miniverl.bench.validate import load, validate
from miniverl.compiler.upstream import PINS
from miniverl.compiler.whole import write_json
from miniverl.engine.problem import Refused

Record = dict[str, Any]


@pytest.fixture(scope="module")
def written(example: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Record:
    return dict(example.failed(tmp_path_factory.mktemp("failed")))


@pytest.fixture
def record(written: Record) -> Record:
    return copy.deepcopy(written)


def found(record: Record) -> list[tuple[str, str]]:
    return [(each.code, each.field) for each in validate(record)]


def first(record: Record) -> Finding:
    return validate(record)[0]


def resealed(record: Record) -> Record:
    """What a forger who knows the format would write."""
    return records.seal(record)


def test_a_forged_raw_sample_is_caught_by_what_follows_from_it_after_rehashing(
    record: Record,
) -> None:
    record["launches"][0]["steps"][1]["phases"]["rollout"]["seconds"] = 2.0  # it was 4
    told = first(resealed(record))
    assert (told.code, told.layer) == ("derived_differs", "semantics")
    assert told.field == "/measurements/steady_state_median_seconds/rollout"
    assert (told.value, told.expected) == (4.0, 2.0)
    assert told.fix


@pytest.mark.parametrize(
    ("edit", "code"),
    [
        (lambda r: r.update(schema_version=9), "unknown_version"),
        (lambda r: r.pop("hardware"), "missing_field"),
        (lambda r: r.update(more=1), "unknown_field"),
        (lambda r: r.update(measured_at="today"), "wrong_value"),
        (lambda r: r.update(measured_at="2026-02-30T00:00:00Z"), "no_such_time"),
        (lambda r: r["environment"].update(os="@OS@"), "placeholder"),
        (lambda r: r["launches"][0].update(ordinal=2), "contradiction"),
        (lambda r: r["launches"][0]["steps"][1].update(started_at_seconds=1.0), "clock_order"),
        (lambda r: r["launches"][0]["memory"].update(peak_rss_bytes=1), "memory_order"),
        (
            lambda r: r["launches"][0]["steps"][0]["phases"]["update"].update(tokens=10**6),
            "wrong_count",
        ),
        (lambda r: r["launches"][0]["telemetry"].update(status="invalid"), "wrong_telemetry"),
        (lambda r: r["verl"].update(tag="v9.9.9"), "name_differs"),
        (lambda r: r["inputs"][0].update(pin="none", pin_state="known"), "unknown_pin"),
        (lambda r: r["inputs"][2].update(pin_state="known"), "pin_differs"),
        (lambda r: r.update(reason="It failed at /home/ada/run"), "private_path"),
    ],
)
def test_each_layer_names_its_code(
    record: Record, edit: Callable[[Record], None], code: str
) -> None:
    edit(record)
    assert code in [each for each, _ in found(resealed(record))]


def test_a_changed_block_breaks_its_seal(record: Record) -> None:
    record["findings"] = []
    assert found(record) == [("seal_broken", "/findings")]


def test_known_pins_have_their_digests(record: Record) -> None:
    record["inputs"][2] |= {"pin_state": "known", "sha256": PINS["0.9.0"].tree_sha256}
    assert found(records.complete(record)) == []


def test_a_release_that_is_not_pinned_is_named(record: Record) -> None:
    record["verl"]["commit"] = record["profile_identity"]["upstream_commit"] = "0" * 40
    assert ("unknown_pin", "/verl/commit") in found(resealed(record))


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b'{"a": 1, "a": 2}', "not_strict_json"),
        (b'{"a": NaN}', "not_strict_json"),
        (b"[1]", "no_object"),
        (b'{"a": "\xff"}', "not_utf8"),
    ],
)
def test_what_is_no_strict_json_has_a_code_too(tmp_path: Path, content: bytes, code: str) -> None:
    path = tmp_path / "record.json"
    path.write_bytes(content)
    with pytest.raises(Refused) as refused:
        load(path)
    [told] = refused.value.problems
    assert isinstance(told, Finding)
    assert (told.code, told.layer) == (code, "json")


def test_every_code_has_a_rule_and_a_fix_and_findings_are_plain_json(record: Record) -> None:
    assert all(code.rule and code.fix for code in CODES.values())
    record["models"]["policy"]["lora"] = {"rank": 1}
    [row] = json.loads(json.dumps(failure.plain([first(resealed(record))])))
    assert set(row) == {"code", "expected", "field", "fix", "origin", "reason", "value"}


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("No such file: /home/ada/models/x.safetensors", "private_path"),
        ("see ~/runs/7", "private_path"),
        ("file:///srv/data", "private_path"),
        (r"in C:\Users\ada\run", "private_path"),
        ("/tmp", "private_path"),
        ("by ada@lab.example.org", "private_email"),
        ("token hf_" + "a" * 34, "private_secret"),
        ("https://ada:pa55word@example.org/x", "private_secret"),
        ("WANDB_API_KEY=0123456789", "private_secret"),
        ("card GPU-6d3c1e7a-1f0e-4b57-9e6c-2f4f8f1d2a3b", "private_hardware"),
        ("mac 00:1b:44:11:3a:b7", "private_hardware"),
        ("node7.cluster.local refused", "private_host"),
        ("at 192.168.1.17", "private_host"),
    ],
)
def test_what_is_private_is_found_and_replaced(text: str, code: str) -> None:
    assert [each for each, _ in privacy.private({"message": text})] == [code]
    clean = privacy.scrubbed({"message": text})
    assert list(privacy.private(clean)) == []
    assert "<" in clean["message"]


@pytest.mark.parametrize(
    "text",
    [
        "https://github.com/verl-project/verl",
        "actor_rollout_ref.rollout.n_gpus_per_node/trainer.nnodes",
        "checkpoints/step-000008/adapter.safetensors",
        "nvidia-cublas 13.1.0.3, cudnn 9.20.0.48",
        "Qwen/Qwen3-0.6B@c1899de289a04d12100db370d81485cdf75e47ca",
        "image@sha256:" + "0" * 64,
        "61 tokens/s, 5 and/or 6",
        "response_tokens: 320",
        "Differs from the lock: torch 2.13.0+cpu",
    ],
)
def test_what_tells_nothing_private_stays(text: str) -> None:
    assert list(privacy.private({"message": text})) == []
    assert privacy.scrubbed({"message": text}) == {"message": text}


def test_a_variable_whose_name_says_a_secret_is_found_and_its_value_not_shown() -> None:
    [(code, mistake)] = privacy.private({"environment": {"env": {"HF_TOKEN": "abc"}}})
    assert (code, mistake.found) == ("private_secret", "not shown")
    fine = {"environment": {"env": {"TOKENIZERS_PARALLELISM": "true"}}}
    assert list(privacy.private(fine)) == []


def test_names_of_the_publishing_machine_are_found_as_words() -> None:
    names = {"lovelace": "private_user"}
    told = list(privacy.named({"a": "run of Lovelace", "b": "lovelaces"}, names))
    assert [(code, mistake.field) for code, mistake in told] == [("private_user", "/a")]


def test_a_record_is_written_without_what_its_programs_said_of_the_machine(
    example: ModuleType, tmp_path: Path
) -> None:
    launch = example.launch(
        tmp_path / "straight", example.Plan(to_step=2, dies_in_rollout=True, exit_code=1), 1
    )
    launch["failure"]["message"] = "OSError: no space on /home/ada/run"
    told = example.facts(tmp_path, [launch]) | {
        "status": "failed",
        "reason_code": "crashed",
        "reason": "OSError: no space on /home/ada/run",
        "determinism": dict.fromkeys(
            ("same_process", "new_process", "batch_invariant"), "not_measured"
        ),
    }
    told["resume"] |= {"status": "not_checked", "reason": "The straight launch failed"}
    complete = records.complete(told)
    assert complete["reason"] == "OSError: no space on <path>"
    write_json(tmp_path / "record.json", complete)
    assert load(tmp_path / "record.json")["launches"][0]["failure"]["message"].endswith("<path>")
