"""Plots as SVG text, written by hand: deterministic, readable without scripts, coloured by the page's CSS.

Classes `s0` to `s8` are the colours of series. Every plot has a title and a sentence for those who cannot see
it, and every mark says its value when pointed at.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 520, 280
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 12, 40, 34
_LABEL_WIDTH, _ROW_HEIGHT = 150, 28
_NAME_WIDTH = 168  # of a metric, in a forest plot


@dataclass(frozen=True, kw_only=True, slots=True)
class Axes:
    """What a plot is called and what its axes count. `key` makes its ids unique on the page."""

    key: str
    title: str
    summary: str
    x: str
    y: str
    counts_x: bool = False  # whole numbers only


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    name: str
    colour: int
    values: Sequence[tuple[float, float]]  # x, y
    filled: bool = False
    dotted: bool = False  # points only


def stacked_bars(
    axes: Axes,
    stacks: Sequence[tuple[str, Mapping[str, float]]],
    colours: Mapping[str, int],
    pale: Sequence[bool],
) -> str:
    """A bar for each of `stacks` (label, part -> value), parts in the order of `colours`.

    `pale` bars do not count.
    """
    top = max((math.fsum(parts.values()) for _, parts in stacks), default=1.0)
    ticks = nice_ticks(0, top)
    scale = _Scale(0, ticks[-1], HEIGHT - _BOTTOM, _TOP)
    slot = (WIDTH - _LEFT - _RIGHT) / max(1, len(stacks))
    width, every = min(0.72 * slot, 44.0), math.ceil(len(stacks) / 16)
    marks = []
    for index, ((label, parts), is_pale) in enumerate(zip(stacks, pale, strict=True)):
        left, below = _LEFT + (index + 0.5) * slot - width / 2, 0.0
        for name in (name for name in colours if parts.get(name)):
            y, height = scale(below + parts[name]), scale(below) - scale(below + parts[name])
            below += parts[name]
            style = f"s{colours[name]}" + (" pale" if is_pale else "")
            told = f"{axes.x} {label}, {name}: {_plain(parts[name])} {axes.y}"
            marks.append(_bar(style, left, y, width, height, told))
        if index % every == 0:
            marks.append(_text(left + width / 2, HEIGHT - _BOTTOM + 15, label, "mid"))
    body = [*_grid(ticks, scale), *marks, _legend(list(colours.items())), *_axis_names(axes)]
    return _svg(axes, HEIGHT, body)


def lines(axes: Axes, series: Sequence[Series], limit: tuple[str, float] | None = None) -> str:
    """Lines, filled lines or points over a common axis; `limit` is a named horizontal line."""
    xs = [x for each in series for x, _ in each.values]
    ys = [y for each in series for _, y in each.values] + ([limit[1]] if limit else [])
    y_ticks = nice_ticks(min(0.0, min(ys)), max(ys))
    first, last = (min(xs) if axes.counts_x else min(0.0, *xs)), max(xs)
    across = _Scale(first, last, _LEFT, WIDTH - _RIGHT)
    up = _Scale(y_ticks[0], y_ticks[-1], HEIGHT - _BOTTOM, _TOP)
    body = list(_grid(y_ticks, up))
    for tick in nice_ticks(first, last, least=1.0 if axes.counts_x else 0.0):
        if first <= tick <= last:
            body.append(_text(across(tick), HEIGHT - _BOTTOM + 15, _plain(tick), "mid"))
    for each in series:
        body += _curve(each, axes, across, up)
    if limit:
        y = up(limit[1])
        body.append(
            f'<line class="limit" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{_n(y)}" y2="{_n(y)}"/>'
        )
        body.append(_text(WIDTH - _RIGHT, y - 5, limit[0], "end"))
    named = [(each.name, each.colour) for each in series]
    body += [_legend(named) if len(named) > 1 else "", *_axis_names(axes)]
    return _svg(axes, HEIGHT, body)


def waterfall(axes: Axes, parts: Sequence[tuple[str, float]]) -> str:
    """Horizontal bars, each from the end of the one before it."""
    end = math.fsum(value for _, value in parts)
    begins = [math.fsum(value for _, value in parts[:index]) for index in range(len(parts))]
    return _rows(axes, parts, begins, [0] * len(parts), end)


def bars(axes: Axes, parts: Sequence[tuple[str, float]], colours: Sequence[int]) -> str:
    """Horizontal bars from a common start."""
    return _rows(axes, parts, [0.0] * len(parts), colours, max(value for _, value in parts))


def _rows(
    axes: Axes,
    parts: Sequence[tuple[str, float]],
    begins: Sequence[float],
    colours: Sequence[int],
    end: float,
) -> str:
    scale = _Scale(0, end, _LABEL_WIDTH, WIDTH - 70)
    height = _ROW_HEIGHT * len(parts) + 12
    body = []
    for index, ((name, value), begin) in enumerate(zip(parts, begins, strict=True)):
        y = 4 + index * _ROW_HEIGHT
        left, width = scale(begin), max(scale(begin + value) - scale(begin), 1.5)
        told = f"{name}: {_plain(value)} {axes.x}"
        body += [
            _text(_LABEL_WIDTH - 10, y + 15, name, "end"),
            _bar(f"s{colours[index]}", left, y + 3, width, _ROW_HEIGHT - 11, told),
            _text(left + width + 6, y + 15, f"{value:.3g} s", "start value"),
        ]
    return _svg(axes, height, body)


@dataclass(frozen=True, kw_only=True, slots=True)
class Ratio:
    """One row of a forest plot. `interval` None: only described. `tone`: good, bad, doubt or same."""

    name: str
    ratio: float
    interval: tuple[float, float] | None
    margin: float
    tone: str
    told: str


def forest(axes: Axes, rows: Sequence[Ratio]) -> str:
    """Ratios on a logarithmic axis around 1, with their intervals, each over the band of its margin."""
    ends = [1 + row.margin for row in rows] + [1 / (1 + row.margin) for row in rows]
    ends += [each for row in rows for each in (row.ratio, *(row.interval or ()))]
    reach = 1.15 * max(abs(math.log(each)) for each in ends)
    scale = _Scale(-reach, reach, _NAME_WIDTH, WIDTH - 74)
    bottom = 8 + _ROW_HEIGHT * len(rows)
    bands, marks = [], []
    for index, row in enumerate(rows):
        y = 8 + (index + 0.5) * _ROW_HEIGHT
        left, right = scale(-math.log1p(row.margin)), scale(math.log1p(row.margin))
        bands.append(_bar("band", left, y - 11, right - left, 22, f"margin {row.margin:.0%}"))
        marks.append(_text(_NAME_WIDTH - 10, y + 4, row.name, "end"))
        marks += _estimate(row, scale, y)
        marks.append(_text(WIDTH - 68, y + 4, _percent(row.ratio), "start value"))
    grid = []
    for change in _round_changes(reach):
        x = scale(math.log1p(change))
        grid.append(_rule("grid" if change else "axis", x, 4, bottom))
        grid.append(_text(x, bottom + 15, _percent(1 + change), "mid"))
    name = _text((_NAME_WIDTH + WIDTH - 74) / 2, bottom + 33, axes.x, "mid")
    return _svg(axes, bottom + 38, [*bands, *grid, *marks, name])


def _estimate(row: Ratio, scale: "_Scale", y: float) -> Iterator[str]:
    x = scale(math.log(row.ratio))
    style = f"v-{row.tone}"
    if row.interval is None:
        yield (
            f'<circle class="hollow" cx="{_n(x)}" cy="{_n(y)}" r="4">'
            f"<title>{escape(row.told)}</title></circle>"
        )
        return
    low, high = (scale(math.log(each)) for each in row.interval)
    yield (
        f'<line class="whisker {style}" x1="{_n(low)}" x2="{_n(high)}" y1="{_n(y)}" y2="{_n(y)}"/>'
    )
    yield _bar(style, x - 4, y - 4, 8, 8, row.told)


def _round_changes(reach: float) -> list[float]:
    """Changes such as -10 %, 0 and +10 % that the axis holds."""
    widest = math.expm1(reach)
    step = next(
        each for each in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 1e9) if 3 * each > widest
    )
    steps = [index * step for index in range(-3, 4)]
    return [each for each in steps if each > -1 and abs(math.log1p(each)) <= reach]


def _percent(ratio: float) -> str:
    change = 100 * (ratio - 1)
    return "0 %" if abs(change) < 0.05 else f"{change:+.3g} %".replace("-", "\N{MINUS SIGN}")


def _rule(style: str, x: float, top: float, bottom: float) -> str:
    return f'<line class="{style}" x1="{_n(x)}" x2="{_n(x)}" y1="{_n(top)}" y2="{_n(bottom)}"/>'


def nice_ticks(low: float, high: float, *, least: float = 0.0) -> list[float]:
    """Round numbers that enclose [low, high], about six: multiples of 1, 2 or 5 times a power of ten."""
    span = (high - low) or abs(high) or 1.0
    raw = max(span / 5, least)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(index * step, 12) for index in range(first, max(last, first + 1) + 1)]


class _Scale:
    """From a number to a coordinate."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        self._low, self._start = low, start
        self._per_unit = (end - start) / ((high - low) or 1.0)

    def __call__(self, value: float) -> float:
        return self._start + (value - self._low) * self._per_unit


def _curve(series: Series, axes: Axes, across: _Scale, up: _Scale) -> Iterator[str]:
    points = [(across(x), up(y)) for x, y in series.values]
    path = " ".join(f"{_n(x)},{_n(y)}" for x, y in points)
    if series.filled:
        base = _n(up(0))
        first, last = _n(points[0][0]), _n(points[-1][0])
        yield f'<polygon class="area s{series.colour}" points="{first},{base} {path} {last},{base}"/>'
    if not series.dotted:
        yield f'<polyline class="line l{series.colour}" points="{path}"/>'
    if len(points) > 80 and not series.dotted:
        return
    radius = 3.4 if series.dotted else 2.6
    for (x, y), (at, value) in zip(points, series.values, strict=True):
        told = f"{axes.x} {_plain(at)}, {series.name}: {_plain(value)} {axes.y}"
        yield (
            f'<circle class="s{series.colour}" cx="{_n(x)}" cy="{_n(y)}" r="{radius}">'
            f"<title>{escape(told)}</title></circle>"
        )


def _grid(ticks: Sequence[float], scale: _Scale) -> Iterator[str]:
    for tick in ticks:
        y = scale(tick)
        style = "axis" if tick == 0 else "grid"
        yield (
            f'<line class="{style}" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{_n(y)}" y2="{_n(y)}"/>'
        )
        yield _text(_LEFT - 8, y + 4, _plain(tick), "end")


def _axis_names(axes: Axes) -> list[str]:
    return [
        _text((_LEFT + WIDTH - _RIGHT) / 2, HEIGHT - 3, axes.x, "mid"),
        _text(0, _TOP - 14, axes.y, "start"),
    ]


def _legend(named: Sequence[tuple[str, int]]) -> str:
    """In a row above the plot, as wide as the names need, and in a second one where they need more."""
    x, y, parts = float(_LEFT), 4.0, []
    for name, colour in named:
        width = 13 + 6.4 * len(name)
        if x > _LEFT and x + width > WIDTH:
            x, y = float(_LEFT), y + 14
        parts.append(f'<rect class="s{colour}" x="{_n(x)}" y="{_n(y)}" width="9" height="9"/>')
        parts.append(_text(x + 13, y + 8.5, name, "start"))
        x += width + 12
    return "".join(parts)


def _svg(axes: Axes, height: float, body: Sequence[str]) -> str:
    key = escape(axes.key, quote=True)
    return (
        f'<svg role="img" aria-labelledby="{key}-t {key}-d" viewBox="0 0 {WIDTH} {_n(height)}">'
        f'<title id="{key}-t">{escape(axes.title)}</title>'
        f'<desc id="{key}-d">{escape(axes.summary)}</desc>' + "".join(body) + "</svg>"
    )


def _bar(style: str, x: float, y: float, width: float, height: float, told: str) -> str:
    """A rectangle that says `told` when pointed at."""
    box = f'x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{_n(height)}"'
    return f'<rect class="{style}" {box}><title>{escape(told)}</title></rect>'


def _text(x: float, y: float, text: str, style: str) -> str:
    return f'<text class="{style}" x="{_n(x)}" y="{_n(y)}">{escape(text)}</text>'


def _n(coordinate: float) -> str:
    """A coordinate with two decimals at most."""
    return f"{coordinate:.2f}".rstrip("0").rstrip(".")


def _plain(value: float) -> str:
    """Four significant digits."""
    text = f"{value:.4g}"
    return f"{value:.0f}" if "e+" in text else text
