"""Fixtures of the bench's tests."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def example() -> ModuleType:
    """tests/bench/example.py; test files cannot import each other."""
    path = Path(__file__).with_name("example.py")
    spec = importlib.util.spec_from_file_location("bench_example", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
