"""Checkpoints: all that a run needs to go on as if it had never stopped, each whole or not there.

    checkpoints/step-000004/
        adapter.safetensors | model.safetensors   the policy's trained parameters
        optimizer.safetensors                     <parameter>.exp_avg, .exp_avg_sq, .step
        critic.safetensors                        the critic's, where the recipe has one
        critic_optimizer.safetensors
        state.json                                step, cursor, log offsets, recipe digest, identity
        manifest.json                             bytes and SHA-256 of the others

There is no generator state: all noise is a function of the recipe's seeds (see engine/seeds.py).
"""

import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from miniverl.engine import disk
from miniverl.engine.events import Downshifted, Event, Warned
from miniverl.engine.identity import Change, changes
from miniverl.engine.journal import Offset, is_bound
from miniverl.engine.order import Cursor
from miniverl.engine.problem import Problem, Refused
from miniverl.engine.whole import remove_whole, whole_folder

_LATER = {"downshifts"}  # fields of a state that older checkpoints lack
_ALWAYS = {"optimizer.safetensors", "state.json"}
_NAME = re.compile(r"step-(\d{6,})")
_NEW_RUN = "start a new run in another folder"


@dataclass(frozen=True, slots=True)
class Part:
    """One trained model: its parameters by name, and what moves them."""

    parameters: Mapping[str, nn.Parameter]
    optimizer: torch.optim.Optimizer


@dataclass(frozen=True, kw_only=True, slots=True)
class AcceptedChange:
    """A field of the identity that the user let differ when the run went on behind `step`."""

    step: int
    name: str
    then: str | None
    now: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """Everything of a run that is not a tensor. `logs` says how far each bound log went.

    `policy_steps` and `critic_steps` count the steps in which each was trained, as their learning rates do:
    the policy's stands still while the critic warms up.
    """

    step: int
    cursor: Cursor
    policy_steps: int
    critic_steps: int
    kl_coefficient: float | None  # of KL in the reward, in the step to come
    logs: Mapping[str, Offset]
    recipe_sha256: str
    identity: Mapping[str, str]
    accepted_changes: tuple[AcceptedChange, ...]  # of all resumes so far, in their order
    downshifts: tuple[Downshifted, ...] = ()  # for lack of memory, in their order


def save(folder: Path, parts: Mapping[str, Part], state: State) -> Path:
    """Write the checkpoint of `state.step` under `folder`; returns its path. `parts` by role, "policy" among them.

    A thread hashes each file while it goes to the disk, which takes as long as hashing it.
    """
    path = folder / f"step-{state.step:06d}"
    with whole_folder(path) as beside, ThreadPoolExecutor(max_workers=1) as hashing:
        facts = {}
        for role, part in parts.items():
            tensors = (_contiguous(part.parameters), _optimizer_tensors(part))
            for name, written in zip(_file_names(role, part), tensors, strict=True):
                disk.write_tensors(beside / name, written, metadata=None)
                facts[name] = hashing.submit(_file_facts, beside / name)
                disk.sync(beside / name)
        disk.write(beside / "state.json", _json(asdict(state)).encode())
        facts["state.json"] = hashing.submit(_file_facts, beside / "state.json")
        manifest = {name: each.result() for name, each in facts.items()}
        disk.write(beside / "manifest.json", _json(manifest).encode())
    return path


def restore(path: Path, parts: Mapping[str, Part]) -> None:
    """Put a checkpoint's tensors into parameters and optimizers. The parameters stay where they are."""
    for role, part in parts.items():
        _restore(path, role, part)


def _restore(path: Path, role: str, part: Part) -> None:
    parameters_name, optimizer_name = _file_names(role, part)
    saved, moments = load_file(path / parameters_name), load_file(path / optimizer_name)
    assert saved.keys() == part.parameters.keys(), "the recipe's digest fixes the parameters"
    for name, parameter in part.parameters.items():
        parameter.data.copy_(saved[name])
        if f"{name}.step" in moments:
            part.optimizer.state[parameter] = {
                "step": moments[f"{name}.step"].clone(),
                "exp_avg": torch.empty_like(parameter).copy_(moments[f"{name}.exp_avg"]),
                "exp_avg_sq": torch.empty_like(parameter).copy_(moments[f"{name}.exp_avg_sq"]),
            }


def newest(
    run_folder: Path,
    recipe_sha256: str,
    identity: Mapping[str, str],
    warn: Callable[[Event], None],
    allow_changed: Collection[str] = (),
) -> tuple[Path, State] | None:
    """The checkpoint to go on from; None where the run has none yet.

    The newest one that is whole and whose logs are still there; `warn` hears of those passed over. Raises
    Refused when no checkpoint can be used, or when the run was another recipe's, or another identity's in more
    than the fields named in `allow_changed`.
    """
    problems: list[Problem] = []
    for path in reversed(list(_steps(run_folder / "checkpoints"))):
        reason = _damage(path) or _lost_log(path, run_folder)
        if reason is None:
            state = _state(path)
            _require_same(state, recipe_sha256, identity, allow_changed, path)
            for problem in problems:
                warn(Warned(code="checkpoint_unusable", message=str(problem)))
            return path, state
        problems.append(_unusable(path, reason))
    if problems:
        raise Refused(problems)
    return None


def newer_than(folder: Path, step: int) -> list[Path]:
    """The checkpoints of later steps: those that a resumed run passed over."""
    return [path for path in _steps(folder) if _step(path) > step]


def retain(folder: Path, keep: int | None) -> None:
    """Remove all but the newest `keep` checkpoints, whichever process wrote them. None keeps all."""
    paths = list(_steps(folder))
    for path in paths[: 0 if keep is None else -keep]:
        remove_whole(path)


def num_bytes(path: Path) -> int:
    return sum(each.stat().st_size for each in path.iterdir())


def _steps(folder: Path) -> Iterator[Path]:
    """Oldest first."""
    found = folder.iterdir() if folder.exists() else iter(())
    yield from sorted(filter(_is_step, found), key=_step)


def _is_step(path: Path) -> bool:
    return _NAME.fullmatch(path.name) is not None and path.is_dir()


def _step(path: Path) -> int:
    match = _NAME.fullmatch(path.name)
    assert match is not None
    return int(match[1])


def _file_names(role: str, part: Part) -> tuple[str, str]:
    """Where a part's parameters are, and where its optimizer is."""
    if role != "policy":
        return f"{role}.safetensors", f"{role}_optimizer.safetensors"
    is_adapter = all(name.endswith((".lora_A", ".lora_B")) for name in part.parameters)
    return "adapter.safetensors" if is_adapter else "model.safetensors", "optimizer.safetensors"


def _contiguous(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().contiguous() for name, tensor in tensors.items()}


def _optimizer_tensors(part: Part) -> dict[str, Tensor]:
    """Empty before the first optimizer step."""
    return {
        f"{name}.{kind}": tensor.contiguous()
        for name, parameter in part.parameters.items()
        for kind, tensor in part.optimizer.state.get(parameter, {}).items()
    }


def _file_facts(path: Path) -> dict[str, int | str]:
    return {"bytes": path.stat().st_size, "sha256": _sha256(path)}


def _damage(path: Path) -> str | None:
    """Why the checkpoint is not what was written; None if it is."""
    manifest_path = path / "manifest.json"
    try:
        manifest = json.loads(manifest_path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        return f"its manifest cannot be read: {error}"
    if not isinstance(manifest, dict) or not manifest.keys() >= _ALWAYS:
        return f"its manifest does not name {', '.join(sorted(_ALWAYS))}"
    for name, expected in manifest.items():
        file = path / name
        if not file.is_file():
            return f"{name} is missing"
        try:
            found = _file_facts(file)
        except OSError as error:
            return f"{name} cannot be read: {error}"
        if expected != found:
            return f"the content of {name} changed"
    written = json.loads((path / "state.json").read_text("utf-8")).keys()
    if written | _LATER != {field.name for field in fields(State)}:
        return f"another version of miniverl wrote it, which knew {', '.join(sorted(written))}"
    return None


def _lost_log(path: Path, run_folder: Path) -> str | None:
    for name, offset in _state(path).logs.items():
        if not is_bound(run_folder / name, offset):
            return f"{name} does not begin with the {offset.bytes} bytes it had then"
    return None


def _state(path: Path) -> State:
    plain = json.loads((path / "state.json").read_text("utf-8"))
    return State(
        step=plain["step"],
        cursor=Cursor(**plain["cursor"]),
        policy_steps=plain["policy_steps"],
        critic_steps=plain["critic_steps"],
        kl_coefficient=plain["kl_coefficient"],
        logs={name: Offset(**offset) for name, offset in plain["logs"].items()},
        recipe_sha256=plain["recipe_sha256"],
        identity=plain["identity"],
        accepted_changes=tuple(AcceptedChange(**each) for each in plain["accepted_changes"]),
        downshifts=tuple(Downshifted(**each) for each in plain.get("downshifts", ())),
    )


def _require_same(
    state: State,
    recipe_sha256: str,
    identity: Mapping[str, str],
    allow_changed: Collection[str],
    path: Path,
) -> None:
    run = path.parent.parent
    problems = []
    if state.recipe_sha256 != recipe_sha256:
        fix = f"Resume it with the recipe that it has, or {_NEW_RUN}"
        problems.append(_differs("recipe_sha256", state.recipe_sha256, recipe_sha256, run, fix))
    problems += [
        _differs(each.name, each.then, each.now, run, _mended(each))
        for each in changes(state.identity, identity)
        if each.accepted_as not in allow_changed
    ]
    if problems:
        raise Refused(problems)


def _differs(name: str, then: str | None, now: str | None, run: Path, fix: str) -> Problem:
    reason = f"the run in {run} had {'none' if then is None else then}"
    return Problem(field=name, value=now, origin="this process", reason=reason, fix=fix)


def _mended(change: Change) -> str:
    if change.accepted_as is None:
        return f"Bind the file as it was, or {_NEW_RUN}"
    option = f"--allow-changed {change.accepted_as}"
    return f"Resume where it is as it was, or give {option}: equal bytes are then not promised"


def _unusable(path: Path, reason: str) -> Problem:
    return Problem(
        field="checkpoint",
        value=path.name,
        origin=str(path.parent),
        reason=reason,
        fix=f"Restore the file from a copy, or {_NEW_RUN}",
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _json(value: object) -> str:
    return json.dumps(value, indent=1, sort_keys=True, allow_nan=False) + "\n"
