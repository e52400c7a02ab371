"""Rule tables, one module per section of the upstream config tree, in the order in which they judge."""

from miniverl.compiler.rule import Rule
from miniverl.compiler.rules import (
    actor,
    algorithm,
    critic,
    data,
    distillation,
    model,
    reference,
    rest,
    reward,
    rollout,
    trainer,
)

_TABLES = (
    actor,
    reference,
    rollout,
    model,
    data,
    critic,
    reward,
    algorithm,
    distillation,
    trainer,
    rest,
)

RL_V09: tuple[Rule, ...] = tuple(rule for table in _TABLES for rule in table.RULES)
"""Every leaf of `ppo_trainer` at v0.9.0 is judged by the first of these that matches it."""

RL_V09_APPENDED: tuple[Rule, ...] = tuple(
    rule for table in _TABLES for rule in getattr(table, "APPENDED", ())
)
"""For leaves that only `+key=value` creates: no leaf of the tree as upstream ships it matches."""
