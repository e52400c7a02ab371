"""Regenerates committed prompt rows from the generator that their pin names.

    python -m miniverl.bench.generate chain-sum ...      writes bench/data/chain-sum.jsonl, ...

Needs the `data` dependency group. One line is one row in verl's layout, as RFC 8785 JSON; the rows of a
split stand together, in the order in which their questions first appear in the generator's stream.
"""

import importlib.metadata
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import reasoning_gym
import rfc8785

from miniverl.bench.pin import GeneratedPin, Generator, Task, pin
from miniverl.engine.problem import CannotHere, Problem

Row = dict[str, Any]


def rows(dataset: GeneratedPin) -> list[Row]:
    """All rows of all splits. No question is in two of them; raises CannotHere for another version."""
    _require_version(dataset.generator)
    places = [
        (name, index) for name, split in dataset.splits.items() for index in range(split.rows)
    ]
    tasks = dataset.generator.tasks
    turns = zip(*(_distinct_rows(dataset.generator, task) for task in tasks), strict=False)
    drawn = list(islice((row for turn in turns for row in turn), len(places)))
    assert len(drawn) == len(places), f"only {len(drawn)} distinct questions in turn"
    return [
        row | {"extra_info": {"split": split, "index": index, **row["extra_info"]}}
        for (split, index), row in zip(places, drawn, strict=True)
    ]


def lines(dataset: GeneratedPin) -> bytes:
    """The committed file's bytes."""
    return b"".join(rfc8785.dumps(row) + b"\n" for row in rows(dataset))


def _require_version(generator: Generator) -> None:
    found = importlib.metadata.version(generator.distribution)
    if found != generator.version:
        problem = Problem(
            field=generator.distribution,
            value=found,
            origin="installed packages",
            reason=f"the rows are pinned to version {generator.version}",
            fix=f"Install {generator.distribution}=={generator.version} (the data group)",
        )
        raise CannotHere([problem])


def _distinct_rows(generator: Generator, task: Task) -> Iterator[Row]:
    """Every question that has not appeared before, with its place in the task's stream."""
    stream = reasoning_gym.create_dataset(
        task.name, seed=generator.seed, size=task.draws, **task.arguments
    )
    seen: set[str] = set()
    for place in range(task.draws):
        entry = stream[place]
        if entry["question"] not in seen:
            seen.add(entry["question"])
            yield {
                "data_source": f"{generator.distribution}/{task.name}",
                "prompt": [{"role": "user", "content": entry["question"] + task.suffix}],
                "ability": task.ability,
                "reward_model": {"style": "rule", "ground_truth": entry["answer"]},
                "extra_info": {"draw": place},
            }


if __name__ == "__main__":
    for name in sys.argv[1:]:
        chosen = pin(name)
        assert isinstance(chosen, GeneratedPin), f"{name} is not generated"
        (Path(__file__).with_name("data") / chosen.file).write_bytes(lines(chosen))
