"""The tree as upstream ships it, official launches, and rules judged on them: no Hydra, nothing fetched."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from miniverl.compiler.follows import FOLLOWS
from miniverl.compiler.rule import REJECTING, Context, Rule, Verdict
from miniverl.compiler.rules import (
    actor,
    algorithm,
    critic,
    distillation,
    model,
    reference,
    reward,
    rollout,
)

HERE = Path(__file__).parent
DEFAULTS: dict[str, Any] = json.loads((HERE / "default_leaves.json").read_text(encoding="utf-8"))
TABLES = {
    "algorithm.": algorithm,
    "actor_rollout_ref.actor.": actor,
    "actor_rollout_ref.ref.": reference,
    "actor_rollout_ref.rollout.": rollout,
    "actor_rollout_ref.": model,
    "critic.": critic,
    "reward.": reward,
    "distillation.": distillation,
}
BOUND: dict[str, Any] = {
    "model": "a" * 64,
    "adapter": None,
    "train": "b" * 64,
    "train_rows": 1000,
    "train_columns": frozenset({"prompt", "data_source"}),
    "validation": "c" * 64,
    "without_validation": False,
    "reward": "last_number",
    "reward_arguments": {},
    "reward_metrics": {"acc": "reward"},
    "reward_function": None,
    "critic": None,
    "reward_model": None,
    "teachers": {},
    "compute_dtype": "float32",
    "quantised": {},
    "total_steps": None,
}
# What upstream leaves open, and the one estimator that is computed.
RUNNABLE = {
    "algorithm.adv_estimator": "grpo",
    "actor_rollout_ref.rollout.name": "vllm",
    "actor_rollout_ref.actor.use_dynamic_bsz": True,
}


def composed(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The leaves under `overrides`, where a leaf that copies another moves with it."""

    def value(field: str) -> Any:
        if field in overrides:
            return overrides[field]
        return value(FOLLOWS[field]) if field in FOLLOWS else DEFAULTS[field]

    return {field: value(field) for field in DEFAULTS | dict(overrides)}


@dataclass(frozen=True)
class Judged:
    """Verdicts by field, of the leaves under test."""

    verdicts: Mapping[str, Verdict]

    def __getitem__(self, field: str) -> Verdict:
        return self.verdicts[field]

    @property
    def rejected(self) -> set[str]:
        return {f for f, verdict in self.verdicts.items() if verdict.classification in REJECTING}

    @property
    def warned(self) -> set[str]:
        return {field for field, verdict in self.verdicts.items() if verdict.warning}

    @property
    def writers(self) -> list[tuple[str, str]]:
        """Recipe path and field of every verdict that writes."""
        return [(v.target, field) for field, v in self.verdicts.items() if v.target is not None]

    @property
    def written(self) -> dict[str, Any]:
        return {v.target: v.lowered for v in self.verdicts.values() if v.target is not None}


@cache
def rule_for(field: str) -> Rule:
    """The first rule of the tables under test, those for appended keys last, that covers the field."""
    rules = [rule for table in TABLES.values() for rule in table.RULES]
    rules += [rule for table in TABLES.values() for rule in getattr(table, "APPENDED", ())]
    return next(rule for rule in rules if rule.covers(field))


def is_ours(field: str) -> bool:
    return field.startswith(tuple(TABLES))


@pytest.fixture
def defaults() -> dict[str, Any]:
    return dict(DEFAULTS)


@pytest.fixture
def tables() -> dict[str, Any]:
    return dict(TABLES)


@pytest.fixture
def judge_leaves() -> Callable[..., Judged]:
    """Judges leaves as they are given, with bindings changed by name."""

    def judge(leaves: Mapping[str, Any], **bindings: Any) -> Judged:
        context = Context(leaves=leaves, defaults=DEFAULTS, bindings=BOUND | bindings)
        return Judged(
            {
                field: rule_for(field).judge(field, value, context)
                for field, value in leaves.items()
                if is_ours(field)
            }
        )

    return judge


@pytest.fixture
def judge(judge_leaves: Callable[..., Judged]) -> Callable[..., Judged]:
    """Judges a launch that runs here, with overrides on top and bindings changed by name.

    Appended keys take the place of the empty mapping above them, as they do when composed.
    """

    def judged(overrides: Mapping[str, Any] | None = None, **bindings: Any) -> Judged:
        leaves = composed(RUNNABLE | dict(overrides or {}))
        branches = {
            field[:end] for field in leaves for end, mark in enumerate(field) if mark == "."
        }
        return judge_leaves({f: v for f, v in leaves.items() if f not in branches}, **bindings)

    return judged


@pytest.fixture
def launches(judge_leaves: Callable[..., Judged]) -> dict[str, Judged]:
    """The seven official launches, judged. Their overrides are literal, so that no composition is needed."""
    return {
        path.stem: judge_leaves(composed(launch_overrides(path)))
        for path in sorted((HERE / "launches").glob("*.json"))
    }


def launch_overrides(path: Path) -> dict[str, Any]:
    texts = json.loads(path.read_text(encoding="utf-8"))["overrides"]
    parsed = OverridesParser.create().parse_overrides(texts)
    return {str(override.key_or_group): override.value() for override in parsed}
