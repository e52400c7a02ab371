"""Checkpoints: whole or not there, found again, passed over when broken, refused when they are another run's."""

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from miniverl.engine import checkpoint
from miniverl.engine.checkpoint import Part, State
from miniverl.engine.events import Event, Warned
from miniverl.engine.journal import Log
from miniverl.engine.order import Cursor
from miniverl.engine.problem import Refused

IDENTITY = {"threads": "1", "torch": "2", "engine_sha256": "e"}


def _parameters(value: float) -> dict[str, nn.Parameter]:
    return {
        "a.lora_A": nn.Parameter(torch.full((2, 3), value)),
        "a.lora_B": nn.Parameter(torch.ones(1)),
    }


def _optimizer(parameters: dict[str, nn.Parameter], num_steps: int) -> torch.optim.AdamW:
    optimizer = torch.optim.AdamW(parameters.values(), lr=0.1)
    for step in range(num_steps):
        for parameter in parameters.values():
            parameter.grad = torch.full_like(parameter, step + 1.0)
        optimizer.step()
    return optimizer


def _save(run: Path, step: int, num_optimizer_steps: int = 1) -> Path:
    """A checkpoint that binds a log of `step` lines."""
    run.mkdir(exist_ok=True)
    log = Log(run / "metrics.jsonl")
    log.append({"step": step})
    parameters = _parameters(float(step))
    optimizer = _optimizer(parameters, num_optimizer_steps)
    state = State(
        step=step,
        cursor=Cursor(epoch=0, index=2 * step),
        policy_steps=step - 1,
        critic_steps=step,
        kl_coefficient=0.25,
        logs={"metrics.jsonl": log.sync()},
        recipe_sha256="r",
        identity=IDENTITY,
        accepted_changes=(),
    )
    parts = {"policy": Part(parameters, optimizer)}
    return checkpoint.save(run / "checkpoints", parts, state)


def _newest(run: Path, **changes: Any) -> tuple[str, State, list[Event]]:
    heard: list[Event] = []
    arguments = {"recipe_sha256": "r", "identity": IDENTITY} | changes
    found = checkpoint.newest(run, warn=heard.append, **arguments)
    assert found is not None
    return found[0].name, found[1], heard


def test_a_checkpoint_comes_back_as_it_was(tmp_path: Path) -> None:
    path = _save(tmp_path, 4, num_optimizer_steps=3)
    name, state, heard = _newest(tmp_path)
    assert (name, state.step, state.cursor, heard) == (
        "step-000004",
        4,
        Cursor(epoch=0, index=8),
        [],
    )
    assert (state.policy_steps, state.critic_steps, state.kl_coefficient) == (3, 4, 0.25)
    expected = _parameters(4.0)
    expected_optimizer = _optimizer(expected, 3)
    parameters = _parameters(0.0)
    places = [each.data_ptr() for each in parameters.values()]
    optimizer = _optimizer(parameters, 0)
    checkpoint.restore(path, {"policy": Part(parameters, optimizer)})
    assert [each.data_ptr() for each in parameters.values()] == places
    for key, parameter in parameters.items():
        assert torch.equal(parameter, expected[key])
        ours, theirs = optimizer.state[parameter], expected_optimizer.state[expected[key]]
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[kind], theirs[kind]) for kind in theirs)
    # and goes on as it would have
    for some, some_optimizer in ((parameters, optimizer), (expected, expected_optimizer)):
        for parameter in some.values():
            parameter.grad = torch.full_like(parameter, -0.3)
        some_optimizer.step()
    assert all(torch.equal(parameters[key], expected[key]) for key in expected)


def test_before_the_first_optimizer_step_there_are_no_moments(tmp_path: Path) -> None:
    path = _save(tmp_path, 1, num_optimizer_steps=0)
    parameters = _parameters(0.0)
    optimizer = _optimizer(parameters, 0)
    checkpoint.restore(path, {"policy": Part(parameters, optimizer)})
    assert not optimizer.state


def test_equal_states_make_equal_bytes(tmp_path: Path) -> None:
    first, second = _save(tmp_path / "a", 1), _save(tmp_path / "b", 1)
    for path in first.iterdir():
        assert path.read_bytes() == (second / path.name).read_bytes()


def test_a_run_without_checkpoint_has_none(tmp_path: Path) -> None:
    assert checkpoint.newest(tmp_path, "r", IDENTITY, lambda event: None) is None


def test_a_checkpoint_that_is_being_written_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _save(tmp_path, 1)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", killed)
        with pytest.raises(KeyboardInterrupt):
            _save(tmp_path, 2)
    assert _newest(tmp_path)[0] == "step-000001"
    _save(tmp_path, 2)
    assert _newest(tmp_path)[0] == "step-000002"


def _flip_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


DAMAGES: dict[str, Callable[[Path], None]] = {
    "content of optimizer.safetensors changed": lambda path: _flip_a_byte(
        path / "optimizer.safetensors"
    ),
    "adapter.safetensors is missing": lambda path: (path / "adapter.safetensors").unlink(),
    "manifest cannot be read: ": lambda path: (path / "manifest.json").unlink(),
    "manifest cannot be read: Expecting": lambda path: _write(path / "manifest.json", "{"),
    "manifest does not name": lambda path: _write(path / "manifest.json", "[]"),
    "does not name optimizer.safetensors, state.json": lambda path: _write(
        path / "manifest.json", "{}"
    ),
    "content of state.json changed": lambda path: _write(path / "state.json", "{}"),
}


def _write(path: Path, text: str) -> None:
    path.write_text(text)


@pytest.mark.parametrize("expected", DAMAGES)
def test_a_broken_checkpoint_is_passed_over_with_a_warning(tmp_path: Path, expected: str) -> None:
    _save(tmp_path, 1)
    DAMAGES[expected](_save(tmp_path, 2))
    name, state, heard = _newest(tmp_path)
    assert (name, state.step) == ("step-000001", 1)
    (warned,) = heard
    assert isinstance(warned, Warned)
    assert expected in warned.message
    assert [path.name for path in checkpoint.newer_than(tmp_path / "checkpoints", 1)] == [
        "step-000002"
    ]


def test_a_checkpoint_of_another_version_is_refused_with_that_reason(tmp_path: Path) -> None:
    path = _save(tmp_path, 1)
    state = json.loads((path / "state.json").read_text())
    state["learning_rate_step"] = state.pop("policy_steps")
    _write(path / "state.json", json.dumps(state))
    manifest = json.loads((path / "manifest.json").read_text())
    content = (path / "state.json").read_bytes()
    manifest["state.json"] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    _write(path / "manifest.json", json.dumps(manifest))
    with pytest.raises(Refused, match=r"another version .* which knew .*learning_rate_step"):
        _newest(tmp_path)


def test_a_checkpoint_whose_log_is_gone_is_passed_over(tmp_path: Path) -> None:
    _save(tmp_path, 1)
    _save(tmp_path, 2)
    log = tmp_path / "metrics.jsonl"
    log.write_bytes(log.read_bytes()[:-3])
    name, _, heard = _newest(tmp_path)
    assert name == "step-000001"
    assert "metrics.jsonl does not begin with the 22 bytes" in str(heard)


def test_a_run_whose_checkpoints_are_all_broken_is_refused(tmp_path: Path) -> None:
    for step in (1, 2):
        (_save(tmp_path, step) / "manifest.json").unlink()
    with pytest.raises(Refused) as caught:
        _newest(tmp_path)
    assert [problem.value for problem in caught.value.problems] == ["step-000002", "step-000001"]


def test_every_field_that_differs_from_the_run_is_named(tmp_path: Path) -> None:
    _save(tmp_path, 1)
    with pytest.raises(Refused) as caught:
        _newest(tmp_path, recipe_sha256="other", identity={**IDENTITY, "threads": "2"})
    assert [(problem.field, problem.value) for problem in caught.value.problems] == [
        ("recipe_sha256", "other"),
        ("threads", "2"),
    ]


def test_the_newest_are_kept_whichever_process_wrote_them(tmp_path: Path) -> None:
    for step in (1, 2, 10):
        _save(tmp_path, step)
    folder = tmp_path / "checkpoints"
    checkpoint.retain(folder, None)
    assert len(list(folder.iterdir())) == 3
    checkpoint.retain(folder, 2)
    assert sorted(path.name for path in folder.iterdir()) == ["step-000002", "step-000010"]
    assert _newest(tmp_path)[0] == "step-000010"


def test_the_manifest_names_every_other_file(tmp_path: Path) -> None:
    path = _save(tmp_path, 1)
    manifest = json.loads((path / "manifest.json").read_text())
    assert set(manifest) == {"adapter.safetensors", "optimizer.safetensors", "state.json"}
    assert (
        checkpoint.num_bytes(path)
        == sum(each["bytes"] for each in manifest.values())
        + (path / "manifest.json").stat().st_size
    )


def test_whole_weights_are_not_called_an_adapter(tmp_path: Path) -> None:
    state = replace(_newest_state(tmp_path), step=9)
    parameters = {"norm.weight": nn.Parameter(torch.ones(2))}
    parts = {"policy": Part(parameters, _optimizer(parameters, 0))}
    path = checkpoint.save(tmp_path / "checkpoints", parts, state)
    assert (path / "model.safetensors").is_file()


def test_every_part_has_files_of_its_own_and_comes_back_from_them(tmp_path: Path) -> None:
    def parts(policy: float, critic: float, num_steps: int) -> dict[str, Part]:
        some, other = _parameters(policy), {"score.weight": nn.Parameter(torch.full((3,), critic))}
        return {
            "policy": Part(some, _optimizer(some, num_steps)),
            "critic": Part(other, _optimizer(other, 2 * num_steps)),
        }

    saved = parts(1.0, 5.0, 1)
    path = checkpoint.save(tmp_path / "checkpoints", saved, _newest_state(tmp_path / "other"))
    assert {each.name for each in path.glob("*.safetensors")} == {
        "adapter.safetensors",
        "optimizer.safetensors",
        "critic.safetensors",
        "critic_optimizer.safetensors",
    }
    restored = parts(0.0, 0.0, 0)
    checkpoint.restore(path, restored)
    for role, part in restored.items():
        for name, parameter in part.parameters.items():
            expected = saved[role].parameters[name]
            assert torch.equal(parameter, expected)
            ours = part.optimizer.state[parameter]
            theirs = saved[role].optimizer.state[expected]
            assert all(torch.equal(ours[kind], theirs[kind]) for kind in theirs)


def _newest_state(run: Path) -> State:
    _save(run, 1)
    return _newest(run)[1]
