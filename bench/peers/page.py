"""The measured document as a table for people, as docs/performance.md has it, and its curves as a picture.

    python -m miniverl.bench.peers.page build/peers.json docs/performance.md

Writes between the page's two marks, and docs/performance.svg beside it. Ends with 1 where a bound is missed.
"""

import json
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from miniverl.bench.answer import FILE, answers
from miniverl.bench.exits import Exit
from miniverl.bench.peers.judge import per_second
from miniverl.bench.picture import document
from miniverl.bench.plot import Axes, Series, lines
from miniverl.compiler.whole import write_text
from miniverl.engine.problem import Problem, WrongCall

Json = Mapping[str, Any]

BEGIN, END = "<!-- measured -->", "<!-- end of measured -->"
_COLOURS = {"ours": 0, "transformers": 1, "llama.cpp": 2}
_WIDE = 78


def machine_line(of: Json) -> str:
    machine, versions = of["machine"], of["versions"]
    told = [
        f"{machine['cores']} cores ({machine['cpu']}), {machine['memory_gib']:.0f} GiB",
        f"{machine['threads']} threads",
        f"torch {versions['torch']}",
        *(f"{name} {each}" for name, each in versions["peers"].items() if name != "torch"),
    ]
    loads = ", ".join(f"{name} {part['load_before']}" for name, part in of["parts"].items())
    return (
        f"{', '.join(told)}. Load average before each part: {loads}. Measured {of['measured_at']}."
    )


def text(of: Json) -> Iterator[str]:
    """For a terminal: what was measured, then every ratio; the last line counts them."""
    yield machine_line(of)
    for part in of["parts"].values():
        yield ""
        yield f"{part['title']} ({part['rounds']} rounds, {part['seconds']:.0f} s)"
        for cell in part["cells"]:
            numbers = (f"{who} {number}" for who, number in _numbers(cell).items())
            yield f"  {cell['name']:<26}" + ", ".join(numbers)
    yield ""
    for ratio in of["ratios"]:
        verdict = "met" if ratio["is_met"] else "MISSED"
        yield f"{ratio['name']:<{_WIDE}} {_spread(ratio):<22} {_bound(ratio):<14} {verdict}"
    missed = sum(not ratio["is_met"] for ratio in of["ratios"])
    total = len(of["ratios"])
    yield f"{total - missed} of {total} ratios met." if missed else f"All {total} ratios met."


def tables(of: Json) -> str:
    """The same as Markdown."""
    found = [machine_line(of), "", f"Code `{of['code']['sha256'][:12]}`{_commit(of['code'])}.", ""]
    found += _table(
        ("ratio", "median (range)", "wanted", ""),
        [
            (each["name"], _spread(each), _bound(each), "met" if each["is_met"] else "**missed**")
            for each in of["ratios"]
        ],
    )
    for part in of["parts"].values():
        found += ["", f"### {part['title']}", ""]
        rows = [
            (cell["name"], ", ".join(f"{who} {number}" for who, number in _numbers(cell).items()))
            for cell in part["cells"]
        ]
        found += _table(("", f"medians of {part['rounds']} rounds"), rows)
    growth = of["parts"].get("growth")
    if growth:
        found += ["", "### Share of the roofline, by phase", "", *_shares(growth["cells"][0])]
    return "\n".join(found)


def picture(of: Json) -> str:
    """The rollout's rate by batch in float32, one line a contestant."""
    cells = [
        cell for cell in of["parts"]["rollout"]["cells"] if cell["facts"]["dtype"] == "float32"
    ]
    series = [
        Series(
            name=who,
            colour=colour,
            values=[
                (cell["facts"]["batch"], statistics.median(per_second(cell["answers"][who])))
                for cell in cells
            ],
        )
        for who, colour in _COLOURS.items()
    ]
    summary = "; ".join(f"{each.name} {each.values[-1][1]:.0f} at the largest" for each in series)
    axes = Axes(
        key="performance",
        title="Rollout, float32",
        summary=summary,
        x="rows in a batch",
        y="tokens a second",
        counts_x=True,
    )
    return document(lines(axes, series))


def _numbers(cell: Json) -> dict[str, str]:
    """Contestant -> its median, in the unit that the cell is about."""
    found = {}
    for who, answers_of in cell["answers"].items():
        seconds = statistics.median(each["seconds"] for each in answers_of)
        peak = max((each.get("peak_bytes", 0) for each in answers_of), default=0)
        told = f"{seconds:.2f} s"
        if "batch" in cell["facts"] or "slots" in cell["facts"]:
            told = f"{statistics.median(per_second(answers_of)):.0f} tokens/s"
        found[who] = told + (f" ({peak / 2**30:.2f} GiB)" if peak else "")
    return found


def _shares(cell: Json) -> list[str]:
    rows = []
    for name, size in cell["facts"]["sizes"].items():
        for phase, least in size["least_seconds"].items():
            seconds = statistics.median(
                each["phases"][phase]["seconds"] for each in cell["answers"][name]
            )
            rows.append(
                (name, phase, f"{seconds:.2f} s", f"{least:.2f} s", f"{least / seconds:.0%}")
            )
    return _table(("prompts x tokens", "phase", "measured", "at best", "share"), rows)


def _spread(ratio: Json) -> str:
    found = ratio["ratios"]
    alone = f"{ratio['median']:.2f}"
    return alone if len(found) == 1 else f"{alone} ({min(found):.2f} to {max(found):.2f})"


def _bound(ratio: Json) -> str:
    least, most = ratio["least"], ratio["most"]
    if least is not None and most is not None:
        return f"{least:.2f} to {most:.2f}"
    return f">= {least:.2f}" if most is None else f"<= {most:.2f}"


def _commit(code: Json) -> str:
    if code["commit"] is None:
        return ""
    return f" of commit `{code['commit'][:12]}`" + (", with changes" if code["is_dirty"] else "")


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lined = [headings, ["---"] * len(headings), *rows]
    return ["| " + " | ".join(row) + " |" for row in lined]


def written(page: str, of: Json, origin: str) -> str:
    """The page with the tables between its marks; raises WrongCall where it has none."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        reason = f"it has no line {BEGIN} with a line {END} behind it"
        problem = Problem(
            field="page",
            value=origin,
            origin="command line",
            reason=reason,
            fix="Put both lines where the tables belong",
        )
        raise WrongCall([problem])
    return f"{before}{BEGIN}\n\n{tables(of)}\n\n{END}{after}"


@answers
def _answer(measured: Path, page: Path) -> Exit:
    of = json.loads(measured.read_text("utf-8"))
    write_text(page, written(page.read_text("utf-8"), of, str(page)))
    if "rollout" in of["parts"]:
        write_text(page.with_suffix(".svg"), picture(of))
    return Exit.DONE if all(each["is_met"] for each in of["ratios"]) else Exit.NO


@click.command(help=__doc__)
@click.argument("measured", type=FILE)
@click.argument("page", type=FILE)
def main(measured: Path, page: Path) -> None:
    sys.exit(_answer(measured, page))


if __name__ == "__main__":
    main()
