"""One process of a run: begins it or goes on with it, until it ends or its fault does away with it.

    python tests/chaos/child.py FOLDER [FAULT]

Exits with 0 at the run's end, 3 where the machine refused (a full disk), 4 where memory ran out. Beside the folder
it leaves FOLDER.met.json: what the process came by.
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path

import torch
from faults import Fault, install
from runs import load

from miniverl.engine import loop
from miniverl.engine.events import Event
from miniverl.engine.problem import CannotHere

DONE, CANNOT_HERE, OUT_OF_MEMORY = 0, 3, 4


def go_on(folder: Path, fault: Fault | None) -> int:
    """The exit code; whatever else the run raises is a crash."""
    met = install(fault, folder.with_name(f"{folder.name}.graveyard"))
    recipe, inputs = load(folder)
    try:
        loop.run(recipe, inputs, folder, device="cpu", threads=1, resume=True, listen=_ignore)
    except CannotHere as error:
        print(error, file=sys.stderr)
        return CANNOT_HERE
    except torch.OutOfMemoryError:
        return OUT_OF_MEMORY
    folder.with_name(f"{folder.name}.met.json").write_text(json.dumps(asdict(met)))
    return DONE


def _ignore(event: Event) -> None:
    """The journal has it."""


if __name__ == "__main__":
    place = Path(sys.argv[1])
    sys.exit(go_on(place, Fault.parse(sys.argv[2]) if len(sys.argv) > 2 else None))
