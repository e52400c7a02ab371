"""How one of this engine's contestants answers: a line of JSON for each line it is asked, nothing else on stdout."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

Json = dict[str, Any]
READY: Json = {"ready": True}


def peak_bytes() -> int:
    """The most resident memory that this process has had, since it started or `forget_peak`."""
    with open("/proc/self/status", encoding="ascii") as status:
        line = next(line for line in status if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def forget_peak() -> None:
    """The peak is from now on that of what is resident now."""
    with open("/proc/self/clear_refs", "w", encoding="ascii") as refs:
        refs.write("5")


class Wire:
    """Questions and answers. What libraries print goes to stderr from here on."""

    def __init__(self) -> None:
        self._answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)

    def tell(self, answer: Json) -> None:
        self._answers.write(json.dumps(answer) + "\n")
        self._answers.flush()

    def asked(self) -> Iterator[Json]:
        """Until nobody asks any more."""
        for line in sys.stdin:
            yield json.loads(line)


def serve(measure: Callable[[Json], Json]) -> None:
    """Say that it is loaded, then answer every question."""
    wire = Wire()
    wire.tell(READY)
    for question in wire.asked():
        wire.tell(measure(question))
