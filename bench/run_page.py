"""report.html of a run folder: what the policy earned, where the time went, and what it said, step by step.

One file that loads nothing and reads without scripts; written by the parent whenever a process of the run has ended.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from statistics import fmean, median
from typing import Any

from miniverl.bench import inspect as inspecting
from miniverl.bench import run_folder, units
from miniverl.bench.inspect import Seen
from miniverl.bench.launch_values import is_number
from miniverl.bench.page import details, document, figure, table
from miniverl.bench.plot import Axes, Series, lines, stacked_bars
from miniverl.bench.record_plots import PHASE_COLOURS, Plot
from miniverl.bench.runner import Outcome
from miniverl.compiler.whole import write_text
from miniverl.engine.problem import Problems, Refused

NAME = "report.html"

_SHOWN_STEPS = 12  # with responses: the first, the last, and between them at equal distances
_SHOWN_BARS = 60
_SHOWN_CHARACTERS = 2000
_REST = "rest"
_SHOWN_SHARE = 0.02  # of all time; phases that take less are part of the rest
_STEP = re.compile(rb',"step":(\d+)')
_TONES = {"finished": "good", "interrupted": "doubt", "killed": "doubt"}  # else bad
_METRICS = (
    ("Divergence", "nats", {
        "kl_loss": "from the reference, in the loss",
        "kl_reward": "from the reference, in the reward",
        "approximate_kl": "of the update from the sampling policy",
    }, "Means over response tokens."),
    ("Lengths", "tokens", {"response_tokens_mean": "response", "prompt_tokens_mean": "prompt"},
     "Means over the trajectories of a step."),
    ("Entropy", "nats", {"entropy": "entropy"}, "Of the policy, mean over response tokens."),
    ("Loss", "loss", {"loss": "loss"}, ""),
    ("Gradient norm", "norm", {"gradient_norm": "norm"}, "Before clipping, mean over the step."),
)  # fmt: skip


@dataclass(slots=True)
class StepTime:
    """Seconds of one step: of it all, and by phase; what follows a step (checkpoint, validation) is in `after`."""

    seconds: float | None = None
    within: dict[str, float] = field(default_factory=dict)
    after: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Told:
    """What the journal says, of the process that came last to each step."""

    times: Mapping[int, StepTime]
    validations: Mapping[int, Mapping[str, float]]
    warnings: Sequence[str]
    num_steps: int | None
    device: str


def leave(folder: Path, outcome: Outcome, write: Callable[[str], None]) -> None:
    """Write the report of a run of which no process is left; where that cannot be, say so: the run is as it is."""
    try:
        write_text(folder / NAME, page(folder, outcome))
    except Problems as error:
        write(f"  no {NAME}: {error.problems[0].reason}")
    except OSError as error:  # of a log
        write(f"  no {NAME}: {error}")


def page(folder: Path, outcome: Outcome) -> str:
    """The page as text. Raises Refused where a log of the run is damaged."""
    told, metrics = _told(folder), list(run_folder.rows(folder / "metrics.jsonl"))
    name = folder.resolve().name
    status = outcome.status.replace("_", " ")
    done = metrics[-1]["step"] if metrics else 0
    of = "" if told.num_steps is None else f" of {told.num_steps}"
    header = (
        f'<div class="head"><h1>Run {escape(name)}</h1>'
        f'<span class="chip {_TONES.get(outcome.status, "bad")}">{escape(status)}</span></div>'
        f'<p class="soft">Step {done}{of}, on {escape(told.device)}. {escape(_of_recipe(folder))}</p>'
        f"{_reasons(outcome)}"
    )
    drawn = "".join(figure(*each) for each in _plots(told, metrics))
    main = (
        f'<section>{_figures(told, metrics)}<div class="plots">{drawn}</div>{_warnings(told)}'
        f"{_table(metrics)}</section>{_samples(folder)}"
    )
    footer = (
        "This page is one file. It loads nothing, and works without scripts. Every number is in metrics.jsonl and "
        "journal.jsonl beside it, every response in trajectories.jsonl."
    )
    return document(f"Run {name} - miniVERL", header, main, footer)


def _told(folder: Path) -> Told:
    times: dict[int, StepTime] = {}
    validations: dict[int, Mapping[str, float]] = {}
    warnings: dict[str, None] = {}
    num_steps, device = None, "a device that it did not come to"
    for event in run_folder.rows(folder / "journal.jsonl"):
        match event["event"]:
            case "run_started":
                num_steps, device = event["num_steps"], event["device"]
            case "step_started":
                times[event["step"]] = StepTime()
            case "phase_finished" if event["step"] in times:
                step = times[event["step"]]
                phases = step.within if step.seconds is None else step.after
                phases[event["phase"]] = phases.get(event["phase"], 0.0) + event["seconds"]
            case "step_finished":
                times[event["step"]].seconds = event["seconds"]
            case "validation_finished":
                validations[event["step"]] = event["metrics"]
            case "warned":
                warnings[event["message"]] = None
    return Told(
        times=times,
        validations=validations,
        warnings=list(warnings),
        num_steps=num_steps,
        device=device,
    )


def _of_recipe(folder: Path) -> str:
    """What was trained, in one sentence; the recipe's own file has the rest."""
    recipe = json.loads((folder / "recipe.json").read_text("utf-8"))
    advantage, rollout = recipe["advantage"]["estimator"], recipe["rollout"]
    trained = "all weights" if recipe["policy"]["lora"] is None else "LoRA"
    return (
        f"{advantage}, {trained}, {recipe['data']['prompts_per_step']} prompts x "
        f"{rollout['samples_per_prompt']}, at most {rollout['max_response_tokens']} tokens."
    )


def _reasons(outcome: Outcome) -> str:
    if outcome.status == "finished":
        return ""
    if outcome.problems:
        told = [
            f"{each['field']} = {each['value']!r}: {each['reason']}. {each['fix']}"
            for each in outcome.problems
        ]
    else:
        told = [outcome.reason or outcome.status]
    return "".join(f'<p class="bad">{escape(inspecting.printable(each))}</p>' for each in told)


def _figures(told: Told, metrics: Sequence[Mapping[str, Any]]) -> str:
    whole = [step.seconds for step in told.times.values() if step.seconds is not None]
    third = max(1, len(metrics) // 3)
    shown = []
    if metrics:
        first, last = (
            fmean(row["reward_mean"] for row in rows)
            for rows in (metrics[:third], metrics[-third:])
        )
        shown.append(
            ("reward, first and last third", f"{first:.2f} \N{RIGHTWARDS ARROW} {last:.2f}")
        )
        shown += [
            (title, units.metric(metrics[-1][name]))
            for name, title in (("kl_loss", "KL, last step"), ("entropy", "entropy, last step"),
                                ("response_tokens_mean", "response tokens, last step"))
            if is_number(metrics[-1].get(name))
        ]  # fmt: skip
    if whole:
        shown.append(("a step, median", units.seconds(median(whole))))
    cells = "".join(f"<div><dt>{escape(a)}</dt><dd>{escape(b)}</dd></div>" for a, b in shown)
    return f'<dl class="figures">{cells}</dl>' if cells else ""


def _plots(told: Told, metrics: Sequence[Mapping[str, Any]]) -> Iterator[Plot]:
    reward = _series(metrics, {"reward_mean": "reward"})
    held_out = [
        (step, numbers["reward_mean"]) for step, numbers in sorted(told.validations.items())
    ]
    if held_out:
        reward.append(Series(name="validation", colour=1, values=held_out, dotted=True))
    if reward:
        caption = "Mean over the responses of a step, sampled before its update."
        yield _plot("Reward", "reward", reward, caption)
    if any(step.seconds is not None for step in told.times.values()):
        yield _time_plot(told.times)
    for heading, unit, names, caption in _METRICS:
        series = _series(metrics, names)
        if series:
            yield _plot(heading, unit, series, caption)


def _series(metrics: Sequence[Mapping[str, Any]], names: Mapping[str, str]) -> list[Series]:
    found = []
    for colour, (name, title) in enumerate(names.items()):
        values = [(row["step"], row[name]) for row in metrics if is_number(row.get(name))]
        if values:
            found.append(Series(name=title, colour=colour, values=values))
    return found


def _plot(heading: str, unit: str, series: Sequence[Series], caption: str) -> Plot:
    ends = [f"{each.name} {units.digits(each.values[0][1])} to {units.digits(each.values[-1][1])}"
            for each in series]  # fmt: skip
    axes = Axes(
        key=heading.split()[0].lower(),
        title=f"{heading} of each step",
        summary="; ".join(ends),
        x="step",
        y=unit,
        counts_x=True,
    )
    return heading, lines(axes, series), caption


def _time_plot(times: Mapping[int, StepTime]) -> Plot:
    whole = [step for step in sorted(times) if times[step].seconds is not None]
    chosen = _spread(whole, _SHOWN_BARS)
    stacks: list[tuple[str, dict[str, float]]] = []
    for step in chosen:
        time = times[step]
        assert time.seconds is not None
        parts: dict[str, float] = {}
        for phase, seconds in (*time.within.items(), *time.after.items()):
            title = units.PHASES.get(phase, phase)
            parts[title] = parts.get(title, 0.0) + seconds
        parts[_REST] = max(0.0, time.seconds - sum(time.within.values()))
        stacks.append((str(step), parts))
    colours = _gather_small(stacks)
    axes = Axes(
        key="time",
        title="Seconds of each step by phase",
        summary=f"{len(whole)} steps, median {units.seconds(median(times[step].seconds or 0.0 for step in whole))}",
        x="step",
        y="seconds",
    )
    caption = "" if len(chosen) == len(whole) else f"{len(chosen)} of {len(whole)} steps."
    return "Time by phase", stacked_bars(axes, stacks, colours, [False] * len(stacks)), caption


def _gather_small(stacks: Sequence[tuple[str, dict[str, float]]]) -> dict[str, int]:
    """Move what takes next to nothing into the rest; returns the colours of what is left, in the order of a step."""
    totals: dict[str, float] = {}
    for _, parts in stacks:
        for name, seconds in parts.items():
            totals[name] = totals.get(name, 0.0) + seconds
    least = _SHOWN_SHARE * sum(totals.values())
    small = {name for name, seconds in totals.items() if seconds < least} - {_REST}
    for _, parts in stacks:
        parts[_REST] += sum(parts.pop(name, 0.0) for name in small)
    shown = totals.keys() - small
    return {name: PHASE_COLOURS.get(name, 8) for name in (*PHASE_COLOURS, _REST) if name in shown}


def _spread(steps: Sequence[int], count: int) -> list[int]:
    """At most `count` of them: the first, the last, and between them at equal distances."""
    if len(steps) <= count:
        return list(steps)
    return [steps[round(index * (len(steps) - 1) / (count - 1))] for index in range(count)]


def _warnings(told: Told) -> str:
    items = "".join(
        f'<li><span class="doubt">warning</span> {escape(each)}</li>' for each in told.warnings
    )
    return f"<h3>Warnings</h3><ul>{items}</ul>" if items else ""


def _table(metrics: Sequence[Mapping[str, Any]]) -> str:
    if not metrics:
        return ""
    names = sorted({name for row in metrics for name in row} - {"step"})
    rows = [[units.metric(row.get(name)) for name in ("step", *names)] for row in metrics]
    titles = ["step", *(name.replace("_", " ") for name in names)]
    return details("All numbers", table(titles, rows, numeric=frozenset(range(len(titles)))))


def _samples(folder: Path) -> str:
    """Of some steps, the response that earned most and the one that earned least."""
    path = folder / "trajectories.jsonl"
    steps: dict[int, None] = {}
    for number, line in enumerate(run_folder.lines(path), start=1):
        steps[_step_of(path, number, line)] = None
    chosen = set(_spread(list(steps), _SHOWN_STEPS))
    by_step: dict[int, list[Seen]] = {step: [] for step in sorted(chosen)}
    for number, line in enumerate(run_folder.lines(path), start=1):
        if _step_of(path, number, line) in chosen:
            each = inspecting.seen(path, number, run_folder.parsed(path, number, line))
            by_step[each.step].append(each)
    if not by_step:
        return ""
    shown = {
        step: [max(group, key=_earned), min(group, key=_earned)] for step, group in by_step.items()
    }
    tokens = {each.prompt_tokens for group in shown.values() for each in group}
    prompts, _ = inspecting.prompt_texts(folder, tokens)
    columns = ("", "reward", "advantage", "tokens", "prompt", "response")
    parts = []
    for index, (step, group) in enumerate(shown.items()):
        rows = [
            _row(name, each, prompts)
            for name, each in zip(("highest", "lowest"), group, strict=True)
        ]
        heading = f"Step {step}, {len(by_step[step])} responses"
        content = table(columns, rows, numeric=frozenset({1, 2, 3}))
        is_open = " open" if index == len(shown) - 1 else ""
        parts.append(f"<details{is_open}><summary>{heading}</summary>{content}</details>")
    return f"<section><h2>Responses</h2>{''.join(parts)}</section>"


def _row(name: str, each: Seen, prompts: Mapping[tuple[int, ...], str] | None) -> list[str]:
    prompt = "" if prompts is None or each.prompt_tokens is None else prompts[each.prompt_tokens]
    advantage = "" if each.advantage is None else f"{each.advantage:+.3f}"
    texts = [_cut(prompt) or f"prompt {each.prompt_id}", _cut(each.response)]
    return [name, units.digits(each.reward), advantage, str(each.response_tokens), *texts]


def _earned(each: Seen) -> tuple[float, float]:
    return each.reward, each.advantage or 0.0


def _cut(text: str) -> str:
    cut = " ..." if len(text) > _SHOWN_CHARACTERS else ""
    shown = inspecting.printable(text[:_SHOWN_CHARACTERS])
    return shown.replace("\n", " \N{DOWNWARDS ARROW WITH CORNER LEFTWARDS} ") + cut


def _step_of(path: Path, number: int, line: bytes) -> int:
    """Without reading the rest of a long line: in a text its quotes would have a backslash before them."""
    found = _STEP.findall(line)
    if not found:
        raise Refused([run_folder.broken(path, number, "it has no 'step'")])
    return int(found[-1])
