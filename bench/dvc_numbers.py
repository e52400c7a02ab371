"""The main numbers of records as DVC reads them: metrics.json for `dvc metrics diff`, steps.json for `dvc plots`.

DVC compares numbers between commits and knows neither units nor noise; `miniverl compare` gives verdicts.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from miniverl.bench.launch_values import is_number
from miniverl.compiler.whole import write_json

Json = Mapping[str, Any]

_NUMBERS = (
    "cold_startup_seconds",
    "time_to_first_rollout_seconds",
    "time_to_first_update_seconds",
    "peak_allocated_gib",
    "peak_reserved_gib",
    "peak_rss_gib",
    "adapter_bytes",
    "checkpoint_bytes",
)
_GROUPS = ("steady_state_median_seconds", "steady_state_median_throughput")


def write(records: Sequence[Json], folder: Path) -> None:
    """Both files, whole, in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(
        folder / "metrics.json", {each["workload"]["name"]: numbers(each) for each in records}
    )
    write_json(folder / "steps.json", [row for each in records for row in step_rows(each)])


def numbers(record: Json) -> dict[str, Any]:
    """What was measured and is a number, under the record's own names."""
    measured = record["measurements"]
    told: dict[str, Any] = {name: measured[name] for name in _NUMBERS if is_number(measured[name])}
    return told | {group: measured[group] for group in _GROUPS if measured[group]}


def step_rows(record: Json) -> Iterator[dict[str, Any]]:
    """Seconds of each finished step of the straight launches."""
    for launch in record["launches"]:
        for step in launch["steps"]:
            if launch["role"] == "straight" and step["is_finished"]:
                name = f"{record['workload']['name']}, launch {launch['ordinal']}"
                yield {"launch": name, "step": step["step"], "seconds": step["seconds"]}
