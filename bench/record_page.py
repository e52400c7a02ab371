"""The page of one record: numbers, plots, how to repeat it, what it ran on, and the proofs that it holds."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from miniverl.bench import aa, determinism, show, units
from miniverl.bench.launch_values import is_number
from miniverl.bench.page import commands, details, figure, table
from miniverl.bench.record_plots import plots
from miniverl.bench.results import digest_of, environment_id, num_launches
from miniverl.bench.version1 import version1

Json = Mapping[str, Any]

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


def section(record: Json, key: str, *, address: str, review: str | None) -> str:
    """Everything of the record. `address`: of its JSON, relative to the page; `key`: part of every id."""
    title = "" if version1(record) is not None else record["workload"]["title"]
    chips = [record["status"], f"resume {record['resume']['status']}"]
    chips += [each for each in (record.get("class"), review) if each not in (None, "reference")]
    chips += ["reference"] if review == "reference" else []
    drawn = "".join(figure(*each) for each in plots(record, key))
    return (
        f'<section id="{key}"><div class="head"><h2>{escape(show.name(record))}</h2>'
        f"{''.join(map(_chip, chips))}</div>"
        f"{f'<p>{escape(title)}</p>' if title else ''}"
        f'<p class="soft">{escape(show.place(record))} · {escape(record["measured_at"])}</p>'
        f"{_reasons(record)}{_figures(record)}"
        f'<div class="plots">{drawn}</div>{_findings(record)}{"".join(_proofs(record))}'
        f"{''.join(_tables(record))}"
        f'<p class="soft">{_download(record, address)}</p></section>'
    )


def word(status: str) -> str:
    """A status in its colour."""
    return f'<span class="word {_COLOURS.get(status, "soft")}">{escape(status.replace("_", " "))}</span>'


def peak(record: Json) -> tuple[str, Any]:
    """The memory that the contract is about: reserved on a GPU, resident on a CPU."""
    measured = record["measurements"]
    if is_number(measured["peak_reserved_gib"]):
        return "peak reserved memory", measured["peak_reserved_gib"]
    return "peak resident memory", measured.get("peak_rss_gib")


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
        (peak(record)[0], units.gib(peak(record)[1])),
        ("checkpoint", units.size(measured["checkpoint_bytes"])),
    ]
    reward = measured.get("training_metrics", {}).get("reward_mean")
    if reward and is_number(reward["change"]):
        thirds = (reward["first_third_mean"], reward["last_third_mean"])
        arrow = " \N{RIGHTWARDS ARROW} ".join(f"{each:.2f}" for each in thirds)
        shown.append(("reward over the run", arrow))
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


def _proofs(record: Json) -> Iterator[str]:
    """How to repeat it, whether resume is exact, what gave equal bytes, and how often a verdict is wrong."""
    yield f"<h3>Repeat it</h3>{_reproduce(record)}"
    rows = [(name, value) for name, value in _resume_rows(record)]
    yield f"<h3>Resume</h3>{table(('what', 'found'), rows)}"
    files = _resumed_files(record)
    if files:
        columns = ("file", "straight run", "resumed run", "")
        yield details("Files of both runs", table(columns, files, hashes=frozenset({1, 2})))
    if "determinism" in record:
        rows = list(determinism.rows(record))
        yield f"<h3>Determinism</h3>{table(('compared', 'found'), rows)}"
    if num_launches(record) >= aa.LAUNCHES:
        lines = "".join(f"<li>{escape(line.strip())}</li>" for line in aa.self_test(record).lines())
        yield f"<h3>The suite against itself</h3><ul>{lines}</ul>"


def _reproduce(record: Json) -> str:
    if version1(record) is not None:
        return '<p class="soft">Version 1 does not say which command measured it.</p>'
    workload = record["workload"]
    gpu = " --gpu cpu" if record["hardware"]["device"] == "cpu" else ""
    commit = record["source_commit"]
    lines = [f"git checkout {commit}"] if commit else []
    lines += [
        "make setup",
        f".venv/bin/miniverl bench {workload['name']}{gpu}",
    ]
    lines[-1] += f" --launches {workload['launches']} --seed {workload['seed']}"
    if record["class"] == "unofficial":
        lines[-1] += " --as-is"
    dirty = '<p class="doubt">The tree had changes that are in no commit.</p>'
    return commands("\n".join(lines)) + (dirty if record["source_dirty"] else "")


def _resume_rows(record: Json) -> Iterator[tuple[str, str]]:
    resume, recipe = record["resume"], record["recipe"]
    yield "verdict", resume["status"].replace("_", " ")
    if resume.get("reason"):
        yield "why", resume["reason"]
    if resume["status"] == "not_checked":
        return
    how = "interrupted" if version1(record) is not None else "SIGKILL"
    yield "stopped", f"{how}, after update {units.absent(recipe['interrupt_after_updates'])}"
    if is_number(resume.get("kill_delay_seconds")):
        yield "delay of the kill", units.seconds(resume["kill_delay_seconds"])
    yield "updates of both halves", units.count(resume["global_optimizer_steps"])
    yield "prompts taken by then", units.count(resume["task_cursor"])
    yield "adapter and optimizer equal", words(resume["adapter_and_optimizer_byte_identical"])
    yield "trajectories equal", words(resume["trajectories_byte_identical"])
    yield "state equal", words(resume["training_state_fields_identical"])
    if resume["excluded_run_identity_field"]:
        yield "left out of the comparison", resume["excluded_run_identity_field"]
    yield "resumed from", units.size(resume["interrupt_checkpoint_bytes"])
    yield "time to resume", units.seconds(resume["resume_load_seconds"])


def _resumed_files(record: Json) -> list[tuple[str, str, str, str]]:
    """The digests that the verdict rests on."""
    outputs = {
        launch["role"]: launch["outputs"]
        for launch in reversed(record.get("launches", []))
        if launch["outputs"]
    }
    if not {"straight", "resumed"} <= outputs.keys():
        return []
    one, other = outputs["straight"], outputs["resumed"]
    return [
        (name, one.get(name, "-"), other.get(name, "-"), _equal(one.get(name), other.get(name)))
        for name in sorted(one.keys() | other.keys())
    ]


def _equal(one: str | None, other: str | None) -> str:
    return "equal" if one == other else "differs"


def _tables(record: Json) -> Iterator[str]:
    yield details("All numbers", table(("number", "value"), show.summary_rows(record)))
    original = version1(record)
    if original is not None:
        stack = [(name, str(value)) for name, value in sorted(original["hardware"].items())]
        yield details("Machine and software", table(("what", "value"), stack))
        return
    yield details("Launches", _launches(record))
    yield details("Raw samples", "".join(_samples(record)))
    yield details("Recipe", table(("field", "value"), _recipe_rows(record["recipe"])))
    yield details("Machine and software", table(("what", "value"), _machine_rows(record)))
    columns = ("input", "kind", "size", "licence", "sha256")
    yield details("Inputs", table(columns, _pin_rows(record), hashes=frozenset({4})))


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


def _samples(record: Json) -> Iterator[str]:
    """Every step of every launch, as it was timed."""
    for launch in record["launches"]:
        phases = [
            name for name in units.PHASES if any(name in s["phases"] for s in launch["steps"])
        ]
        rows = [
            (
                f"{step['step']}{' (warm-up)' if step['is_warmup'] else ''}",
                units.seconds(step["seconds"]),
                *(units.seconds(step["phases"].get(name, {}).get("seconds")) for name in phases),
                units.count(step["phases"].get("rollout", {}).get("tokens")),
            )
            for step in launch["steps"]
        ]
        columns = ("step", "all", *(units.PHASES[name] for name in phases), "sampled tokens")
        caption = f"Launch {launch['ordinal']}, {launch['role']}"
        yield table(columns, rows, numeric=frozenset(range(1, len(columns))), caption=caption)
        yield from _physical_batches(launch, caption)


def _physical_batches(launch: Json, caption: str) -> Iterator[str]:
    """What the device computed at once; records from before it was told have none of it."""
    rows = []
    for name, title in units.PHASES.items():
        found = [step["phases"][name] for step in launch["steps"] if name in step["phases"]]
        if any("most_rows" in phase for phase in found):
            counts = [
                sum(phase.get("batches", 0) for phase in found),
                *(
                    max(phase.get(each, 0) for phase in found)
                    for each in ("most_rows", "most_tokens")
                ),
            ]
            rows.append((title, *(units.count(each or None) for each in counts)))
    if rows:
        columns = ("phase", "physical batches", "most rows", "most tokens")
        caption = f"{caption}: what was computed at once"
        yield table(columns, rows, numeric=frozenset(range(1, 4)), caption=caption)


def _recipe_rows(recipe: Json) -> list[tuple[str, str]]:
    names = (
        "estimator", "policy_loss", "learning_rate", "optimizer_updates", "logical_batch",
        "samples_per_prompt", "prompt_limit", "response_limit", "prompts_available",
        "prompts_consumed", "recipe_sha256",
    )  # fmt: skip
    return [(_title(name), words(recipe[name])) for name in names]


def _machine_rows(record: Json) -> list[tuple[str, str]]:
    environment = record["environment"]
    fields = {
        **{name: value for name, value in record["hardware"].items() if name != "details"},
        **record["hardware"].get("details", {}),
        **{name: environment[name] for name in ("os", "kernel", "python", "stack", "container")},
        "stack_matches_lock": environment["stack_matches_lock"],
        "lock_sha256": environment["lock_sha256"],
        "environment_id": environment_id(record),
        "code_sha256": record["workload_driver_sha256"],
    }
    return [
        *((_title(name), words(fields[name])) for name in sorted(fields)),
        *sorted(environment["packages"].items()),
        *sorted(environment["env"].items()),
    ]


def _pin_rows(record: Json) -> Sequence[tuple[str, ...]]:
    return [
        (
            each["pin"],
            each["kind"],
            units.size(each["bytes"]),
            each["licence"] or "-",
            each["sha256"],
        )
        for each in record["inputs"]
    ]


def words(value: Any) -> str:
    """A value of any kind in a cell."""
    if isinstance(value, Mapping) and "status" not in value:
        return ", ".join(f"{name} {words(each)}" for name, each in sorted(value.items()))
    if isinstance(value, list):
        return ", ".join(map(words, value)) or "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value.replace("_", " ")
    return units.metric(value) if isinstance(value, float) else units.absent(value)


def _title(name: str) -> str:
    return name.replace("_", " ")


def _download(record: Json, address: str) -> str:
    digest = digest_of(record)
    return (
        f'<a download href="{escape(address, quote=True)}">The record as JSON</a>'
        f" · sha256 <code>{digest}</code>"
    )


def _chip(text: str) -> str:
    colour = _COLOURS.get(text.removeprefix("resume "), "soft")
    return f'<span class="chip {colour}">{escape(text.replace("_", " "))}</span>'
