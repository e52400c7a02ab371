"""The command line: each command names its options, calls one part, and returns its exit code.

The cli_*.py files hold the commands. They import only click at the top, and what a command needs when it
runs: `miniverl --help` does not wait for more.
"""

import signal
import sys
from collections.abc import Sequence

import click

from miniverl.bench.answer import refuse, say
from miniverl.bench.cli_bench import bench, doctor, fetch
from miniverl.bench.cli_compile import compile_, explain, run
from miniverl.bench.cli_corpus import corpus
from miniverl.bench.cli_handoff import handoff
from miniverl.bench.cli_inspect import export, inspect
from miniverl.bench.cli_peers import peers
from miniverl.bench.cli_publish import migrate, publish, site
from miniverl.bench.cli_records import check, compare
from miniverl.bench.cli_upstream import drift
from miniverl.bench.exits import Exit
from miniverl.engine.problem import Problem, WrongCall


class InWrittenOrder(click.Group):
    """Help lists the commands as a user meets them, not by the alphabet."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group(
    cls=InWrittenOrder,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 done, 1 the answer is no, 2 wrong call, 3 this machine cannot.",
)
@click.version_option(package_name="miniverl", message="%(version)s")
def cli() -> None:
    """What a verl launch means on one device, run there, and measured there."""


COMMANDS = (
    compile_, explain, corpus, drift, run, inspect, export, handoff, bench, peers, fetch, doctor, check, compare, publish, migrate, site,
)  # fmt: skip
for command in COMMANDS:
    cli.add_command(command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command in `arguments`, else in sys.argv; the exit code is of bench/exits.py."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    # A request to stop takes the way of Ctrl-C: children end, and what was measured is written.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        code = cli.main(args=given, prog_name="miniverl", standalone_mode=False)
    except click.UsageError as error:
        return refuse(_wrong_call(error), as_json="--json" in given)
    except click.Abort:
        say("Interrupted.")
        return Exit.INTERRUPTED
    return Exit.DONE if code is None else int(code)


def _wrong_call(error: click.UsageError) -> WrongCall:
    command = "miniverl" if error.ctx is None else error.ctx.command_path
    problem = Problem(
        field="command line",
        value=command,
        origin="command line",
        reason=error.format_message().rstrip("."),
        fix=f"See {command} --help",
    )
    return WrongCall([problem])
