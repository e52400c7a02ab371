"""Lets a program import the pinned upstream without the packages that its pure functions do not use.

    with_upstream(observe)      # as the last line of an observation program

An observation program is a program of its own: it puts stand-ins for packages that upstream imports (ray,
transformers, ...) into its own process, where they can mislead nobody else. It is called as

    python tests/conformance/upstream_<topic>.py UNPACKED_WHEEL

and prints what `observe()` gives as JSON; conftest.py's `run_upstream` runs it and reads that.
"""

import importlib.abc
import importlib.machinery
import json
import os
import sys
import types
import warnings
from collections.abc import Callable
from typing import Any

import torch

STANDINS = frozenset(
    [
        "PIL",
        "accelerate",
        "cachetools",
        "codetiming",
        "datasets",
        "fastapi",
        "pandas",
        "peft",
        "qwen_vl_utils",
        "ray",
        "torchdata",
        "transfer_queue",
        "transformers",
        "uvicorn",
    ]
)


def with_upstream(observe: Callable[[], dict[str, Any]]) -> None:
    """Makes the unpacked wheel named on the command line importable, and prints what `observe` gives."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    os.environ["VERL_USE_EXTERNAL_PLUGINS"] = "none"
    sys.meta_path.insert(0, Finder())
    sys.path.insert(0, sys.argv[1])
    printed, sys.stdout = sys.stdout, sys.stderr  # upstream prints
    observed = observe()
    printed.write(json.dumps(observed, indent=1, sort_keys=True, allow_nan=False) + "\n")


class StandIn(type):
    """A class that any attribute, subscript, base-class or decorator use of an absent package gets."""

    def __getattr__(cls, name: str) -> "StandIn":
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn(name, (), {})

    def __getitem__(cls, _: object) -> "StandIn":
        return cls

    def __call__(cls, *arguments: Any, **named: Any) -> Any:
        decorates = len(arguments) == 1 and callable(arguments[0]) and not named
        return arguments[0] if decorates else lambda decorated: decorated


class StandInModule(types.ModuleType):
    def __getattr__(self, name: str) -> StandIn:
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn(name, (), {})


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(
        self, name: str, path: object = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.split(".")[0] not in STANDINS:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = StandInModule(spec.name)
        module.__version__ = "0.0.0"
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        pass
