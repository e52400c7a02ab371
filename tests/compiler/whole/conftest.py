"""The official GRPO launch, composed once from the pinned tree, and ways to change it without composing again."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from miniverl.compiler import profiles
from miniverl.compiler import source as sources
from miniverl.compiler.bindings import Bindings, Model, Rows
from miniverl.compiler.follows import FOLLOWS
from miniverl.compiler.lower import Compiled, compile_source
from miniverl.compiler.source import Source

VERL = "0.9.0"
UNBOUND = Bindings(
    model=None,
    adapter=None,
    train=None,
    validation=None,
    without_validation=False,
    reward=None,
    reward_arguments={},
    reward_function=None,
    critic=None,
    reward_model=None,
    teachers={},
    compute_dtype="bfloat16",
    quantised={},
    origins={},
)


@pytest.fixture(scope="session")
def grpo() -> Source:
    launch = sources.launch("grpo")
    return sources.compose(launch.config_name, sources.numbered(launch.overrides), version=VERL)


@pytest.fixture(scope="session")
def bound() -> Bindings:
    """Everything that a run needs; 4096 training rows make 4 steps of 1024 prompts an epoch."""
    columns = frozenset({"prompt", "data_source", "reward_model"})
    return Bindings(
        model=Model(path=Path("bound/model"), sha256="a" * 64),
        adapter=None,
        train=Rows(path=Path("bound/train.parquet"), sha256="b" * 64, count=4096, columns=columns),
        validation=Rows(
            path=Path("bound/test.parquet"), sha256="c" * 64, count=100, columns=columns
        ),
        without_validation=False,
        reward="last_number",
        reward_arguments={},
        reward_function=None,
        critic=None,
        reward_model=None,
        teachers={},
        compute_dtype="float32",
        quantised={},
        origins={"compute_dtype": "--bind compute_dtype=float32"},
    )


@pytest.fixture(scope="session")
def change(grpo: Source) -> Callable[..., Source]:
    """The launch with leaves changed, added, or taken away; leaves that copy a changed one move with it."""

    def changed(changes: Mapping[str, Any], without: tuple[str, ...] = ()) -> Source:
        leaves = {**grpo.leaves, **changes}
        for copy, copied in FOLLOWS.items():
            if copied in changes and copy not in changes:
                leaves[copy] = changes[copied]
        origins = {**grpo.origins, **dict.fromkeys(changes, "a test")}
        kept = {field: value for field, value in leaves.items() if field not in without}
        return replace(grpo, leaves=kept, origins=origins)

    return changed


@pytest.fixture(scope="session")
def compiled(change: Callable[..., Source], bound: Bindings) -> Callable[..., Compiled]:
    """Compiles the changed launch, bound unless told otherwise."""

    def compile_changed(
        changes: Mapping[str, Any] | None = None,
        *,
        without: tuple[str, ...] = (),
        bindings: Bindings = bound,
    ) -> Compiled:
        return compile_source(change(changes or {}, without), bindings, profiles.named(None))

    return compile_changed


@pytest.fixture(scope="session")
def unbound() -> Bindings:
    return UNBOUND
