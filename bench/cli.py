"""The command line: each command names its options, calls one part, and returns its exit code.

Only click is imported at the top; a command imports what it needs when it runs.
"""

import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from miniverl.bench.answer import answers, refuse, say
from miniverl.bench.exits import Exit
from miniverl.engine.problem import Problem, WrongCall

FOLDER = click.Path(file_okay=False, path_type=Path)
FILE = click.Path(dir_okay=False, path_type=Path)
as_json = click.option("--json", "as_json", is_flag=True, help="Answer in JSON on stdout.")
gpu_option = click.option("--gpu", metavar="NAME", help="GPU profile; unset: the one found here.")


class InWrittenOrder(click.Group):
    """Help lists the commands as a user meets them, not by the alphabet."""

    def list_commands(self, context: click.Context) -> list[str]:
        return list(self.commands)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command in `arguments`, else in sys.argv; the exit code is of bench/exits.py."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    # A request to stop takes the way of Ctrl-C: children end, and what was measured is written.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        code = cli.main(args=list(arguments), prog_name="miniverl", standalone_mode=False)
    except click.UsageError as error:
        return refuse(_usage(error), as_json="--json" in arguments)
    except click.Abort:
        say("Interrupted.")
        return Exit.INTERRUPTED
    return Exit.DONE if code is None else int(code)


def _usage(error: click.UsageError) -> WrongCall:
    command = "miniverl" if error.ctx is None else error.ctx.command_path
    problem = Problem(
        field="command line",
        value=command,
        origin="command line",
        reason=error.format_message(),
        fix=f"See {command} --help",
    )
    return WrongCall([problem])


@click.group(
    cls=InWrittenOrder,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 done, 1 the answer is no, 2 wrong call, 3 this machine cannot.",
)
@click.version_option(package_name="miniverl", message="%(version)s")
def cli() -> None:
    """What a verl launch means on one device, run there, and measured there."""
