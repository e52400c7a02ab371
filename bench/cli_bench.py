"""The commands that measure: run workloads, fetch their inputs, say what this machine can do."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import click

from miniverl.bench.answer import FILE, FOLDER, answers, json_option, print_json, say
from miniverl.bench.exits import Exit
from miniverl.engine.problem import CannotHere, Problem, WrongCall

DEFAULT_WORKLOAD = "smollm2-grpo"


@click.command
@click.argument("workloads", nargs=-1, metavar="[WORKLOAD]...")
@click.option("--gpu", metavar="NAME", help="GPU profile; unset: the one that fits this machine.")
@click.option("--launches", type=click.IntRange(1), help="Measured launches; 5 for a verdict.")
@click.option("--seed", type=click.IntRange(0), help="In place of the workload's own.")
@click.option("--as-is", is_flag=True, help="On another card or stack all the same: unofficial.")
@click.option("--out", type=FOLDER, default=Path("build"), help="Unset: build.")
@click.option("--record", "record_copy", type=FILE, help="Write the record here too.")
@json_option
@answers
def bench(
    workloads: tuple[str, ...],
    gpu: str | None,
    launches: int | None,
    seed: int | None,
    as_is: bool,
    out: Path,
    record_copy: Path | None,
    as_json: bool,
) -> Exit:
    """Measure workloads; write their records and the page.

    Each launch is a process of its own, under the workload's contract. Without a name: smollm2-grpo.
    """
    from miniverl.bench import show, suite
    from miniverl.bench.progress import bars
    from miniverl.bench.terminal import draw
    from miniverl.bench.workload import workload
    from miniverl.compiler.whole import write_json

    names = workloads or (DEFAULT_WORKLOAD,)
    _require_one(names, record_copy)
    for name in names:
        workload(name)  # an unknown name stops it before the first one runs
    measured = []
    for name in names:
        request = suite.Request(
            workload=name, gpu=gpu, as_is=as_is, launches=launches, seed=seed, out=out
        )
        with bars() as progress:
            plan = suite.prepare(request, progress)
        measured.append(suite.measure(plan, say))
        if record_copy is not None:
            write_json(record_copy, measured[-1].record)
        if plan.blocked is not None:
            say(f"record  {measured[-1].path}")
            raise CannotHere(plan.blocked.problems)
        if measured[-1].exit is Exit.INTERRUPTED:
            break
    page = suite.write_page(out)
    if as_json:
        records = [{"path": str(each.path), "record": each.record} for each in measured]
        print_json({"page": str(page), "records": records})
    for each in measured:
        draw(show.record_view(each.record))
    for line in suite.closing_lines(measured, page):
        say(line)
    return max((each.exit for each in measured), key=int)


@click.command
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--check", is_flag=True, help="Verify every byte; download nothing.")
@json_option
@answers
def fetch(names: tuple[str, ...], check: bool, as_json: bool) -> Exit:
    """Fetch and verify pinned inputs.

    Without a name: upstream's config tree and what the workloads take.
    """
    from miniverl.bench import fetch as fetching
    from miniverl.bench.entry import input_of
    from miniverl.bench.progress import bars

    wanted = names or _default_pins()
    with bars() as progress:
        places = fetching.check(wanted) if check else fetching.fetch(wanted, progress)
    if as_json:
        print_json({"inputs": [input_of(name) for name in sorted(places)]})
    for name, place in sorted(places.items()):
        say(f"{name:<24} {place}")
    return Exit.DONE


@click.command
@click.option("--fingerprint", type=FILE, help="Write what a measurement depends on here.")
@click.option("--probe", "probes", is_flag=True, help="Measure memory and matrix products again.")
@json_option
@answers
def doctor(fingerprint: Path | None, probes: bool, as_json: bool) -> Exit:
    """Say what this machine is, and what it can run."""
    from miniverl.bench import doctor as examination
    from miniverl.bench import gpu, probe
    from miniverl.compiler.whole import write_json

    if fingerprint is not None:
        write_json(fingerprint, examination.fingerprint(os.environ))
        say(f"fingerprint {fingerprint}")
        return Exit.DONE
    report = examination.examine(os.environ)
    if probes:
        found = gpu.detect()
        report["probe"] = probe.machine(gpu.choose(None, False, found), found, again=True)
        say(probe.text(report["probe"]))
    if as_json:
        print_json(report)
    say(examination.text(report))
    has_error = any(finding["level"] == "error" for finding in report["findings"])
    return Exit.CANNOT_HERE if has_error else Exit.DONE


def _require_one(names: Sequence[str], record_copy: Path | None) -> None:
    if record_copy is None or len(names) == 1:
        return
    problem = Problem(
        field="--record",
        value=str(record_copy),
        origin="command line",
        reason=f"one file, and {len(names)} workloads",
        fix="Name one workload, or leave out --record",
    )
    raise WrongCall([problem])


def _default_pins() -> Iterable[str]:
    from miniverl.bench.pin import UpstreamPin, pins
    from miniverl.bench.workload import names, workload

    upstream = [name for name, pin in pins().items() if isinstance(pin, UpstreamPin)]
    taken = [name for each in names() for name in workload(each).pins]
    return dict.fromkeys([*upstream, *taken])
