"""What is measured where the Hub gives no weights: the same work over seeded ones, under a name of its own."""

from miniverl.bench import fetch
from miniverl.bench.pin import HubPin, pin
from miniverl.bench.workload import Workload, workload
from miniverl.compiler.upstream import Progress
from miniverl.engine.problem import CannotHere


def available(chosen: Workload, progress: Progress) -> tuple[Workload, str | None]:
    """`chosen`, whose weights are here or come now; or its stand-in, and what to tell of that.

    Raises CannotHere for weights that nothing stands in for, Refused for wrong bytes.
    """
    if chosen.stand_in is None:
        return chosen, None
    wanted = [name for name in chosen.pins if isinstance(pin(name), HubPin)]
    try:
        fetch.fetch(wanted, progress)
    except CannotHere:
        lacking = " and ".join(pin(name).title for name in wanted)
        told = f"The Hub does not give {lacking}: {chosen.stand_in} is measured in place of {chosen.name}, the same work with seeded weights"
        return workload(chosen.stand_in), told
    return chosen, None
