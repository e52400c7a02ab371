"""The page of one comparison: what differs first, then every ratio with its interval, then the verdict's reasons."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from miniverl.bench import show, units
from miniverl.bench.compare import Comparison, Difference
from miniverl.bench.explain import explanation
from miniverl.bench.page import details, figure, table
from miniverl.bench.plot import Axes, Ratio, forest
from miniverl.bench.verdict import CONFIDENCE, Metric

Json = Mapping[str, Any]

_TONES = {"improved": "good", "regressed": "bad", "inconclusive": "doubt", "same": "same"}
_COLOURS = {**_TONES, "same": "good", "not_comparable": "bad", "descriptive": "soft"}


def section(comparison: Comparison, a: Sequence[Json], b: Sequence[Json], key: str) -> str:
    """`a` and `b`: the records of both sides."""
    verdict = comparison.verdict.replace("_", " ")
    colour = _COLOURS[comparison.verdict]
    notes = "".join(f"<li>{escape(note)}</li>" for note in comparison.notes)
    lines = [line for line in explanation(comparison, a, b) if line]
    explained = "".join(f"<li>{escape(line.strip())}</li>" for line in lines)
    return (
        f'<section id="{key}"><div class="head"><h2>{escape(comparison.workload)}</h2>'
        f'<span class="chip {colour}">{verdict}</span></div>'
        f"<p>{escape(comparison.reason)}.</p>{_cause(comparison)}"
        f"<h3>A and B</h3>{table(('', 'measured on', 'records', 'when'), _side_rows(a, b))}"
        f"{_differences('These must be equal', comparison.key_differences)}"
        f"{_differences('What differs', comparison.treatment_differences)}"
        f"{_plot(comparison, key)}{f'<h3>Notes</h3><ul>{notes}</ul>' if notes else ''}"
        f"{_numbers(comparison.metrics)}"
        f"{details('How each verdict came about', f'<ul>{explained}</ul>')}</section>"
    )


def _cause(comparison: Comparison) -> str:
    if comparison.verdict not in ("improved", "regressed"):
        return ""
    told = comparison.cause.replace("_", " ")
    return f'<p class="soft">Cause: {escape(told)}</p>'


def _side_rows(a: Sequence[Json], b: Sequence[Json]) -> list[tuple[str, str, str, str]]:
    rows = []
    for letter, records in (("A, the baseline", a), ("B", b)):
        when = sorted(record["measured_at"].partition("T")[0] for record in records)
        span = when[0] if when[0] == when[-1] else f"{when[0]} to {when[-1]}"
        rows.append((letter, show.place(records[0]), str(len(records)), span))
    return rows


def _differences(title: str, differences: Sequence[Difference]) -> str:
    if not differences:
        return ""
    rows = [(each.field, _text(each.a), _text(each.b)) for each in differences]
    return f"<h3>{title}</h3>{table(('field', 'A', 'B'), rows)}"


def _text(value: Any) -> str:
    text = "-" if value is None else str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _plot(comparison: Comparison, key: str) -> str:
    if not comparison.metrics:
        return ""
    rows = [_ratio(metric) for metric in comparison.metrics]
    judged = sum(row.interval is not None for row in rows)
    axes = Axes(
        key=f"{key}-ratios",
        title="Ratio of B to A, each metric",
        summary="; ".join(row.told for row in rows),
        x="B over A",
        y="",
    )
    caption = f"Bars: {CONFIDENCE:.0%} intervals of the {judged} judged metrics. Grey: the margin."
    if judged < len(rows):
        caption += " Hollow: shown, not judged."
    return f'<div class="plots narrow">{figure("B over A", forest(axes, rows), caption)}</div>'


def _ratio(metric: Metric) -> Ratio:
    told = f"{show.metric_title(metric.name)}: {units.ratio(metric.ratio)}, {metric.verdict}"
    if metric.interval is not None:
        low, high = map(units.ratio, metric.interval)
        told += f", between {low} and {high}"
    return Ratio(
        name=show.metric_title(metric.name),
        ratio=metric.ratio,
        interval=metric.interval,
        margin=metric.margin,
        tone=_TONES.get(metric.verdict, "same"),
        told=told,
    )


def _numbers(metrics: Sequence[Metric]) -> str:
    columns = ("metric", "A", "B", "B over A", f"{CONFIDENCE:.0%} interval", "launches", "verdict")
    rows = []
    for metric in metrics:
        low_high = "" if metric.interval is None else " to ".join(map(units.ratio, metric.interval))
        verdict = metric.verdict.replace("_", " ")
        if metric.verdict == "inconclusive" and metric.launches_needed:
            verdict += f" ({metric.launches_needed} launches would tell)"
        rows.append(
            (
                show.metric_title(metric.name),
                units.by_name(metric.name, metric.a),
                units.by_name(metric.name, metric.b),
                units.ratio(metric.ratio),
                low_high,
                f"{metric.launches_a} / {metric.launches_b}",
                verdict,
            )
        )
    return (
        f"<h3>All metrics</h3>{table(columns, rows, numeric=frozenset(range(1, 6)))}"
        if rows
        else ""
    )
