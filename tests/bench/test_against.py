"""Two stacks in turns: the order, what becomes of one side when the other fails, and how each is started."""

import sys
from pathlib import Path

import pytest

from miniverl.bench import against
from miniverl.engine.problem import WrongCall

# A side as `bench --in-turns` is one, whose launches write a letter.
SIDE = """
import sys
from pathlib import Path
from miniverl.bench.stop import heard
from miniverl.bench.turns import in_turns

letter, launches, code, log = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
with heard() as asked:
    for number in range(launches):
        with in_turns(asked):
            if asked.outcome():
                sys.exit(f"asked to end before launch {number + 1}")
            with log.open("a") as file:
                file.write(letter)
sys.exit(code)
"""


def _side(letter: str, launches: int, log: Path, code: int = 0) -> tuple[str, list[str]]:
    return letter, [sys.executable, "-P", "-c", SIDE, letter, str(launches), str(code), str(log)]


def test_launches_take_turns_so_that_drift_meets_both(tmp_path: Path) -> None:
    log = tmp_path / "log"
    order, exits = against.take_turns([_side("A", 5, log), _side("B", 5, log)], print)
    assert order == log.read_text() == "ABBAABBAAB"
    assert exits == (0, 0)


def test_a_side_with_more_launches_goes_on_alone(tmp_path: Path) -> None:
    log = tmp_path / "log"
    order, exits = against.take_turns([_side("A", 1, log), _side("B", 3, log)], print)
    assert order == log.read_text() == "ABBB"
    assert exits == (0, 0)


def test_a_side_that_fails_ends_the_other_which_hears_of_it(tmp_path: Path) -> None:
    told: list[str] = []
    log = tmp_path / "log"
    order, exits = against.take_turns([_side("A", 3, log), _side("B", 1, log, code=3)], told.append)
    assert order == log.read_text() == "AB"
    assert exits[1] == 3
    assert told == ["A | asked to end before launch 2"]


def test_each_side_writes_below_a_folder_of_its_own(tmp_path: Path) -> None:
    a, b = against.sides("cpu", "cu128", "smollm2-grpo-ci", ["--launches=5"], tmp_path)
    assert (a.stack, b.stack) == ("cpu", "cu128")
    assert a.record == tmp_path / "a-cpu" / "record.json"
    assert b.record == tmp_path / "b-cu128" / "record.json"
    assert Path(b.command[1]).name == "launch.py"
    assert list(b.command[2:6]) == ["cu128", "bench", "smollm2-grpo-ci", "--in-turns"]
    for side in (a, b):
        assert "--launches=5" in side.command
        assert side.command[-1] == str(side.record)


def test_below_the_checkout_paths_are_those_that_an_image_has_too() -> None:
    _, b = against.sides("cpu", "cu128", "one", [], Path("build/against/one"))
    root = against.CONTAINERS.parent
    expected = (Path.cwd() / "build/against/one/b-cu128/record.json").relative_to(root)
    assert b.command[-1] == str(expected)


def test_an_unknown_stack_is_told_which_is_near(tmp_path: Path) -> None:
    with pytest.raises(WrongCall) as caught:
        against.sides("cpu", "cu12", "one", [], tmp_path)
    (problem,) = caught.value.problems
    assert problem.fix.startswith("Did you mean cu12")
