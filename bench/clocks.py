"""At which clock a launch ran, from its telemetry: what a time is multiplied with to be told in cycles.

A driver that clocks a card lower makes every step slower, and changes nothing else. In cycles such a difference is
gone (as nvbench confirms its verdicts).
"""

import statistics
from collections.abc import Mapping
from typing import Any

from miniverl.bench.launch_values import is_number

Json = Mapping[str, Any]

# The first that was sampled: a card's own clock decides where there is one.
_SERIES = ("sm_clock_mhz", "cpu_mhz")


def steady_mhz(launch: Json) -> float | None:
    """Mean clock over the steady steps; None where it was not sampled then, or the telemetry is not valid."""
    steps = [each for each in launch["steps"] if each["is_finished"] and not each["is_warmup"]]
    if launch["telemetry"]["status"] != "valid" or not steps:
        return None
    start, end = steps[0]["started_at_seconds"], steps[-1]["finished_at_seconds"]
    series = launch["telemetry"]["series"]
    named = next((name for name in _SERIES if name in series), None)
    if named is None or not is_number(end):
        return None
    pairs = zip(series["at_seconds"], series[named], strict=True)
    seen = [clock for at, clock in pairs if start <= at <= end and clock > 0]
    return statistics.fmean(seen) if seen else None
