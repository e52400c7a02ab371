"""Fixtures of the bench's tests."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def example() -> ModuleType:
    """tests/bench/example.py."""
    return _module("bench_example", TESTS / "bench" / "example.py")


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


def _module(name: str, path: Path) -> ModuleType:
    """Test files cannot import each other."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
