"""The whole table over the whole tree: every leaf has a rule, every rule a leaf, every recipe path a writer."""

import json
from dataclasses import fields, is_dataclass
from importlib.resources import files
from types import NoneType
from typing import Any, get_args, get_type_hints

import pytest

from miniverl.compiler.judge import Table, context_of, judge
from miniverl.compiler.lower import ABSENT, written
from miniverl.compiler.rule import Class, Finding, Rule, Verdict, notes
from miniverl.compiler.rules import RL_V09, RL_V09_APPENDED
from miniverl.engine.recipe import Recipe

DERIVED = {"schema_version", "learning_rate_schedule.total_steps"}
LOSS_ARGUMENTS = {
    f"policy_loss.arguments.{name}" for name in ("clip_low", "clip_high", "dual_clip")
}


def _lies_in(path: str, part: str) -> bool:
    return path == part or path.startswith(f"{part}.")


def paths_of(kind: Any, path: str = "") -> set[str]:
    """Dotted paths of a recipe's numbers; a part that may be None counts with its numbers."""
    found = set()
    hints = get_type_hints(kind)
    for field in fields(kind):
        hint = hints[field.name]
        inner = next(one for one in get_args(hint) or [hint] if one is not NoneType)
        name = f"{path}{field.name}"
        found |= paths_of(inner, f"{name}.") if is_dataclass(inner) else {name}
    return found


def test_every_leaf_of_the_tree_is_judged_by_a_rule(grpo):
    table = Table.of(RL_V09)
    assert [field for field in grpo.defaults if table.first_match(field) is None] == []


def test_every_rule_is_the_first_to_match_some_leaf(grpo):
    table = Table.of(RL_V09)
    used = {table.first_match(field) for field in grpo.defaults}
    assert [rule.pattern for number, rule in enumerate(RL_V09) if number not in used] == []


def test_no_leaf_of_the_tree_matches_two_rules(grpo):
    for field in grpo.defaults:
        assert len([rule.pattern for rule in RL_V09 if rule.covers(field)]) == 1, field


def test_rules_for_appended_keys_match_no_leaf_of_the_tree(grpo):
    assert [r.pattern for r in RL_V09_APPENDED for field in grpo.defaults if r.covers(field)] == []


def test_the_first_rule_in_the_order_of_the_table_wins():
    table = Table.of([notes("a.*", Class.EXACT, "one"), notes("a.b", Class.EXACT, "two")])
    assert (table.first_match("a.b"), table.first_match("a.c"), table.first_match("b")) == (
        0,
        0,
        None,
    )
    table = Table.of([notes("a.b", Class.EXACT, "one"), notes("a.*", Class.EXACT, "two")])
    assert (table.first_match("a.b"), table.first_match("a.c.d")) == (0, 1)


@pytest.mark.parametrize(
    "changes",
    [{}, {"actor_rollout_ref.model.lora_rank": 16}],
    ids=["every weight", "an adapter"],
)
def test_every_recipe_path_has_exactly_one_writer(compiled, changes):
    paths = set(written(compiled(changes).findings)) | DERIVED
    whole = {*ABSENT, "reward", "policy_loss.arguments"}
    wanted = {path for path in paths_of(Recipe) if not any(_lies_in(path, one) for one in whole)}
    wanted |= {"reward"} | LOSS_ARGUMENTS
    if not changes:
        wanted = {path for path in wanted if not path.startswith("policy.lora.")} | {"policy.lora"}
    assert paths == wanted


def test_two_writers_of_one_path_are_a_broken_table():
    one = Finding(
        field="a", value=1, origin="", classification=Class.EXACT, reason="", target="x", lowered=1
    )
    other = Finding(
        field="b",
        value=2,
        origin="",
        classification=Class.EXACT,
        reason="",
        target="x.y",
        lowered=2,
    )
    with pytest.raises(AssertionError, match="a and a both write x"):
        written([one, one])
    with pytest.raises(AssertionError, match=r"x\.y lies under x"):
        written([one, other])


def test_rules_judge_with_the_tree_even_where_a_leaf_was_taken_away(change):
    source = change({}, without=("data.shuffle",))
    table = Table.of(
        [
            Rule(
                "*",
                lambda f, v, c: Verdict(
                    classification=Class.EXACT, reason=str(c.leaves["data.shuffle"])
                ),
            )
        ]
    )
    findings = judge(source, table, context_of(source, {}))
    taken = [finding for finding in findings if finding.field == "data.shuffle"]
    assert [finding.classification for finding in taken] == [Class.UNSUPPORTED]
    assert {finding.reason for finding in findings if finding not in taken} == {"True"}


def test_every_leaf_has_a_type_and_its_readers(grpo):
    readers = json.loads((files("miniverl.compiler") / "readers.json").read_text(encoding="utf-8"))
    assert set(readers) == set(grpo.defaults)
    assert all(entry["type"] for entry in readers.values())
    lines = {line for entry in readers.values() for line in entry.get("readers", [])}
    assert all(line.startswith("verl/") and line.rpartition(":")[2].isdigit() for line in lines)
