"""The commands that measure: run workloads, fetch their inputs, say what this machine can do."""

import os
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import click

from miniverl.bench.answer import FILE, FOLDER, answers, json_option, print_json, say
from miniverl.bench.exits import Exit
from miniverl.engine.problem import CannotHere, Problem, WrongCall

if TYPE_CHECKING:
    from miniverl.bench.aa import SelfTest
    from miniverl.bench.suite import Measured

AA_LAUNCHES = 10  # two sides that a verdict can be given for


@click.command
@click.argument("workloads", nargs=-1, metavar="[WORKLOAD]...")
@click.option("--gpu", metavar="NAME", help="GPU profile; unset: the one that fits this machine.")
@click.option("--launches", type=click.IntRange(1), help="Measured launches; 5 for a verdict.")
@click.option("--seed", type=click.IntRange(0), help="In place of the workload's own.")
@click.option(
    "--aa", is_flag=True, help="Is the suite's own rate of false alarms low? 10 launches."
)
@click.option("--as-is", is_flag=True, help="On another card or stack all the same: unofficial.")
@click.option("--against", metavar="STACK", help="Take turns with another stack, and compare.")
@click.option("--in-turns", "waits", is_flag=True, hidden=True)  # one side of --against
@click.option(
    "--bind",
    "bindings",
    multiple=True,
    metavar="NAME=VALUE",
    help="train or validation: a Parquet file, or PIN/SPLIT; reward: a name.",
)
@click.option(
    "--telemetry-hz",
    type=click.IntRange(1, 10),
    metavar="N",
    help="Samples a second, 1 to 10; unset: 1.",
)
@click.option("--out", type=FOLDER, default=Path("build"), help="Unset: build.")
@click.option("--record", "record_copy", type=FILE, help="Write the record here too.")
@json_option
@answers
def bench(
    workloads: tuple[str, ...],
    gpu: str | None,
    launches: int | None,
    seed: int | None,
    aa: bool,
    as_is: bool,
    against: str | None,
    waits: bool,
    bindings: tuple[str, ...],
    telemetry_hz: int | None,
    out: Path,
    record_copy: Path | None,
    as_json: bool,
) -> Exit:
    """Measure workloads; write their records and the page.

    Each launch is a process of its own, under the workload's contract. Without a name: those of the GPU profile, on a
    processor smollm2-grpo.
    """
    from miniverl.bench import local, show, suite
    from miniverl.bench.gpu import default_workloads
    from miniverl.bench.progress import bars
    from miniverl.bench.terminal import draw
    from miniverl.bench.turns import in_turns
    from miniverl.bench.workload import workload
    from miniverl.compiler.whole import write_json

    names = workloads or default_workloads(gpu)
    _require_one(names, record_copy)
    for name in names:
        workload(name)  # an unknown name stops it before the first one runs
    data = local.read(bindings)
    if aa and launches is None:
        launches = AA_LAUNCHES
    if against is not None:
        options = {
            "--gpu": gpu, "--launches": launches, "--seed": seed, "--telemetry-hz": telemetry_hz
        }  # fmt: skip
        stated = [f"{name}={value}" for name, value in options.items() if value is not None]
        stated += ["--as-is"] * as_is
        stated += [f"--bind={name}={value or 'none'}" for name, value in data.items()]
        return _against(against, names, stated, out, as_json)
    turn = in_turns if waits else nullcontext
    measured = []
    for name in names:
        request = suite.Request(
            workload=name,
            gpu=gpu,
            as_is=as_is,
            launches=launches,
            seed=seed,
            out=out,
            telemetry_hz=telemetry_hz,
            data=data,
        )
        with bars() as progress:
            plan = suite.prepare(request, progress)
        measured.append(suite.measure(plan, say, turn=turn))
        if record_copy is not None:
            write_json(record_copy, measured[-1].record)
        if plan.blocked is not None:
            say(f"record  {measured[-1].path}")
            raise CannotHere(plan.blocked.problems)
        if measured[-1].exit is Exit.INTERRUPTED:
            break
    page = suite.write_page(out)
    tests = _self_tests(measured) if aa else []
    if as_json:
        records = [{"path": str(each.path), "record": each.record} for each in measured]
        told = {"aa": [test.to_dict() for test in tests]} if aa else {}
        print_json({"page": str(page), "records": records, **told})
    for each in measured:
        draw(show.record_view(each.record))
    for line in suite.closing_lines(measured, page):
        say(line)
    for test in tests:
        say("\n".join(test.lines()))
    exits = [each.exit for each in measured]
    return max([*exits, *(Exit.NO for test in tests if not test.holds)], key=int)


@click.command
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--check", is_flag=True, help="Verify every byte; download nothing.")
@json_option
@answers
def fetch(names: tuple[str, ...], check: bool, as_json: bool) -> Exit:
    """Fetch and verify pinned inputs.

    Without a name: upstream's config tree and what the workloads take, but for what comes from the Hub or is large.
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


def _against(
    stack: str, names: Sequence[str], options: Sequence[str], out: Path, as_json: bool
) -> Exit:
    """Measure on this stack and on another one in turns, and compare."""
    from miniverl.bench import against, gpu, show
    from miniverl.bench.doctor import running_stack
    from miniverl.bench.terminal import draw

    if len(names) > 1:
        reason, fix = f"two stacks compare on one workload, and these are {len(names)}", "Name one"
        value = " ".join(names)
        raise WrongCall(
            [Problem(field="WORKLOAD", value=value, origin="command line", reason=reason, fix=fix)]
        )
    folder = out / "against" / names[0]
    own = running_stack(gpu.detect()).name
    both = against.sides(own, stack, names[0], options, folder)
    compared = against.measure(both, folder, say)
    if compared.comparison is not None:
        if as_json:
            print_json(compared.comparison.to_dict())
        draw(show.comparison_view(compared.comparison))
        say(f"comparison  {compared.path}")
        say(f"page        {compared.page}")
    for each in both:
        say(f"record {each.letter}    {each.record}")
    return compared.exit


def _self_tests(measured: "Sequence[Measured]") -> "list[SelfTest]":
    """A/A of each record that was measured as planned, written beside it."""
    from miniverl.bench import aa
    from miniverl.compiler.whole import write_json

    tests = []
    for each in measured:
        if each.record["status"] == "measured":
            tests.append(aa.self_test(each.record))
            write_json(each.path.with_name("aa.json"), tests[-1].to_dict())
    return tests


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
    from miniverl.bench.pin import UpstreamPin, is_light, pins
    from miniverl.bench.workload import names, workload

    upstream = [name for name, pin in pins().items() if isinstance(pin, UpstreamPin)]
    taken = [name for each in names() for name in workload(each).pins if is_light(name)]
    return dict.fromkeys([*upstream, *taken])
