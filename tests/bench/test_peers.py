"""`miniverl peers`: ratios and exit codes from what was measured, a page from it, and one contestant that really runs."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from miniverl.bench import cli
from miniverl.bench.exits import Exit
from miniverl.bench.peers import judge, page
from miniverl.bench.peers.contestant import in_turns, started
from miniverl.bench.peers.setting import Setting
from miniverl.engine.problem import Refused

pytestmark = pytest.mark.slow

Json = Mapping[str, Any]


def answers(*seconds: float, tokens: int = 512, peak: int = 1 << 30) -> list[Json]:
    return [{"seconds": each, "tokens": tokens, "peak_bytes": peak} for each in seconds]


def cell(name: str, given: Mapping[str, Sequence[Json]], **facts: Any) -> Json:
    return {"name": name, "answers": given, "facts": facts}


def measured(**cells: Sequence[Json]) -> dict[str, Any]:
    parts = {
        name: {"title": name, "rounds": 2, "load_before": 0.1, "seconds": 1.0, "cells": each}
        for name, each in cells.items()
    }
    return {
        "measured_at": "2026-12-01T10:00:00Z",
        "machine": {"cpu": "a CPU", "cores": 2, "memory_gib": 23.0, "threads": 2},
        "versions": {"torch": "2.13.0", "peers": {"trl": "1.16.0"}},
        "code": {"commit": None, "is_dirty": None, "sha256": "ab" * 32},
        "parts": parts,
        "ratios": [each.plain() for each in judge.ratios(parts)],
    }


ROLLOUT = [
    cell(
        "float32, batch 4",
        {
            "ours": answers(1.0, 1.0, 1.0),
            "transformers": answers(2.0, 2.0, 2.0),
            "llama.cpp": answers(1.0, 1.0, 1.0),
            "loop": answers(9.0, 7.0, 10.0),
        },
        dtype="float32",
        batch=4,
    ),
    cell(
        "float32, batch 8",
        {
            "ours": answers(1.0, 1.0, 1.0),
            "transformers": answers(3.5, 2.0, 3.0),
            "llama.cpp": answers(0.9, 0.8, 1.2),
        },
        dtype="float32",
        batch=8,
    ),
]
STEP = [
    cell(
        "float32, without KL",
        {"ours": answers(4.0, 5.0, peak=2 << 30), "trl": answers(12.0, 15.0)},
        dtype="float32",
    )
]


def test_a_ratio_is_the_median_of_those_of_each_round() -> None:
    found = {each.name: each for each in judge.ratios(measured(rollout=ROLLOUT)["parts"])}
    beside = found["tokens/s over transformers, float32, batch 8"]
    assert beside.ratios == pytest.approx((3.5, 2.0, 3.0))
    assert (beside.median, beside.least, beside.is_met) == (pytest.approx(3.0), 3.0, True)
    slower = found["tokens/s over llama.cpp, float32, batch 8"]
    assert (slower.median, slower.is_met) == (pytest.approx(0.9), False)


def test_the_loop_is_measured_once_for_every_batch() -> None:
    found = {each.name: each for each in judge.ratios(measured(rollout=ROLLOUT)["parts"])}
    assert found["tokens/s over loop, float32, batch 4"].is_met  # 9 of 8
    assert not found["tokens/s over loop, float32, batch 8"].is_met  # 9 of 12


def test_a_step_is_judged_by_its_time_and_its_memory() -> None:
    seconds, memory = judge.ratios(measured(step=STEP)["parts"])
    assert (seconds.median, seconds.is_met) == (pytest.approx(1 / 3), True)
    assert (memory.median, memory.is_met) == (2.0, False)


def test_growth_is_held_to_what_the_roofline_predicts() -> None:
    def size(prompts: int, tokens: int, least: float) -> Json:
        return {"prompts": prompts, "new_tokens": tokens, "least_seconds": {"rollout": least}}

    sizes = {"a": size(2, 64, 1.0), "b": size(4, 64, 1.6), "c": size(2, 256, 4.0)}
    given = {"a": answers(1.0), "b": answers(2.1), "c": answers(4.3)}
    parts = {"growth": {"cells": [cell("growth", given, sizes=sizes)]}}
    longer, doubled = sorted(judge.ratios(parts), key=lambda each: each.median)
    assert (longer.median, longer.is_met) == (pytest.approx(1.075), True)
    assert (doubled.median, doubled.is_met) == (2.1, False)


def test_the_text_ends_with_how_many_are_met() -> None:
    *_, fourth, last = page.text(measured(step=STEP))
    assert "MISSED" in fourth
    assert last == "1 of 2 ratios met."


def test_the_page_gets_its_table_between_the_marks_and_ends_with_1_where_a_bound_is_missed(
    tmp_path: Path,
) -> None:
    document, to = tmp_path / "peers.json", tmp_path / "performance.md"
    document.write_text(json.dumps(measured(rollout=ROLLOUT)))
    to.write_text(f"before\n{page.BEGIN}\nold\n{page.END}\nafter\n")
    with pytest.raises(SystemExit) as ended:
        page.main([str(document), str(to)], standalone_mode=False)
    assert ended.value.code == Exit.NO
    text = to.read_text()
    assert "| tokens/s over llama.cpp, float32, batch 8 | 0.90 (0.80 to 1.20) | >= 1.00 |" in text
    assert (text.startswith("before"), text.endswith("after\n"), "old" in text) == (
        True,
        True,
        False,
    )
    assert (tmp_path / "performance.svg").read_text().startswith("<svg")


def test_without_the_peers_it_says_how_to_get_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    earlier = tmp_path / "peers.json"
    earlier.write_text("{}\n")
    arguments = ["peers", "--peers-python", str(tmp_path / "python"), "--only", "rollout"]
    assert cli.main([*arguments, "--out", str(earlier)]) == Exit.CANNOT_HERE
    assert "Run make peers" in capsys.readouterr().err
    assert not earlier.exists()  # no page may be made of it


def test_contestants_answer_in_turns_and_one_that_ends_is_told_of(
    tmp_path: Path, tiny_inputs: Path
) -> None:
    at = Setting(
        scratch=tmp_path, peers_python=tmp_path, threads=1, rounds=None, tell=lambda line: None
    )
    program = at.ours("ours", "ours_rollout", str(tiny_inputs / "model"), "--dtype", "float32")
    heard = []
    with started([program]) as contestants:
        both = {"first": contestants["ours"], "second": contestants["ours"]}
        question = {"prompts": [[1, 2, 3], [4, 5, 6]], "new_tokens": 5}
        found = in_turns(
            both, dict.fromkeys(both, question), 2, lambda name, answer: heard.append(name)
        )
        with pytest.raises(Refused, match="ended with 1"):
            contestants["ours"].ask({})
    assert heard == ["first", "second", "first", "second"]
    assert [each["tokens"] for each in found["first"]] == [10, 10]
