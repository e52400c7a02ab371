"""The commands about upstream's releases: what another one changes."""

from pathlib import Path

import click

from miniverl.bench.answer import FILE, answers, json_option, print_json, say
from miniverl.bench.exits import Exit


@click.command
@click.option("--against", required=True, metavar="verl==VERSION", help="The release to compare.")
@click.option("--profile", metavar="NAME", help="Whose verdicts; unset, those of a native launch.")
@click.option("-o", "--output", type=FILE, help="Write the comparison here, as Markdown.")
@json_option
@answers
def drift(against: str, profile: str | None, output: Path | None, as_json: bool) -> Exit:
    """Say which verdicts another release of verl touches.

    Both wheels are fetched, and read without running them. Exit code 1 if a verdict is touched.
    """
    from miniverl.bench.progress import bars
    from miniverl.compiler import drift_page
    from miniverl.compiler.drift import drift as compare
    from miniverl.compiler.whole import write_text

    with bars() as progress:
        compared = compare(against, profile=profile, progress=progress)
    if output is not None:
        write_text(output, drift_page.page(compared))
    if as_json:
        print_json(compared)
    for line in drift_page.lines(compared):
        say(line)
    say(drift_page.verdict(compared))
    return Exit.NO if compared["touched_verdicts"] else Exit.DONE
