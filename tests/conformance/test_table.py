"""The committed docs/conformance.md has a row for everything that a recipe can name."""

from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from miniverl.engine.advantage import ADVANTAGES
from miniverl.engine.algorithm import (
    AggregationMode,
    ImportanceWeights,
    KlEstimator,
    RejectionStatistic,
)
from miniverl.engine.policy_loss import POLICY_LOSSES
from miniverl.engine.recipe import Distillation

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "conformance.md"
NAMED = {
    "advantage": list(ADVANTAGES),
    "policy loss": list(POLICY_LOSSES),
    "optimizer steps with": list(POLICY_LOSSES),
    "score:": ["log-probability", "entropy"],
    "aggregation": get_args(AggregationMode),
    "value loss": get_args(AggregationMode),
    "KL estimate": get_args(KlEstimator),
    "importance weights by": get_args(get_type_hints(ImportanceWeights)["level"]),
    "rejection": get_args(RejectionStatistic),
    "learning rate": ["constant", "cosine"],
    "distillation": get_args(get_type_hints(Distillation)["loss"]),
}


@pytest.mark.parametrize("kind", NAMED)
def test_the_committed_table_has_a_row_for_each(kind):
    # "distillation k1, supervised" is a row of "distillation k1"
    functions = {
        line.removeprefix("| ").partition(" | ")[0].partition(",")[0]
        for line in PAGE.read_text(encoding="utf-8").splitlines()
    }
    assert {f"{kind} {name}" for name in NAMED[kind]} - functions == set()
