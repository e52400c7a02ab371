"""What the parent samples of a launch: resident memory on any machine, a card's readings where one is used."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise

from miniverl.bench import nvml, telemetry
from miniverl.bench.gpu import Card
from miniverl.bench.nvml import Status
from miniverl.bench.runner import Sampler

# Two samples further apart than this: the parent was held up, and peaks may have passed unseen.
LONGEST_GAP_SECONDS = 3.0


@contextmanager
def sampler(card: Card | None) -> Iterator[Sampler]:
    """The sampler of a run on `card`, or on the CPU; valid inside the block."""
    if card is None:
        yield _host_readings
        return
    with nvml.opened():

        def readings(pid: int) -> Mapping[str, float]:
            pids = telemetry.process_tree(pid)
            of_card = nvml.ask(partial(telemetry.card_readings, card.index, pids))
            if isinstance(of_card, Status):  # the card is lost; the run will say so itself
                return _host_readings(pid)
            told = {name: v for name, v in of_card.items() if not isinstance(v, Status)}
            return {**_host_readings(pid), **told}

        yield readings


def doubts(samples: Sequence[Mapping[str, float]]) -> list[str]:
    """Why no conclusions may be drawn from the samples; empty where they may."""
    gaps = [
        later["monotonic_seconds"] - earlier["monotonic_seconds"]
        for earlier, later in pairwise(samples)
    ]
    return ["sampling_gap"] if max(gaps, default=0.0) > LONGEST_GAP_SECONDS else []


def _host_readings(pid: int) -> Mapping[str, float]:
    """`peak_rss_bytes` is the kernel's own count, which misses no peak between two samples."""
    held, peak = telemetry.rss_bytes(pid), telemetry.peak_rss_bytes(pid)
    known = {"rss_bytes": held, "peak_rss_bytes": peak}
    return {name: value for name, value in known.items() if value is not None}
