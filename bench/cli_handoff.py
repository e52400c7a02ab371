"""The command that hands a run over to upstream, and checks what was handed over."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from miniverl.bench.answer import FILE, FOLDER, answers, json_option, print_json, say, say_problems
from miniverl.bench.exits import Exit


@click.command
@click.argument("run", type=FOLDER, required=False)
@click.option("--out", type=FOLDER, help="Write the bundle here: a new or empty folder.")
@click.option("--merged", is_flag=True, help="The adapter merged into the weights below it.")
@click.option("--report", type=FILE, help="The run's import report; unset: in its folder.")
@click.option("--target", metavar="verl==VERSION", help="Unset: what the run was compiled for.")
@click.option("--check", type=FOLDER, metavar="DIR", help="Check a bundle instead.")
@click.option("--python", type=FILE, help="With --check: an interpreter that has verl.")
@json_option
@answers
def handoff(
    run: Path | None,
    out: Path | None,
    merged: bool,
    report: Path | None,
    target: str | None,
    check: Path | None,
    python: Path | None,
    as_json: bool,
) -> Exit:
    """Write a run as a bundle for verl itself, or check one.

    RUN is the folder of a run that has ended.
    --check computes everything again: exit code 1 for a bundle that is not as it was written, or that upstream
    refuses; it is `launchable` only where the pinned verl is installed and accepts it.
    """
    if check is not None:
        _require_unset(run=run, out=out, merged=merged or None, report=report, target=target)
        return _checked(check, python, as_json)
    _require_unset(python=python)
    if run is None or out is None:
        raise click.UsageError("Give RUN and --out DIR, or --check DIR.")
    from miniverl.bench import handoff as writing
    from miniverl.bench.progress import bars

    with bars() as progress:
        manifest = writing.write(
            run, out, is_merged=merged, report=report, target=target, progress=progress
        )
    if as_json:
        print_json(manifest)
    proof, verl = manifest["proof"], manifest["target"]["verl"]
    say(f"bundle      {out}")
    say(
        f"{manifest['kind']:<12}logits as the engine's, within {proof['policy']['max_difference']:.2g}"
    )
    if "critic" in proof:
        say(f"critic      values as the engine's, within {proof['critic']['max_difference']:.2g}")
    say(
        f"launch      {len(manifest['launch']['overrides'])} overrides for verl {verl}, and the recipe that was run"
    )
    say(f"left        miniverl handoff --check {out} --python PYTHON asks verl itself")
    return Exit.DONE


def _checked(folder: Path, python: Path | None, as_json: bool) -> Exit:
    from miniverl.bench import failure, handoff_check
    from miniverl.bench.progress import bars

    with bars() as progress:
        answer = handoff_check.check(folder, python, progress)
    problems = answer["problems"]
    if as_json:
        print_json({**answer, "problems": failure.plain(problems)})
    say_problems(problems)
    for name, state in answer["stages"].items():
        say(f"{name:<12}{state.replace('_', ' ')}{_why(name, answer)}")
    say(f"launchable  {'yes' if answer['launchable'] else 'no'}")
    say("distributed execution: not tested")
    return Exit.NO if problems else Exit.DONE


def _why(stage: str, answer: Mapping[str, Any]) -> str:
    """Why upstream was not asked, or could not answer."""
    asked = answer["upstream"]
    if stage != "upstream" or asked is None:
        return ""
    if not asked["steps"]:
        return f": this interpreter has {'no verl' if asked['verl'] is None else 'verl ' + asked['verl']}"
    lacking = [step for step in asked["steps"] if step["is_accepted"] is None]
    return "".join(f"\n  {step['step']}: {step['reason']}" for step in lacking)


def _require_unset(**options: object) -> None:
    given = [name for name, value in options.items() if value is not None]
    if given:
        names = ", ".join(name.upper() if name == "run" else f"--{name}" for name in given)
        raise click.UsageError(f"{names}: not with{'out' if 'python' in given else ''} --check.")
