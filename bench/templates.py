"""Prompt rows from templates and pairs of numbers: every template with every pair, nothing drawn.

    python -m miniverl.bench.templates eight-templates ...      writes bench/data/eight-templates.jsonl, ...

One line is one row in verl's layout, as RFC 8785 JSON. The templates take turns, so that a batch of consecutive rows
asks different things.
"""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import rfc8785

from miniverl.bench.pin import TemplatedPin, pin

Row = dict[str, Any]

_ANSWERS: Mapping[str, Callable[[int, int], int]] = {
    "sum": lambda a, b: a + b,
    "difference": lambda a, b: a - b,
    "product": lambda a, b: a * b,
}


def rows(dataset: TemplatedPin) -> list[Row]:
    """All rows of its one split, in the order of the pairs."""
    (split,) = dataset.splits
    asked = [
        (number, template, a, b)
        for a, b in dataset.numbers
        for number, template in enumerate(dataset.templates)
    ]
    return [
        {
            "data_source": "miniverl/templates",
            "prompt": [
                {"role": "user", "content": template.text.format(a=a, b=b) + dataset.suffix}
            ],
            "ability": "arithmetic",
            "reward_model": {"style": "rule", "ground_truth": str(_ANSWERS[template.answer](a, b))},
            "extra_info": {"split": split, "index": index, "template": number},
        }
        for index, (number, template, a, b) in enumerate(asked)
    ]


def lines(dataset: TemplatedPin) -> bytes:
    """The committed file's bytes."""
    return b"".join(rfc8785.dumps(row) + b"\n" for row in rows(dataset))


if __name__ == "__main__":
    for name in sys.argv[1:]:
        chosen = pin(name)
        assert isinstance(chosen, TemplatedPin), f"{name} is not made from templates"
        (Path(__file__).with_name("data") / chosen.file).write_bytes(lines(chosen))
