"""The commands about records: check them, compare two, show them on a page."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from miniverl.bench.answer import FILE, FOLDER, answers, json_option, print_json, say, say_problems
from miniverl.bench.exits import Exit
from miniverl.engine.problem import Problem, Problems, Refused, WrongCall

if TYPE_CHECKING:
    from miniverl.bench.compare import Comparison


def _margin(context: click.Context, option: click.Parameter, text: str | None) -> float | None:
    """3% or 0.03 as a number."""
    if text is None:
        return None
    try:
        number = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        number = -1.0
    if not 0 < number < 1:
        raise click.BadParameter(f"{text!r} is no margin: write 3% or 0.03", context, option)
    return number


@click.command
@click.argument("records", nargs=-1, required=True, type=FILE, metavar="RECORD...")
@click.option(
    "--gate", is_flag=True, help="Refuse what was not measured or did not resume exactly."
)
@json_option
@answers
def check(records: tuple[Path, ...], gate: bool, as_json: bool) -> Exit:
    """Recompute the derived numbers of records."""
    from miniverl.bench import failure

    found = [(path, *_examined(path, gate)) for path in records]
    problems = [problem for _, _, of_one in found for problem in of_one]
    if as_json:
        rows = [
            {
                "path": str(path),
                "problems": failure.plain(of_one),
                "status": "refused" if of_one else "valid",
            }
            for path, _, of_one in found
        ]
        status = "refused" if problems else "valid"
        print_json({"problems": failure.plain(problems), "records": rows, "status": status})
    for path, told, of_one in found:
        say_problems(of_one)
        say(f"{path}: {told}")
    return Exit.NO if problems else Exit.DONE


@click.command
@click.argument("a", type=FILE, metavar="A")
@click.argument("b", type=FILE, metavar="B")
@click.option("--margin", callback=_margin, help="What counts as equal times. Unset: 3%.")
@click.option("--explain", is_flag=True, help="Say how each verdict came about.")
@click.option("--strict", is_flag=True, help="Exit 1 for an inconclusive comparison too.")
@json_option
@answers
def compare(
    a: Path, b: Path, margin: float | None, explain: bool, strict: bool, as_json: bool
) -> Exit:
    """Compare two records, B against the baseline A."""
    from miniverl.bench import compare as comparing
    from miniverl.bench import show
    from miniverl.bench.terminal import draw

    time_margin = comparing.TIME_MARGIN if margin is None else margin
    comparison = comparing.compare(*_loaded([a, b]), time_margin=time_margin)
    if as_json:
        print_json(comparison.to_dict())
    draw(show.comparison_view(comparison))
    if explain:
        for line in _explanation(comparison):
            say(line)
    return comparison.exit_code(strict=strict)


@click.command
@click.argument("records", nargs=-1, type=FILE, metavar="[RECORD]...")
@click.option("--out", type=FOLDER, default=Path("build/site"), help="Unset: build/site.")
@answers
def site(records: tuple[Path, ...], out: Path) -> Exit:
    """Write an offline page of records.

    Without any: of the last ones below build/bench.
    """
    from miniverl.bench.site import latest_records, write_site

    shown = records or latest_records(Path("build"))
    if not shown:
        problem = Problem(
            field="records",
            value=None,
            origin="command line",
            reason="none is named, and there is none below build/bench",
            fix="Run miniverl bench, or name records",
        )
        raise WrongCall([problem])
    say(f"page    {write_site(shown, out)}")
    return Exit.DONE


def _explanation(comparison: "Comparison") -> Iterator[str]:
    """How each verdict came about."""
    from miniverl.bench.compare import CONFIDENCE, MIN_LAUNCHES

    yield ""
    yield f"A launch counts once; a verdict takes {MIN_LAUNCHES} launches on each side."
    yield f"Intervals hold {CONFIDENCE:.0%} of the time (Welch, on logarithms); p-values are Holm's."
    for metric in comparison.metrics:
        told = f"{metric.name}: {metric.verdict}, margin {metric.margin:.1%}"
        if metric.interval is not None:
            low, high = metric.interval
            told += (
                f", B over A {metric.ratio:.4f} in {low:.4f} to {high:.4f}, p {metric.p_value:.3g}"
            )
        yield told


def _examined(path: Path, gate: bool) -> tuple[str, Sequence[Problem]]:
    """A word on the record, and what is wrong with it."""
    from miniverl.bench.validate import load

    try:
        record = load(path)
    except Refused as error:
        return f"not valid, {len(error.problems)} problems", error.problems
    refused = _gate_problems(record, path) if gate else []
    resume = record["resume"]["status"].replace("_", " ")
    told = f"valid, version {record['schema_version']}, {record['status']}, resume {resume}"
    return told, refused


def _gate_problems(record: dict[str, Any], path: Path) -> list[Problem]:
    def problem(field: str, value: str, reason: str) -> Problem:
        fix = "Mend the cause, and measure again"
        return Problem(field=field, value=value, origin=str(path), reason=reason, fix=fix)

    problems = []
    if record["status"] != "measured":
        problems.append(problem("/status", record["status"], record["reason"]))
    if record["resume"]["status"] == "mismatch":
        first = record["resume"]["first_difference"]
        reason = f"the resumed run differs in {first['file']}, {first['place']}"
        problems.append(problem("/resume/status", "mismatch", reason))
    return problems


def _loaded(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """The records, or every problem of all of them."""
    from miniverl.bench.validate import load

    loaded: list[dict[str, Any]] = []
    refusals: list[Problems] = []
    for path in paths:
        try:
            loaded.append(load(path))
        except Refused as error:
            refusals.append(error)
    if refusals:
        raise Refused(problem for error in refusals for problem in error.problems)
    return loaded
