"""The offline page: records side by side in one table, then each with its plots, tables and its own JSON.

One HTML file of our own making: no script is needed to read it, nothing is loaded, and equal records give
equal bytes.
"""

import base64
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from miniverl.bench import show, units
from miniverl.bench.comparability import sha256_of
from miniverl.bench.launch_values import is_number
from miniverl.bench.page import details, document, figure, table
from miniverl.bench.record_plots import plots
from miniverl.bench.validate import load
from miniverl.bench.version1 import version1
from miniverl.compiler.whole import json_text, write_text

Json = Mapping[str, Any]

LATEST = "latest.json"  # beside a workload's record folders: a copy of the last one

_COLOURS = {
    "measured": "good",
    "exact_match": "good",
    "proven": "good",
    "mismatch": "bad",
    "failed": "bad",
    "contract_exceeded": "bad",
    "blocked": "doubt",
    "interrupted": "doubt",
    "modified": "doubt",
    "unofficial": "doubt",
    "not_checked": "soft",
}


def latest_records(out: Path) -> list[Path]:
    """The last record of each workload and GPU below `out`."""
    return sorted((out / "bench").glob(f"*/*/{LATEST}"))


def write_site(records: Sequence[Path], out: Path) -> Path:
    """Write `out`/index.html with every record, the newest first; returns its path.

    Raises Refused or WrongCall for a record that is not valid.
    """
    loaded = [load(path) for path in records]
    loaded.sort(key=lambda record: (record["measured_at"], _digest(record)), reverse=True)
    path = out / "index.html"
    write_text(path, page(loaded))
    return path


def page(records: Sequence[Json]) -> str:
    """The page as text, records in the order given."""
    heading = "Measurement records" if len(records) != 1 else "Measurement record"
    header = (
        f"<h1>{heading}</h1>"
        '<p class="soft">Reinforcement learning of a language model on one device, measured by miniVERL.'
        " Every number below is in the record's own JSON, and <code>miniverl check</code> recomputes it.</p>"
    )
    keys = [f"r{index + 1}" for index in range(len(records))]
    overview = _overview(records, keys) if len(records) != 1 else ""
    sections = [_section(record, key) for record, key in zip(records, keys, strict=True)]
    footer = "This page is one file. It loads nothing, and works without scripts."
    return document(f"{heading} - miniVERL", header, overview + "".join(sections), footer)


def _overview(records: Sequence[Json], keys: Sequence[str]) -> str:
    columns = (
        "workload", "device", "status", "resume", "steady step", "rollout", "first update",
        "peak memory", "measured at",
    )  # fmt: skip
    rows = [_overview_row(record, key) for record, key in zip(records, keys, strict=True)]
    listing = table(columns, rows, numeric=frozenset({4, 5, 6, 7, 8}), sortable=True)
    return f"<section>{listing}</section>"


def _overview_row(record: Json, key: str) -> list[tuple[str, object] | str]:
    measured, hardware = record["measurements"], record["hardware"]
    device = hardware["gpu"] or hardware["cpu_model"]
    step = measured["steady_state_median_seconds"].get("step")
    rate = measured["steady_state_median_throughput"].get("rollout_tokens_per_second")
    first = measured["time_to_first_update_seconds"]
    peak = _peak(record)[1]
    status, resume = record["status"], record["resume"]["status"]
    return [
        (f'<a href="#{key}">{escape(show.name(record))}</a>', show.name(record)),
        (escape(device), device),
        (_word(status), status),
        (_word(resume), resume),
        (escape(units.seconds(step)), _sort_value(step)),
        (escape(units.per_second(rate)), _sort_value(rate)),
        (escape(units.seconds(first)), _sort_value(first)),
        (escape(units.gib(peak)), _sort_value(peak)),
        (record["measured_at"].partition("T")[0], record["measured_at"]),
    ]


def _section(record: Json, key: str) -> str:
    title = "" if version1(record) is not None else record["workload"]["title"]
    chips = [record["status"], f"resume {record['resume']['status']}"]
    if record.get("class", "reference") != "reference":
        chips.append(record["class"])
    drawn = "".join(figure(*each) for each in plots(record, key))
    return (
        f'<section id="{key}"><div class="head"><h2>{escape(show.name(record))}</h2>'
        f"{''.join(map(_chip, chips))}</div>"
        f"{f'<p>{escape(title)}</p>' if title else ''}"
        f'<p class="soft">{escape(show.place(record))} · {escape(record["measured_at"])}</p>'
        f"{_reasons(record)}{_figures(record)}"
        f'<div class="plots">{drawn}</div>{_findings(record)}{"".join(_tables(record))}'
        f'<p class="soft">{_download(record)}</p></section>'
    )


def _reasons(record: Json) -> str:
    """Why it was not measured, and where a resumed run differs."""
    reasons = [record["reason"]] if record.get("reason") else []
    first = record["resume"].get("first_difference")
    if first:
        reasons.append(f"The resumed run differs first in {units.difference(first)}")
    return "".join(f'<p class="bad">{escape(reason)}</p>' for reason in reasons)


def _figures(record: Json) -> str:
    """The numbers that people look for first."""
    measured = record["measurements"]
    step = measured["steady_state_median_seconds"].get("step")
    rate = measured["steady_state_median_throughput"].get("rollout_tokens_per_second")
    shown = [
        ("steady step", units.seconds(step)) if is_number(step) else None,
        ("rollout tokens", units.per_second(rate)) if is_number(rate) else None,
        ("to the first update", units.seconds(measured["time_to_first_update_seconds"])),
        (_peak(record)[0], units.gib(_peak(record)[1])),
        ("checkpoint", units.size(measured["checkpoint_bytes"])),
    ]
    reward = measured.get("training_metrics", {}).get("reward_mean")
    if reward and is_number(reward["change"]):
        thirds = (reward["first_third_mean"], reward["last_third_mean"])
        shown.append(
            (
                "reward over the run",
                " \N{RIGHTWARDS ARROW} ".join(f"{each:.2f}" for each in thirds),
            )
        )
    cells = "".join(
        f"<div><dt>{escape(each[0])}</dt><dd>{escape(each[1])}</dd></div>" for each in shown if each
    )
    return f'<dl class="figures">{cells}</dl>'


def _findings(record: Json) -> str:
    items = "".join(
        f'<li><span class="{_tone(each["severity"])}">{each["severity"]}</span> '
        f"{escape(each['message'])}</li>"
        for each in record.get("findings", [])
    )
    return f"<h3>Findings</h3><ul>{items}</ul>" if items else ""


def _tone(severity: str) -> str:
    return {"error": "bad", "warning": "doubt"}.get(severity, "soft")


def _tables(record: Json) -> Iterator[str]:
    yield details("All numbers", table(("number", "value"), show.summary_rows(record)))
    original = version1(record)
    if original is not None:
        stack = [(name, str(value)) for name, value in sorted(original["hardware"].items())]
        yield details("Machine and software", table(("what", "value"), stack))
        return
    yield details("Launches", _launches(record))
    yield details("Recipe", table(("field", "value"), _recipe_rows(record["recipe"])))
    environment = record["environment"]
    fields = {
        **{name: value for name, value in record["hardware"].items() if name != "details"},
        **{name: environment[name] for name in ("os", "kernel", "python", "stack")},
        "stack_matches_lock": environment["stack_matches_lock"],
    }
    machine = [
        *((name.replace("_", " "), _words(fields[name])) for name in sorted(fields)),
        *sorted(environment["packages"].items()),
        *sorted(environment["env"].items()),
    ]
    yield details("Machine and software", table(("what", "value"), machine))
    pins = [
        (
            each["pin"],
            each["kind"],
            units.size(each["bytes"]),
            each["licence"] or "-",
            each["sha256"],
        )
        for each in record["inputs"]
    ]
    columns = ("input", "kind", "size", "licence", "sha256")
    yield details("Inputs", table(columns, pins, hashes=frozenset({4})))


def _launches(record: Json) -> str:
    columns = ("launch", "role", "wall time", "models loaded", "first update", "steady step",
        "rollout", "peak resident", "exit")  # fmt: skip
    rows = []
    for launch, values in zip(record["launches"], record["measurements"]["launches"], strict=True):
        step = values["steady_state_median_seconds"].get("step")
        rate = values["steady_state_median_throughput"].get("rollout_tokens_per_second")
        rows.append(
            (
                str(launch["ordinal"]),
                launch["role"],
                units.seconds(values["seconds"]),
                units.seconds(values["cold_startup_seconds"]),
                units.seconds(values["time_to_first_update_seconds"]),
                units.seconds(step),
                units.per_second(rate),
                units.gib(values["peak_rss_gib"]),
                str(launch["exit_code"]),
            )
        )
    return table(columns, rows, numeric=frozenset(range(2, 9)))


def _recipe_rows(recipe: Json) -> list[tuple[str, str]]:
    names = (
        "estimator", "policy_loss", "learning_rate", "optimizer_updates", "logical_batch",
        "samples_per_prompt", "prompt_limit", "response_limit", "prompts_available",
        "prompts_consumed", "recipe_sha256",
    )  # fmt: skip
    return [(name.replace("_", " "), _words(recipe[name])) for name in names]


def _words(value: Any) -> str:
    """A value of any kind in a cell."""
    if isinstance(value, Mapping) and "status" not in value:
        return ", ".join(f"{name} {_words(each)}" for name, each in sorted(value.items()))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return units.metric(value) if isinstance(value, float) else units.absent(value)


def _peak(record: Json) -> tuple[str, Any]:
    """The memory that the contract is about: reserved on a GPU, resident on a CPU."""
    measured = record["measurements"]
    if is_number(measured["peak_reserved_gib"]):
        return "peak reserved memory", measured["peak_reserved_gib"]
    return "peak resident memory", measured.get("peak_rss_gib")


def _download(record: Json) -> str:
    text = json_text(record)
    data = base64.b64encode(text.encode()).decode()
    name = f"record-{_digest(record)[:12]}.json"
    size = units.size(len(text.encode()))
    return (
        f'<a download="{name}" href="data:application/json;base64,{data}">Download the record</a>'
        f" (JSON, {size}) · sha256 <code>{_digest(record)}</code>"
    )


def _digest(record: Json) -> str:
    """A version 1 record carries none, so it is computed."""
    sha256: str = record.get("record_sha256") or sha256_of(record)
    return sha256


def _word(status: str) -> str:
    return f'<span class="word {_COLOURS.get(status, "soft")}">{escape(status.replace("_", " "))}</span>'


def _chip(text: str) -> str:
    colour = _COLOURS.get(text.removeprefix("resume "), "soft")
    return f'<span class="chip {colour}">{escape(text.replace("_", " "))}</span>'


def _sort_value(value: Any) -> str:
    return str(value) if is_number(value) else ""
