"""The committed prompt rows: what a row is, that splits do not overlap, and that the generator gives them again."""

import hashlib
import json
import re
from importlib.resources import files
from typing import Any

import pytest
import rfc8785

from miniverl.bench.pin import GeneratedPin, pin

PINS = ("chain-sum", "sums-and-products")


def _pin(name: str = "chain-sum") -> GeneratedPin:
    chosen = pin(name)
    assert isinstance(chosen, GeneratedPin)
    return chosen


def _committed(name: str) -> bytes:
    return (files("miniverl.bench") / "data" / _pin(name).file).read_bytes()


def _rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in _committed(name).splitlines()]


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    return _rows("chain-sum")


@pytest.mark.parametrize("name", PINS)
def test_every_line_is_canonical_json(name: str) -> None:
    assert _committed(name) == b"".join(rfc8785.dumps(row) + b"\n" for row in _rows(name))


def test_a_row_has_upstreams_layout(rows: list[dict[str, Any]]) -> None:
    assert rows[0] == {
        "data_source": "reasoning-gym/chain_sum",
        "prompt": [
            {
                "role": "user",
                "content": "State the final answer to the following arithmetic problem: 4 - 1 =\n"
                "Answer with the final result only.",
            }
        ],
        "ability": "arithmetic",
        "reward_model": {"style": "rule", "ground_truth": "3"},
        "extra_info": {"split": "train", "index": 0, "draw": 0},
    }


def test_the_splits_hold_every_question_there_is_once(rows: list[dict[str, Any]]) -> None:
    asked = {
        (int(left), sign, int(right))
        for row in rows
        for left, sign, right in re.findall(r": (\d) ([+-]) (\d) =", row["prompt"][0]["content"])
    }
    assert len(rows) == 200
    assert asked == {(a, sign, b) for a in range(10) for b in range(10) for sign in "+-"}
    counts = {name: split.rows for name, split in _pin().splits.items()}
    assert counts == {"train": 160, "validation": 40}
    assert [row["extra_info"]["split"] for row in rows] == ["train"] * 160 + ["validation"] * 40


def test_every_ground_truth_is_the_result(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        ((left, sign, right),) = re.findall(r": (\d) ([+-]) (\d) =", row["prompt"][0]["content"])
        result = int(left) + int(right) if sign == "+" else int(left) - int(right)
        assert row["reward_model"]["ground_truth"] == str(result)


def test_of_two_sources_the_questions_take_turns_and_none_comes_twice() -> None:
    rows = _rows("sums-and-products")
    assert [row["data_source"] for row in rows] == [
        "reasoning-gym/chain_sum",
        "reasoning-gym/products",
    ] * 80
    assert len({row["prompt"][0]["content"] for row in rows}) == 160
    for row in rows[1::2]:
        ((left, right),) = re.findall(r": (\d) \* (\d)\. ", row["prompt"][0]["content"])
        assert row["reward_model"]["ground_truth"] == str(int(left) * int(right))


@pytest.mark.parametrize("name", PINS)
def test_the_generator_gives_the_committed_bytes_again(name: str) -> None:
    pytest.importorskip("reasoning_gym", reason="the data dependency group is not installed")
    from miniverl.bench.generate import lines

    made = lines(_pin(name))
    assert hashlib.sha256(made).hexdigest() == hashlib.sha256(_committed(name)).hexdigest()
