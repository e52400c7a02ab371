"""What the parts share: the pinned weights, the two interpreters, the tokens, and the recipe of the step."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from miniverl.bench import gpu, probe
from miniverl.bench.fetch import fetch
from miniverl.bench.peers import gguf_weights
from miniverl.bench.peers.contestant import Program
from miniverl.bench.runner import worker_environment
from miniverl.bench.workload import compile_arguments, workload
from miniverl.compiler.lower import compile_launch
from miniverl.compiler.upstream import quiet
from miniverl.compiler.whole import write_json, write_text
from miniverl.engine import recipe as recipes
from miniverl.engine.algorithm import KlLoss
from miniverl.engine.problem import CannotHere, Problem
from miniverl.engine.recipe import Dtype, Recipe

MODEL = "smollm2-135m-instruct"
WORKLOAD = "smollm2-grpo"
PACKAGES = ("torch", "transformers", "peft", "trl", "llama-cpp-python", "datasets", "accelerate")
PEERS_PYTHON = Path(".venv-peers/bin/python")
KL = 0.001
_ROWS = "chain-sum.jsonl"
_HERE = Path(str(files("miniverl.bench.peers")))
_ASK = (
    "import importlib.metadata as m, json, sys; "
    "print(json.dumps({each.metadata['Name'].lower().replace('_', '-'): each.version "
    "for each in m.distributions()}))"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """`rounds` None: as many as each part states. `scratch` takes run folders and logs."""

    scratch: Path
    peers_python: Path
    threads: int
    rounds: int | None
    tell: Callable[[str], None]

    @property
    def model(self) -> Path:
        return fetch([MODEL], quiet)[MODEL]

    def gguf(self) -> Mapping[str, Path]:
        """The same weights for llama.cpp, by type."""
        return gguf_weights.dequantised(MODEL, self.scratch / "gguf")

    def ours(self, name: str, module: str, *arguments: str) -> Program:
        command = [sys.executable, "-P", "-m", f"miniverl.bench.peers.{module}", *arguments]
        return self._program(name, command, worker_environment(self.threads))

    def peer(self, name: str, script: str, *arguments: str) -> Program:
        """How its threads wait is left to it: what is set for this engine would slow llama.cpp down."""
        command = [str(self.peers_python), "-P", str(_HERE / f"{script}.py"), *arguments]
        environment = worker_environment(self.threads)
        del environment["OMP_WAIT_POLICY"]
        return self._program(name, command, environment)

    def _program(
        self, name: str, command: Sequence[str], environment: Mapping[str, str]
    ) -> Program:
        log = self.scratch / "logs" / f"{name.replace(' ', '-').replace(',', '')}.log"
        command = [*command, "--threads", str(self.threads)]
        return Program(name=name, command=command, environment=environment, log=log)


def peers_packages(python: Path) -> Mapping[str, str]:
    """Versions of the peers by name; raises CannotHere where they are not there."""
    if not os.access(python, os.X_OK):
        raise CannotHere([_no_peers(python, "there is no such interpreter")])
    asked = subprocess.run([python, "-I", "-c", _ASK], capture_output=True, text=True, check=False)
    if asked.returncode != 0:
        raise CannotHere([_no_peers(python, f"it ends with {asked.returncode}")])
    found = json.loads(asked.stdout)
    missing = [name for name in PACKAGES if name not in found]
    if missing:
        raise CannotHere([_no_peers(python, f"it has no {', '.join(missing)}")])
    return {name: found[name] for name in PACKAGES}


def _no_peers(python: Path, reason: str) -> Problem:
    return Problem(
        field="peers",
        value=str(python),
        origin="--peers-python",
        reason=f"The peers are not installed: {reason}",
        fix="Run make peers (llama.cpp is compiled: about 20 minutes), or leave their parts out with --only",
    )


def token_windows(model: Path, number: int, length: int) -> list[list[int]]:
    """`number` prompts of exactly `length` tokens: the pinned questions one after the other, cut."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    tokens: list[int] = []
    for row in _rows():
        tokens += tokenizer.encode(row["prompt"][0]["content"]).ids
        if len(tokens) >= number * length:
            break
    return [tokens[start : start + length] for start in range(0, number * length, length)]


def write_questions(path: Path) -> None:
    """The training rows as TRL takes them."""
    plain = [
        {"prompt": row["prompt"], "answer": row["reward_model"]["ground_truth"]}
        for row in _rows()
        if row["extra_info"]["split"] == "train"
    ]
    write_json(path, plain)


def _rows() -> list[dict[str, Any]]:
    text = Path(str(files("miniverl.bench") / "data" / _ROWS)).read_text("utf-8")
    return [json.loads(line) for line in text.splitlines()]


def compiled() -> tuple[Recipe, Mapping[str, str]]:
    """The recipe of the pinned workload, and where its inputs are."""
    chosen = workload(WORKLOAD)
    arguments = compile_arguments(chosen, None, fetch(chosen.pins, quiet), "float32")
    found = compile_launch(
        arguments.source,
        arguments.overrides,
        profile=arguments.profile,
        bindings=arguments.bindings,
        progress=quiet,
    )
    assert found.recipe is not None, "a workload of the suite compiles"
    return found.recipe, {name: str(path) for name, path in found.paths.items() if path}


def step_recipe(base: Recipe, *, dtype: Dtype, has_kl: bool, prompts: int, tokens: int) -> Recipe:
    """`prompts` times 4 samples of exactly `tokens` tokens, LoRA of rank 16, weights and arithmetic in `dtype`."""
    return replace(
        base,
        data=replace(base.data, prompts_per_step=prompts, prompts_per_draw=prompts),
        policy=replace(base.policy, parameter_dtype=dtype, compute_dtype=dtype),
        rollout=replace(
            base.rollout,
            samples_per_prompt=4,
            max_response_tokens=tokens,
            ignores_eos=True,
            dtype=dtype,
        ),
        kl_loss=KlLoss(estimator="k3", coefficient=KL) if has_kl else None,
        update=replace(base.update, prompts_per_mini_batch=prompts),
        steps=replace(
            base.steps, num_steps=1000, num_epochs=1000, checkpoint_every=0, keep_checkpoints=1
        ),
    )


def write_run(folder: Path, recipe: Recipe, paths: Mapping[str, str]) -> None:
    """What a run is started from."""
    folder.mkdir(parents=True)
    write_text(folder / "recipe.json", recipes.dumps(recipe))
    write_json(folder / "bindings.json", dict(paths))


def limits() -> Mapping[str, Any]:
    """The measured bandwidth and peaks of this CPU."""
    found = gpu.detect()
    return probe.machine(gpu.choose("cpu", False, found), found)
