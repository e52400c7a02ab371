"""A record, and a comparison, as tables for the terminal: rich renderables, printed by the command line."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from miniverl.bench import determinism, units
from miniverl.bench.compare import Comparison
from miniverl.bench.verdict import CONFIDENCE, Metric
from miniverl.bench.version1 import version1

Json = Mapping[str, Any]

_STYLES = {
    "measured": "green",
    "exact_match": "green",
    "improved": "green",
    "same": "green",
    "regressed": "bold red",
    "not_comparable": "bold red",
    "mismatch": "bold red",
    "failed": "bold red",
    "contract_exceeded": "bold red",
    "blocked": "yellow",
    "interrupted": "yellow",
    "inconclusive": "yellow",
    "descriptive": "cyan",
    "not_checked": "dim",
    "warning": "yellow",
    "error": "bold red",
    "info": "dim",
}


def record_view(record: Json) -> RenderableType:
    """What was measured, where, the numbers, the verdict on resume, and what to know of it."""
    parts: list[RenderableType] = [_facts(record), _numbers(record)]
    findings = record.get("findings", [])
    if findings:
        parts.append(_findings(findings))
    return Group(*parts)


def comparison_view(comparison: Comparison) -> RenderableType:
    """What differs first, then by how much, then the verdict."""
    parts: list[RenderableType] = []
    for title, differences in (
        ("These must be equal", comparison.key_differences),
        ("What differs", comparison.treatment_differences),
    ):
        if differences:
            table = _table(title, "field", "A", "B")
            for each in differences:
                table.add_row(each.field, _short(each.a), _short(each.b))
            parts.append(table)
    if comparison.metrics:
        parts.append(_metrics(comparison.metrics))
    parts += [Text(f"note: {note}", style="yellow") for note in comparison.notes]
    parts.append(_verdict(comparison))
    return Group(*parts)


def summary_rows(record: Json) -> list[tuple[str, str]]:
    """The main numbers of a record of either version, each with its unit."""
    measured = record["measurements"]
    rows = [
        ("process start to models loaded", units.seconds(measured["cold_startup_seconds"])),
        ("to the first rollout", units.seconds(measured["time_to_first_rollout_seconds"])),
        ("to the first update", units.seconds(measured["time_to_first_update_seconds"])),
    ]
    for phase, value in _by_share(measured["steady_state_median_seconds"]):
        rows.append((f"steady {units.title(phase)}", units.seconds(value)))
    for rate, value in measured["steady_state_median_throughput"].items():
        rows.append((units.title(rate), units.per_second(value)))
    for name in ("peak_rss_gib", "peak_allocated_gib", "peak_reserved_gib"):
        if name in measured and not _is_unsupported(measured[name]):
            rows.append((units.title(name).replace("rss", "resident"), units.gib(measured[name])))
    rows += [
        ("adapter", units.size(measured["adapter_bytes"])),
        ("checkpoint", units.size(measured["checkpoint_bytes"])),
        ("prompts consumed", units.count(measured["prompts_consumed"])),
    ]
    return rows


def place(record: Json) -> str:
    """Where it ran, in one line."""
    original = version1(record)
    if original is not None:
        hardware = original["hardware"]
        stack = f"driver {hardware['driver']}, CUDA {hardware['cuda_runtime']}"
        return f"{hardware['gpu']}, {stack}, torch {hardware['torch']}"
    hardware, environment = record["hardware"], record["environment"]
    torch = f"torch {environment['packages'].get('torch', '-')}, Python {environment['python']}"
    if hardware["device"] == "cuda":
        stack = f"driver {hardware['driver']}, CUDA {hardware['cuda_runtime']}"
        return f"{hardware['gpu']}, {stack}, {torch}"
    return f"{hardware['cpu_model']}, {environment['threads']} threads, {torch}"


def name(record: Json) -> str:
    """What was run, in one line."""
    original = version1(record)
    if original is not None:
        kind: str = original["kind"]
        return kind.removeprefix("single_gpu_").removesuffix("_workload").replace("_", " ")
    return f"{record['workload']['name']} v{record['workload']['version']}"


def metric_title(metric: str) -> str:
    """A metric's name in words."""
    is_phase = metric.startswith("steady_state_median_seconds.")
    return f"steady {units.title(metric)}" if is_phase else units.title(metric)


def _facts(record: Json) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column(overflow="fold")
    recipe = record["recipe"]
    samples = recipe.get("samples_per_prompt", 1)
    work = (
        f"{units.count(recipe['optimizer_updates'])} updates, {recipe['logical_batch']} prompts "
        f"x {samples}, {recipe['response_limit']} tokens; {recipe['estimator']}, "
        f"{recipe['policy_loss']}"
    )
    grid.add_row("workload", f"{name(record)} ({work})")
    grid.add_row("on", place(record))
    grid.add_row("status", _styled(record["status"]))
    if record.get("reason"):
        grid.add_row("", record["reason"])
    if record.get("class", "reference") != "reference":
        grid.add_row("class", Text(record["class"], style="yellow"))
    resume = record["resume"]
    grid.add_row("resume", _styled(resume["status"]))
    if resume.get("first_difference"):
        grid.add_row("", units.difference(resume["first_difference"]))
    if "determinism" in record:
        for index, line in enumerate(determinism.lines(record)):
            grid.add_row("" if index else "determinism", line)
    grid.add_row("measured at", record["measured_at"])
    return grid


def _numbers(record: Json) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column(justify="right")
    for title, value in summary_rows(record):
        table.add_row(title, value)
    reward = record["measurements"].get("training_metrics", {}).get("reward_mean")
    if reward:
        first, last = (units.metric(reward[f"{third}_third_mean"]) for third in ("first", "last"))
        table.add_row("mean reward, first and last third", f"{first} \N{RIGHTWARDS ARROW} {last}")
    return table


def _findings(findings: Sequence[Json]) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    for finding in findings:
        grid.add_row(_styled(finding["severity"]), finding["message"])
    return grid


def _metrics(metrics: Iterable[Metric]) -> Table:
    interval_title = f"{100 * CONFIDENCE:g} % interval"
    table = _table(None, "metric", "A", "B", "B over A", interval_title, "launches", "verdict")
    for column in table.columns[1:6]:
        column.justify = "right"
    for metric in metrics:
        interval = ""
        if metric.interval is not None:
            low, high = metric.interval
            interval = f"{units.ratio(low)} to {units.ratio(high)}"
        verdict = _styled(metric.verdict)
        if metric.verdict == "inconclusive" and metric.launches_needed:
            verdict.append(f" (about {metric.launches_needed} launches would tell)", style="dim")
        table.add_row(
            metric_title(metric.name),
            units.by_name(metric.name, metric.a),
            units.by_name(metric.name, metric.b),
            units.ratio(metric.ratio),
            interval,
            f"{metric.launches_a} / {metric.launches_b}",
            verdict,
        )
    return table


def _verdict(comparison: Comparison) -> Text:
    text = _styled(comparison.verdict)
    text.append(f"  {comparison.reason}", style="default")
    if comparison.verdict in ("improved", "regressed"):
        cause = comparison.cause
        told = "nothing of what is recorded differs" if cause == "none" else cause
        text.append(f"\ncause: {told}", style="default")
    return text


def _by_share(phases: Json) -> list[tuple[str, Any]]:
    """The longest first; what takes less than a hundredth of the longest is not worth a line."""
    longest = max(phases.values(), default=0.0)
    shown = [(name, value) for name, value in phases.items() if value >= longest / 100]
    return sorted(shown, key=lambda item: (-item[1], item[0]))


def _is_unsupported(value: Any) -> bool:
    return isinstance(value, Mapping) and value["status"] == "not_supported"


def _table(title: str | None, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, header_style="bold")
    return table


def _styled(word: str) -> Text:
    return Text(word.replace("_", " "), style=_STYLES.get(word, ""))


def _short(value: Any) -> str:
    text = "-" if value is None else str(value)
    return text if len(text) <= 48 else text[:45] + "..."
