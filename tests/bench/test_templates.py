"""Rows from templates: each template with each pair, answers that are right, and the committed bytes made again."""

import json
from importlib.resources import files

from miniverl.bench import templates
from miniverl.bench.pin import TemplatedPin, pin


def test_the_committed_rows_are_made_again_byte_for_byte() -> None:
    chosen = pin("eight-templates")
    assert isinstance(chosen, TemplatedPin)
    committed = (files("miniverl.bench") / "data" / chosen.file).read_bytes()
    assert templates.lines(chosen) == committed

    rows = [json.loads(line) for line in committed.splitlines()]
    assert len(rows) == 64
    assert len({row["prompt"][0]["content"] for row in rows}) == 64
    assert [row["extra_info"]["template"] for row in rows[:8]] == list(range(8))
    assert rows[0]["prompt"][0]["content"] == (
        "A shelf holds 12 books, and 5 more are put on it. How many books does it hold now?\n"
        "Answer with the number only."
    )
    answers = [row["reward_model"]["ground_truth"] for row in rows[:4]]
    assert answers == ["17", "7", "60", "17"]
