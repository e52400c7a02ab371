"""The command that measures this engine beside its peers."""

from pathlib import Path

import click

from miniverl.bench.answer import FILE, answers, json_option, print_json, say
from miniverl.bench.exits import Exit

PARTS = ("rollout", "step", "refill", "update", "growth")


@click.command
@click.option("--only", multiple=True, type=click.Choice(PARTS), help="Some parts, not all.")
@click.option("--rounds", type=click.IntRange(1), metavar="N", help="Instead of each part's own.")
@click.option("--threads", type=click.IntRange(1), default=2, show_default=True)
@click.option(
    "--peers-python",
    type=FILE,
    default=Path(".venv-peers/bin/python"),
    show_default=True,
    metavar="FILE",
    help="The interpreter that has the peers.",
)
@click.option(
    "--out",
    type=FILE,
    default=Path("build/peers.json"),
    show_default=True,
    metavar="FILE",
    help="What was measured, for miniverl.bench.peers.page.",
)
@json_option
@answers
def peers(
    only: tuple[str, ...],
    rounds: int | None,
    threads: int,
    peers_python: Path,
    out: Path,
    as_json: bool,
) -> Exit:
    """Measure the engine beside transformers, TRL and llama.cpp.

    On the CPU, in turns, with the same weights and tokens. Ends with 1 where a ratio misses its bound. `make peers`
    installs the peers; refill and growth need none.
    """
    from miniverl.bench.peers import page
    from miniverl.bench.peers.measure import measured
    from miniverl.bench.peers.setting import Setting
    from miniverl.compiler.whole import write_json

    at = Setting(
        scratch=out.parent / "peers",
        peers_python=peers_python.absolute(),
        threads=threads,
        rounds=rounds,
        tell=say,
    )
    out.unlink(missing_ok=True)  # a run that breaks off leaves none, rather than an earlier one's
    out.parent.mkdir(parents=True, exist_ok=True)
    for found in measured([name for name in PARTS if not only or name in only], at):
        write_json(out, found)
    if as_json:
        print_json(found)
    else:
        for line in page.text(found):
            say(line)
    return Exit.DONE if all(each["is_met"] for each in found["ratios"]) else Exit.NO
