"""The plots of a record: where a step's time goes, what the policy earns, memory over time, the cold start."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from miniverl.bench import units
from miniverl.bench.launch_values import COLD_START_PARTS, GIB, PUBLISHED_NAMES, is_number
from miniverl.bench.plot import Axes, Series, bars, lines, stacked_bars, waterfall
from miniverl.bench.version1 import version1

Json = Mapping[str, Any]
Plot = tuple[str, str, str]  # heading, SVG, caption

# A phase keeps its colour in every plot of every record.
_COLOURS = {
    "rollout": 0,
    "reward": 6,
    "score_old": 2,
    "score_reference": 7,
    "score_values": 6,
    "score_teacher": 3,
    "advantage": 5,
    "critic_update": 2,
    "update": 1,
    "checkpoint": 4,
    "validation": 3,
    "restore": 6,
}
_PHASES = {phase: (title, _COLOURS[phase]) for phase, title in units.PHASES.items()}
PHASE_COLOURS = dict(_PHASES.values())  # by the name that people read
_REST = ("rest", 8)
_SHOWN_SHARE = 0.01  # of all time; what takes less is part of the rest
_PART_TITLES = dict(
    zip(
        COLD_START_PARTS,
        (
            "interpreter",
            "imports",
            "recipe and data",
            "models",
            "before the first step",
            "first rollout",
            "first update",
        ),
        strict=True,
    )
)
_MEMORY = {
    "rss_bytes": ("resident", 0),
    "process_bytes": ("process on device", 1),
    "device_bytes": ("device", 2),
}


def plots(record: Json, key: str) -> Iterator[Plot]:
    """Every plot that the record has the numbers for. `key` is part of their ids."""
    original = version1(record)
    if original is not None:
        yield from _published_plots(original, key)
        return
    launch = _shown_launch(record)
    if launch is None:
        return
    if launch["steps"]:
        yield _step_plot(launch, f"{key}-steps")
    yield from _reward_plot(launch, f"{key}-reward")
    yield from _memory_plot(launch, record["resource_contract"], f"{key}-memory")
    yield from _cold_start_plot(record["measurements"]["cold_start"], f"{key}-start")


def _shown_launch(record: Json) -> Json | None:
    """The first straight launch, else the first of all."""
    launches: Sequence[Json] = record["launches"]
    straight = [launch for launch in launches if launch["role"] == "straight"]
    return next(iter((*straight, *launches)), None)


def _step_plot(launch: Json, key: str) -> Plot:
    steps = launch["steps"]
    totals: dict[str, float] = {}
    for step in steps:
        for name, phase in step["phases"].items():
            totals[name] = totals.get(name, 0.0) + phase["seconds"]
    least = _SHOWN_SHARE * math.fsum(totals.values())
    shown = {name: _PHASES.get(name, (name, 8)) for name in totals if totals[name] >= least}
    order = [name for name in _PHASES if name in shown] + sorted(shown.keys() - _PHASES.keys())
    stacks = []
    for step in steps:
        parts = {
            shown[name][0]: step["phases"].get(name, {"seconds": 0})["seconds"] for name in order
        }
        parts[_REST[0]] = _rest(step, order)
        stacks.append((str(step["step"]), parts))
    colours = {shown[name][0]: shown[name][1] for name in order}
    if any(parts[_REST[0]] >= 0.005 * math.fsum(parts.values()) for _, parts in stacks):
        colours[_REST[0]] = _REST[1]
    axes = Axes(
        key=key,
        title="Seconds of each step by phase",
        summary=f"{len(steps)} steps; longest phase {max(totals, key=totals.__getitem__, default='none')}",
        x="step",
        y="seconds",
    )
    warmup = sum(step["is_warmup"] for step in steps)
    caption = f"Pale: warm-up, {warmup} of {len(steps)}, not in the steady state." if warmup else ""
    svg = stacked_bars(axes, stacks, colours, [step["is_warmup"] for step in steps])
    return "Where a step's time goes", svg, caption


def _rest(step: Json, order: Sequence[str]) -> float:
    """Time of the step that no shown phase took; the checkpoint comes after it."""
    if not is_number(step["seconds"]):
        return 0.0
    taken = [
        step["phases"][name]["seconds"]
        for name in order
        if name in step["phases"]
        and step["phases"][name]["at_seconds"] <= step["finished_at_seconds"]
    ]
    return max(0.0, step["seconds"] - math.fsum(taken))


def _reward_plot(launch: Json, key: str) -> Iterator[Plot]:
    points = _metric_points(launch["steps"], "reward_mean")
    if not points:
        return
    series = [Series(name="mean reward", colour=0, values=points)]
    validations = _metric_points(launch["validations"], "reward_mean")
    if validations:
        series.append(Series(name="validation", colour=1, values=validations, dotted=True))
    first, last = points[0][1], points[-1][1]
    axes = Axes(
        key=key,
        title="Mean reward of each step",
        summary=f"From {units.digits(first)} at step {points[0][0]:.0f} "
        f"to {units.digits(last)} at step {points[-1][0]:.0f}",
        x="step",
        y="reward",
        counts_x=True,
    )
    caption = "Mean over the responses of a step, sampled before its update."
    yield "What the policy earns", lines(axes, series), caption


def _metric_points(rows: Sequence[Json], name: str) -> list[tuple[float, float]]:
    return [
        (row["step"], row["metrics"][name]) for row in rows if is_number(row["metrics"].get(name))
    ]


def _memory_plot(launch: Json, contract: Json, key: str) -> Iterator[Plot]:
    sampled = launch["telemetry"]["series"]
    at = sampled["at_seconds"]
    names = [name for name in _MEMORY if name in sampled]
    if len(at) < 2 or not names:
        return
    series = [
        Series(
            name=_MEMORY[name][0],
            colour=_MEMORY[name][1],
            values=[(when, size / GIB) for when, size in zip(at, sampled[name], strict=True)],
            filled=name == names[0],
        )
        for name in names
    ]
    peak = launch["memory"]["peak_rss_bytes"]
    highest = max(value for each in series for _, value in each.values)
    limit = contract["peak_rss_limit_gib"]
    is_near = is_number(limit) and limit <= 2 * highest
    axes = Axes(
        key=key,
        title="Memory while it ran",
        summary=f"Sampled {len(at)} times; the highest sample is {highest:.2f} GiB",
        x="seconds since the process was created",
        y="GiB",
    )
    caption = f"Peak by the kernel's count: {units.gib(peak / GIB)}." if is_number(peak) else ""
    if is_number(limit):
        caption = f"{caption} The contract allows {units.gib(limit)}.".strip()
    line = (f"limit {units.gib(limit)}", limit) if is_near else None
    yield "Memory while it ran", lines(axes, series, line), caption


def _cold_start_plot(parts: Json, key: str) -> Iterator[Plot]:
    known = [(_PART_TITLES[n], parts[n]) for n in COLD_START_PARTS if is_number(parts[n])]
    if known:
        total = math.fsum(seconds for _, seconds in known)
        yield _start(known, f"{units.seconds(total)} from the creation of the process.", key)


def _published_plots(record: Json, key: str) -> Iterator[Plot]:
    """Version 1 has times to first results, and medians."""
    measured = record["measurements"]
    marks = (
        ("start-up", "cold_startup_seconds"),
        ("first rollout", "time_to_first_rollout_seconds"),
        ("teacher targets", "time_to_first_teacher_targets_seconds"),
        ("first update", "time_to_first_update_seconds"),
    )
    parts, before = [], 0.0
    for title, name in marks:
        parts.append((title, round(measured[name] - before, 4)))
        before = measured[name]
    yield _start(
        parts, f"{units.seconds(before)} from the creation of the process.", f"{key}-start"
    )
    medians = measured["steady_state_median_seconds"]
    own_names = {published: name for name, published in PUBLISHED_NAMES.items()}
    shown = {
        n: _PHASES[own_names.get(n, n)] for n in ("rollout", "teacher_scoring", "actor_update")
    }
    phases = [(title, medians[name]) for name, (title, _) in shown.items()]
    axes = Axes(
        key=f"{key}-steps",
        title="Median seconds of each phase",
        summary=", ".join(f"{name} {units.seconds(value)}" for name, value in phases),
        x="seconds",
        y="",
    )
    svg = bars(axes, phases, [colour for _, colour in shown.values()])
    yield "Where a step's time goes", svg, "Medians of the steady steps; samples were not kept."


def _start(parts: Sequence[tuple[str, float]], caption: str, key: str) -> Plot:
    axes = Axes(
        key=key,
        title="Parts of the time to the first update",
        summary=", ".join(f"{name} {units.seconds(value)}" for name, value in parts),
        x="seconds",
        y="",
    )
    return "Until the first update", waterfall(axes, parts), caption
