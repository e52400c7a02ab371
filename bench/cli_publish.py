"""The commands that bring records to others: migrate an old one, publish, show them as pages."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from miniverl.bench.answer import FILE, FOLDER, answers, json_option, print_json, say, say_problems
from miniverl.bench.exits import Exit
from miniverl.engine.problem import Problem, Refused, WrongCall

if TYPE_CHECKING:
    from miniverl.bench.results import Review

RESULTS = Path("results")
_REVIEWS = ("maintainer_measured", "community_submitted", "reference")


@click.command
@click.argument("record", type=FILE)
@click.option("-o", "--out", type=FILE, help="Unset: RECORD with .v2.json at its end.")
@json_option
@answers
def migrate(record: Path, out: Path | None, as_json: bool) -> Exit:
    """Write a record of version 1 as one of version 2.

    The original stays in it, with its sha256.
    """
    from miniverl.bench.migrate import migrated
    from miniverl.bench.validate import load
    from miniverl.compiler.whole import write_json

    version = load(record)["schema_version"]
    if version != 1:
        problem = Problem(
            field="/schema_version",
            value=version,
            origin=str(record),
            reason="there is nothing to migrate",
            fix="Use the record as it is",
        )
        raise Refused([problem])
    written = migrated(record.read_bytes().decode("utf-8"))
    place = out or record.with_name(f"{record.stem}.v2.json")
    write_json(place, written)
    if as_json:
        print_json({"path": str(place), "migrated_from": written["migrated_from"]["sha256"]})
    say(f"record  {place}")
    return Exit.DONE


@click.command
@click.argument("records", nargs=-1, type=FILE, metavar="[RECORD]...")
@click.option(
    "--review", type=click.Choice(_REVIEWS), help="Unset: as listed, else community_submitted."
)
@click.option("--as-is", is_flag=True, help="A dirty tree's or an unofficial record all the same.")
@click.option("--results", type=FOLDER, default=RESULTS, help="Unset: results.")
@click.option("--check", is_flag=True, help="Check all that is published; publish nothing.")
@json_option
@answers
def publish(
    records: tuple[Path, ...],
    review: "Review | None",
    as_is: bool,
    results: Path,
    check: bool,
    as_json: bool,
) -> Exit:
    """Copy valid records to their places in results/, and list them.

    Nothing is uploaded: what you commit and push is what others see.
    """
    from miniverl.bench import failure
    from miniverl.bench import publish as publishing

    if check == bool(records):
        problem = Problem(
            field="RECORD",
            value=" ".join(map(str, records)) or None,
            origin="command line",
            reason="either records are published, or what is published is checked",
            fix="Name records, or give --check alone",
        )
        raise WrongCall([problem])
    if check:
        problems = publishing.check(results)
        if as_json:
            print_json({"problems": failure.plain(problems)})
        say_problems(problems)
        say(f"{results}: {f'{len(problems)} problems' if problems else 'valid'}")
        return Exit.NO if problems else Exit.DONE
    done = publishing.publish(records, results, review=review, as_is=as_is)
    if as_json:
        rows = [{"path": str(e.path), "is_new": e.is_new, "review": e.entry.review} for e in done]
        print_json({"records": rows})
    for each in done:
        told = "published" if each.is_new else "stands there already"
        say(f"{each.path}: {told}, {each.entry.review}, environment {each.entry.environment}")
    return Exit.DONE


@click.command
@click.argument("records", nargs=-1, type=FILE, metavar="[RECORD]...")
@click.option("--results", type=FOLDER, default=RESULTS, help="Unset: results.")
@click.option("--out", type=FOLDER, default=Path("build/site"), help="Unset: build/site.")
@click.option("--numbers", type=FOLDER, help="Write what dvc metrics and dvc plots read here.")
@answers
def site(records: tuple[Path, ...], results: Path, out: Path, numbers: Path | None) -> Exit:
    """Write a folder of pages that need no network.

    Without records: of all in results/, and of the last ones below build/bench.
    """
    from miniverl.bench import dvc_numbers
    from miniverl.bench.site import latest_records, published_records, reviews, write_site
    from miniverl.bench.validate import load

    shown = records or (*published_records(results), *latest_records(Path("build")))
    if not shown:
        problem = Problem(
            field="records",
            value=None,
            origin="command line",
            reason=f"none is named, and there is none in {results} or below build/bench",
            fix="Run miniverl bench, or name records",
        )
        raise WrongCall([problem])
    say(f"page    {write_site(shown, out, reviews(results))}")
    if numbers is not None:
        dvc_numbers.write([load(path) for path in shown], numbers)
    return Exit.DONE
