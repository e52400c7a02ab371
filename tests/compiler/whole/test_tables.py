"""The whole table over the whole tree: every leaf has a rule, every rule a leaf, every recipe path a writer."""

import json
from importlib.resources import files

import pytest

from miniverl.compiler.judge import Table, context_of, judge
from miniverl.compiler.lower import written
from miniverl.compiler.rule import Class, Finding, Rule, Verdict, notes
from miniverl.compiler.rules import RL_V09, RL_V09_APPENDED


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
