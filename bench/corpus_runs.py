"""Does every launch that the corpus accepts run, and go on after a kill with the same bytes?

    python -m miniverl.bench.corpus_runs [CASE ...]
    python -m miniverl.bench.corpus_runs --table RECORD ...        only the table, of records that are there

Each case is a workload of its own (`corpus-CASE`, as in `miniverl bench corpus-ppo`): the launch with its own losses,
rates and weights, at the size that corpus_runs.yaml states. Of a case that resumed exactly the record is kept, and
not the runs. Prints a Markdown table from the records (no times: those are for a machine that
does nothing else), and ends with 1 unless all of them were measured and resumed exactly.
"""

import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from miniverl.bench import suite, units, validate
from miniverl.bench.answer import answers, say
from miniverl.bench.corpus_workload import PREFIX, accepted
from miniverl.bench.exits import Exit
from miniverl.bench.progress import bars

_HEADINGS = ("workload", "estimator", "loss", "updates", "peak", "after a kill", "record")


def table(records: Sequence[Mapping[str, Any]]) -> str:
    """A row a record: what trained, and whether the resumed run has the same bytes."""
    rows = [_HEADINGS, tuple("---" for _ in _HEADINGS), *map(_row, records)]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _row(record: Mapping[str, Any]) -> tuple[str, ...]:
    recipe, measured = record["recipe"]["compiled"], record["measurements"]
    return (
        record["workload"]["name"],
        *_what_trains(recipe),
        str(measured["launches"][0]["steps_finished"]),
        units.gib(measured["peak_rss_gib"]),
        record["resume"]["status"].replace("_", " "),
        f"`{record['record_sha256'][:12]}` of {record['source_commit'][:7]}",
    )


def _what_trains(recipe: Mapping[str, Any]) -> tuple[str, str]:
    """Estimator and loss; without task rewards the teachers' loss is all there is."""
    distilled = recipe.get("distillation")
    if distilled is not None and not distilled["uses_task_rewards"]:
        return "none", distilled["loss"]
    return recipe["advantage"]["estimator"], recipe["policy_loss"]["name"]


@answers
def _answer(names: Sequence[str], out: Path) -> Exit:
    measured = []
    for name in names or accepted():
        request = suite.Request(
            workload=f"{PREFIX}{name}", gpu=None, as_is=False, launches=None, seed=None, out=out
        )
        with bars() as progress:
            plan = suite.prepare(request, progress)
        measured.append(suite.measure(plan, say))
        if measured[-1].exit is Exit.DONE:
            _drop_runs(plan.folder)
    click.echo(table([validate.load(each.path) for each in measured]))
    return Exit.DONE if all(each.exit is Exit.DONE for each in measured) else Exit.NO


def _drop_runs(folder: Path) -> None:
    """What exact runs leave takes gigabytes a case; the record has its digests. Others stay to be looked at."""
    for run in folder.iterdir():
        if (run / "checkpoints").is_dir():
            shutil.rmtree(run)


@answers
def _tell(paths: Sequence[Path]) -> Exit:
    """The table of valid records; raises Refused for another."""
    records = [validate.load(path) for path in paths]
    click.echo(table(records))
    is_exact = all(
        (each["status"], each["resume"]["status"]) == ("measured", "exact_match")
        for each in records
    )
    return Exit.DONE if is_exact else Exit.NO


@click.command(help=__doc__)
@click.argument("names", nargs=-1, metavar="[CASE ...]")
@click.option("--table", "is_table", is_flag=True, help="CASE ... are records.")
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("build"), help="Default: build."
)
def main(names: tuple[str, ...], is_table: bool, out: Path) -> None:
    sys.exit(_tell([Path(name) for name in names]) if is_table else _answer(names, out))


if __name__ == "__main__":
    main()
