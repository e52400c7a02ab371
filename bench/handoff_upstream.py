"""Whether upstream itself accepts a launch: its own composition, validation and dataclasses, in its own process.

    python handoff_upstream.py < request.json > answer.json

Run by file name, in an interpreter that has verl and need not have miniverl; nothing of ours is imported here.
    {"config_name", "overrides": [text]}  ->  {"verl": version, "steps": [{"step", "is_accepted", "reason"}]}

`is_accepted` is null where the interpreter lacks a package that upstream asks for there.
"""

import contextlib
import importlib.metadata
import json
import os
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

# Dataclasses that upstream's workers are built from; the model's reads its folder and its tokenizer too.
_SECTIONS = (
    "actor_rollout_ref.model",
    "actor_rollout_ref.actor",
    "actor_rollout_ref.rollout",
    "algorithm",
)


def main() -> None:
    request = json.load(sys.stdin)
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # upstream prints
    steps: list[dict[str, Any]] = []
    seen = {"verl": _version(), "steps": steps}
    if seen["verl"] is not None:
        os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", CUDA_VISIBLE_DEVICES="")
        _judge(request, steps)
    json.dump(seen, answer)
    answer.flush()


def _version() -> str | None:
    try:
        return importlib.metadata.version("verl")
    except importlib.metadata.PackageNotFoundError:
        return None


def _judge(request: dict[str, Any], steps: list[dict[str, Any]]) -> None:
    from hydra import compose, initialize_config_module
    from omegaconf import OmegaConf

    config: Any = None

    def composed() -> None:
        nonlocal config
        with initialize_config_module("verl.trainer.config", version_base=None):
            config = compose(request["config_name"], request["overrides"])
        OmegaConf.resolve(config)

    def validated() -> None:
        needs = import_module("verl.trainer.ppo.utils")
        check = import_module("verl.utils.config").validate_config
        check(config, needs.need_reference_policy(config), needs.need_critic(config))

    def instantiated(section: str) -> None:
        build = import_module("verl.utils.config").omega_conf_to_dataclass
        build(OmegaConf.select(config, section))

    if not _tried("compose", composed, steps):
        return
    _tried("validate_config", validated, steps)
    sections = list(_SECTIONS)
    with contextlib.suppress(ImportError):
        has_critic = import_module("verl.trainer.ppo.utils").need_critic(config)
        sections += ["critic"] if has_critic else []
    for section in sections:
        _tried(section, partial(instantiated, section), steps)


def _tried(name: str, step: Callable[[], None], steps: list[dict[str, Any]]) -> bool:
    """Whatever upstream raises is its answer, an exit among it."""
    try:
        step()
    except (Exception, SystemExit) as error:  # noqa: BLE001
        reason = f"{type(error).__name__}: {error}"[:2000]
        steps.append({"step": name, "is_accepted": _is_answer(error), "reason": reason})
        return False
    steps.append({"step": name, "is_accepted": True, "reason": None})
    return True


def _is_answer(error: BaseException) -> bool | None:
    """False; None where a package is missing. Upstream calls a missing vllm a wrong value (third_party/vllm)."""
    lacks_vllm = "vllm version None" in str(error)
    return None if isinstance(error, ImportError) or lacks_vllm else False


if __name__ == "__main__":
    main()
