"""This engine's training step, in its real loop: each step waits for its turn, the first one warms up.

    python -P -m miniverl.bench.peers.ours_step RUN_FOLDER --threads 2

RUN_FOLDER holds recipe.json and bindings.json, as of any run. It ends where nobody asks any more.
"""

import argparse
import json
import sys
import time
from pathlib import Path

from miniverl.bench.peers.answers import READY, Json, Wire, peak_bytes
from miniverl.engine import loop
from miniverl.engine import recipe as recipes
from miniverl.engine.events import Event, PhaseFinished, StepFinished, StepStarted


class _Turns:
    """Hears the run. A step's time is from its turn to its end, its log and journal lines included."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._asked = wire.asked()
        self._phases: dict[str, Json] = {}
        self._started = 0.0

    def __call__(self, event: Event) -> None:
        if isinstance(event, StepStarted):
            self._wait(event.step)
        elif isinstance(event, PhaseFinished):
            self._phases[event.phase] = {"seconds": event.seconds, "tokens": event.tokens}
        elif isinstance(event, StepFinished) and event.step > 1:
            seconds = time.perf_counter() - self._started
            found = {"seconds": seconds, "phases": self._phases, "peak_bytes": peak_bytes()}
            self._wire.tell({**found, "tokens": self._phases["rollout"]["tokens"]})

    def _wait(self, step: int) -> None:
        if step == 2:
            self._wire.tell(READY)
        if step > 1 and next(self._asked, None) is None:
            sys.exit(0)
        self._phases = {}
        self._started = time.perf_counter()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--threads", type=int, required=True)
    call = parser.parse_args()
    turns = _Turns(Wire())
    path = call.folder / "recipe.json"
    recipe = recipes.loads(path.read_text("utf-8"), str(path))
    bindings = json.loads((call.folder / "bindings.json").read_text("utf-8"))
    inputs = loop.Inputs.of(recipe, {name: Path(bindings[name]) for name in recipe.inputs})
    loop.run(
        recipe,
        inputs,
        call.folder,
        device="cpu",
        threads=call.threads,
        resume=False,
        listen=turns,
    )


if __name__ == "__main__":
    main()
