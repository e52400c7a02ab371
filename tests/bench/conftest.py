"""Fixtures of the bench's tests."""

import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType

import pytest

from miniverl.bench import suite
from miniverl.bench.cli import main
from miniverl.bench.facts import Plan

TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def example() -> ModuleType:
    """tests/bench/example.py."""
    return _module("bench_example", TESTS / "bench" / "example.py")


@pytest.fixture(scope="session")
def hub_server() -> ModuleType:
    """tests/bench/test_hub.py, for its server."""
    return _module("bench_hub_server", TESTS / "bench" / "test_hub.py")


@pytest.fixture(scope="session")
def tiny_inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the engine tests' tiny model as `model`, and rows for it as `train.parquet`."""
    tiny = _module("engine_conftest", TESTS / "engine" / "conftest.py")
    folder = tmp_path_factory.mktemp("tiny")
    shape = tiny.LlamaConfig(**tiny.tiny_shape(), tie_word_embeddings=True)
    tiny.save_model(shape, folder / "model")
    rows = [
        {
            "data_source": "tiny",
            "prompt": [{"role": "user", "content": f"{number}+1="}],
            "ability": "arithmetic",
            "reward_model": {"style": "rule", "ground_truth": str((number + 1) % 10)},
            "extra_info": {"index": number},
        }
        for number in range(10)
    ]
    tiny.pq.write_table(tiny.pa.Table.from_pylist(rows), folder / "train.parquet")
    return folder


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    """The tiny workload, compiled for this machine."""
    request = suite.Request(
        workload="tiny-grpo",
        gpu="cpu",
        as_is=True,
        launches=None,
        seed=None,
        out=tmp_path_factory.mktemp("prepared"),
    )
    return suite.prepare(request, lambda line: None)


def _module(name: str, path: Path) -> ModuleType:
    """Test files cannot import each other."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


Finish = Callable[..., Path]


@pytest.fixture(scope="session")
def finish(tiny_inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Finish:
    """finish(launch, *arguments of compile, **inputs): the folder of a run of two steps with an adapter.

    It is made by the commands that a user gives.
    """

    def run(launch: str, *more: str, **inputs: Path) -> Path:
        bound = {"model": tiny_inputs / "model", "train": tiny_inputs / "train.parquet", **inputs}
        return _finish(tmp_path_factory.mktemp("finished"), bound, launch, more)

    return run


@pytest.fixture(scope="session")
def finished_run(finish: Finish) -> Path:
    """Of GRPO, with a name that shells and Hydra could read otherwise."""
    return finish("launch:grpo", "trainer.experiment_name='it\\'s $HOME; `id` \"x\" (1)'")


def _finish(place: Path, bound: Mapping[str, Path], launch: str, more: Sequence[str]) -> Path:
    bindings = [f"{name}={path}" for name, path in bound.items()]
    bindings += ["validation=none", "reward=last_number", "compute_dtype=float32"]
    compiled = [
        "compile",
        launch,
        "data.train_batch_size=2",
        "actor_rollout_ref.actor.ppo_mini_batch_size=2",
        "actor_rollout_ref.actor.optim.lr=0.05",
        "actor_rollout_ref.rollout.n=4",
        "actor_rollout_ref.rollout.load_format=safetensors",
        "actor_rollout_ref.model.lora_rank=2",
        "actor_rollout_ref.model.lora.merge=True",
        "data.max_prompt_length=16",
        "data.max_response_length=4",
        "trainer.total_training_steps=2",
        "trainer.save_freq=-1",
        *more,
        *(text for each in bindings for text in ("--bind", each)),
        *("-o", str(place / "recipe.json"), "--report", str(place / "report.json")),
    ]
    assert main(compiled) == 0
    run = ["run", str(place / "recipe.json"), "--out", str(place / "run"), "--threads", "1"]
    assert main([*run, "--device", "cpu"]) == 0
    return place / "run"


@pytest.fixture(scope="session")
def bundle(finished_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run, handed over."""
    out = tmp_path_factory.mktemp("handed") / "bundle"
    assert main(["handoff", str(finished_run), "--out", str(out)]) == 0
    return out
