"""The commands that look at a run: its trajectories, its metrics, and how it goes on while another process makes it."""

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from miniverl.bench.answer import FOLDER, answers, json_option, print_json, print_json_line, say
from miniverl.bench.exits import Exit

_A_FEW = 3  # of each kind, where the call names none
_COUNT = click.IntRange(1)


@click.command
@click.argument("run", type=FOLDER)
@click.option("--worst", type=_COUNT, metavar="N", help="The lowest rewards.")
@click.option("--best", type=_COUNT, metavar="N", help="The highest rewards.")
@click.option("--changed", type=_COUNT, metavar="N", help="One prompt, answered otherwise later.")
@click.option("--step", type=click.IntRange(0), metavar="N", help="Of this step alone.")
@click.option("--validation", is_flag=True, help="Answers to the held-out prompts.")
@json_option
@answers
def inspect(
    run: Path,
    worst: int | None,
    best: int | None,
    changed: int | None,
    step: int | None,
    validation: bool,
    as_json: bool,
) -> Exit:
    """Show trajectories of a run: worst, best, changed.

    RUN is a run folder; the run may go on meanwhile. Without a number: three of each.
    """
    from miniverl.bench import inspect as inspecting

    few = _A_FEW if worst is best is changed is None else 0
    wanted = inspecting.Wanted(
        worst=few if worst is None else worst,
        best=few if best is None else best,
        changed=few if changed is None else changed,
        step=step,
        validation=validation,
    )
    found = inspecting.inspect(run, wanted)
    if as_json:
        print_json(inspecting.plain(found))
        return Exit.DONE
    for line in inspecting.lines(found):
        say(line)
    return Exit.DONE


@click.command
@click.argument("run", type=FOLDER)
@click.option("--tensorboard", type=FOLDER, metavar="DIR", help="An event file for TensorBoard.")
@click.option("--wandb", type=FOLDER, metavar="DIR", help="A run for `wandb sync`, made offline.")
@json_option
@answers
def export(run: Path, tensorboard: Path | None, wandb: Path | None, as_json: bool) -> Exit:
    """Write a run's metrics for TensorBoard, or for Weights & Biases.

    RUN is a run folder; the run may go on meanwhile. DIR is a new or empty folder. Each needs its own library, which
    has to be installed beside. Nothing is sent anywhere.
    """
    from miniverl.bench import disk, tracking

    wanted = {"tensorboard": tensorboard, "wandb": wandb}
    folders = {name: folder for name, folder in wanted.items() if folder is not None}
    if not folders:
        raise click.UsageError("Give --tensorboard DIR, --wandb DIR, or both.")
    for name, folder in folders.items():
        disk.require_free(folder, f"--{name}")
        tracking.require_package(name)
    tracked = tracking.tracked(run)
    for name, folder in folders.items():
        # Imported here, since only one of the libraries may be there.
        importlib.import_module(f"miniverl.bench.to_{name}").write(tracked, folder)
        say(f"{name:<12}{folder}: {len(tracked.points)} steps")
    if as_json:
        places = {name: str(folder) for name, folder in folders.items()}
        print_json({"run": str(run), "steps": len(tracked.points), **places})
    return Exit.DONE


def follow(run: Path, *, as_json: bool) -> Exit:
    """Hear a run that another process makes, to its end; its exit code. Ctrl-C ends the looking alone."""
    from miniverl.bench import live
    from miniverl.bench.watch import watch as watching

    with live.shown(say) as shown:
        ended = watching(run, telling(shown, as_json=as_json), shown.write)
    return told(ended.exit, ended.sentence, as_json=as_json)


def telling(
    listen: Callable[[Mapping[str, Any]], None], *, as_json: bool
) -> Callable[[Mapping[str, Any]], None]:
    """A listener that also writes each event as a line of JSON, where that is asked for."""
    if not as_json:
        return listen

    def both(event: Mapping[str, Any]) -> None:
        print_json_line(event)
        listen(event)

    return both


def told(exit_code: Exit, sentence: str, *, as_json: bool) -> Exit:
    """How a run ended: the last line of its events, and one for people."""
    if as_json:
        print_json_line({"event": "ended", "exit": int(exit_code), "reason": sentence})
    say(sentence)
    return exit_code
