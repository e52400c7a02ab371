"""The commands that read records: check them, compare them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from miniverl.bench.answer import FILE, FOLDER, answers, json_option, print_json, say, say_problems
from miniverl.bench.exits import Exit
from miniverl.engine.problem import Problem, Refused


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
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@click.option("--margin", callback=_margin, help="What counts as equal times. Unset: 3%.")
@click.option("--explain", is_flag=True, help="Say how each verdict came about.")
@click.option("--strict", is_flag=True, help="Exit 1 for an inconclusive comparison too.")
@click.option("--results", type=FOLDER, default=Path("results"), help="Unset: results.")
@json_option
@answers
def compare(
    a: str, b: str, margin: float | None, explain: bool, strict: bool, results: Path, as_json: bool
) -> Exit:
    """Compare B against the baseline A.

    Each is a record, a folder of records, or the id of a published environment.
    """
    from miniverl.bench import compare as comparing
    from miniverl.bench import show, sides, verdict
    from miniverl.bench.explain import explanation
    from miniverl.bench.terminal import draw

    time_margin = verdict.TIME_MARGIN if margin is None else margin
    matched = sides.match(*sides.sides([a, b], results))
    comparisons = [
        comparing.compare_sides(*pair, time_margin=time_margin) for pair in matched.pairs
    ]
    worst = min(comparisons, key=lambda each: verdict.WORST_FIRST.index(each.verdict))
    if as_json:
        rows = [each.to_dict() for each in comparisons]
        unmatched = {"a": list(matched.only_a), "b": list(matched.only_b)}
        print_json({"comparisons": rows, "unmatched": unmatched, "verdict": worst.verdict})
    for comparison, pair in zip(comparisons, matched.pairs, strict=True):
        if len(comparisons) > 1:
            say(f"\n{comparison.workload}")
        draw(show.comparison_view(comparison))
        for line in explanation(comparison, *pair) if explain else ():
            say(line)
    for line in sides.unmatched(matched):
        say(line)
    return max((each.exit_code(strict=strict) for each in comparisons), key=int)


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
