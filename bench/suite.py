"""One workload from end to end: inputs fetched, launch compiled, runs made and compared, record written.

Everything goes into one new folder below `out`. A run that fails, breaks its contract or is stopped leaves a
record too, which says so, and so does a workload that this machine cannot run.
"""

import errno
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from miniverl.bench import (
    compiling,
    conditions,
    doctor,
    entry,
    gpu,
    local,
    obstacle,
    precision,
    probe,
    recompute,
    record,
    roofline,
    run_page,
    runner,
    sampling,
    site,
    stand_in,
    stop,
    units,
    validate,
)
from miniverl.bench import measure as measuring
from miniverl.bench.exits import Exit
from miniverl.bench.facts import Plan, Ran, cut, facts
from miniverl.bench.live import Live
from miniverl.bench.pin import pin
from miniverl.bench.resume import compare_runs
from miniverl.bench.runner import WORKER, Interruption, Launch, Outcome, Role
from miniverl.bench.stop import Stop
from miniverl.bench.workload import Workload, workload
from miniverl.compiler.lower import Compiled
from miniverl.compiler.upstream import Progress
from miniverl.compiler.whole import write_json
from miniverl.engine.problem import CannotHere, Refused

Write = Callable[[str], None]
MakeLaunch = Callable[[Role, Path], Launch]
Turn = Callable[[Stop], AbstractContextManager[object]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """None: as the workload, or the machine, has it."""

    workload: str
    gpu: str | None
    as_is: bool
    launches: int | None
    seed: int | None
    out: Path
    telemetry_hz: int | None = None
    data: Mapping[str, str | None] = field(default_factory=dict)  # bindings in the workload's place


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """`was_stopped`: somebody asked for the end, be it after the last launch."""

    record: Mapping[str, Any]
    path: Path
    was_stopped: bool

    @property
    def exit(self) -> Exit:
        status, resume = self.record["status"], self.record["resume"]["status"]
        if self.was_stopped:
            return Exit.INTERRUPTED
        if status == "blocked" or self.record["reason_code"] in ("cannot_here", "disk_full"):
            return Exit.CANNOT_HERE
        return Exit.DONE if status == "measured" and resume != "mismatch" else Exit.NO

    @property
    def sentence(self) -> str:
        """Why it is not as it should be."""
        name, reason = self.record["workload"]["name"], self.record["reason"]
        if reason is not None:
            return f"{name}: {reason.rstrip('.')}."
        place = units.difference(self.record["resume"]["first_difference"])
        return f"{name}: the resumed run differs from the straight one, first in {place}."


def measure(
    plan: Plan, write: Write, worker: Sequence[str] = WORKER, turn: Turn = nullcontext
) -> Measured:
    """Make the plan's launches and the record of them; `write` gets a line for people now and then.

    Each launch, and the resume check, is made within a `turn`. A signal to end is heeded between two looks at a launch; the record is written all the same.
    """
    write(f"{plan.workload.name} on {plan.chosen.profile.title}: {plan.workload.title}")
    for note in (plan.chosen.note, *(text for _, text in plan.notes)):
        if note:
            write(note)
    with stop.heard() as asked:
        conditions.write_inputs(plan, plan.folder)
        ran = execute(plan, write, asked, worker, turn)
        complete = _complete(plan, ran)
        path = plan.folder / "record.json"
        write_json(path, complete)
        if plan.blocked is None:  # what did not run replaces nothing that did
            write_json(plan.folder.parent / site.LATEST, complete)
    return Measured(record=complete, path=path, was_stopped=asked.outcome() is not None)


def prepare(request: Request, progress: Progress) -> Plan:
    """Everything that a launch needs; where this machine cannot make one, a plan that says so.

    Raises WrongCall, Refused or CannotHere where not even a plan can be made: nothing is downloaded for a
    record of what cannot run.
    """
    chosen_workload, found = workload(request.workload), gpu.detect()
    chosen, blocked = obstacle.device(request.gpu, request.as_is, found)
    running = doctor.running_stack(found)
    blocked = blocked or obstacle.of_driver(running, chosen, found)
    if blocked is None and not request.as_is:
        blocked = obstacle.of_stack(running)
    if blocked is not None and not _all_here(chosen_workload):
        raise CannotHere(blocked.problems)
    chosen_workload, replaced = stand_in.available(chosen_workload, progress)
    chosen_workload = local.bound(chosen_workload, request.data)
    seed = chosen_workload.seed if request.seed is None else request.seed
    types = precision.precision(chosen.profile.device, chosen.compute_capability)
    compiled = compiling.compile_workload(chosen_workload, seed, (), types.compute, progress)
    if compiled.problems:
        raise Refused(compiled.problems)
    assert compiled.recipe is not None, f"a workload binds all it needs: {compiled.execution}"
    started = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    folder = request.out / "bench" / chosen_workload.name / chosen.profile.name
    if blocked is None:
        blocked = obstacle.of_room(compiled, chosen, chosen_workload.contract, request.out)
    return Plan(
        workload=chosen_workload,
        seed=seed,
        launches=request.launches or chosen_workload.launches,
        found=found,
        chosen=chosen,
        stack=running,
        compiled=compiled,
        recipe=compiled.recipe,
        environment=conditions.environment(chosen),
        interruption=_interruption(chosen_workload, seed),
        folder=folder / f"{started}-{compiled.recipe.sha256[:8]}",
        roofline=None if blocked else _roofline(chosen, found, compiled),
        blocked=blocked,
        telemetry_hz=request.telemetry_hz,
        notes=tuple(compiling.notes(chosen_workload, chosen.profile.device, replaced, types)),
    )


def _roofline(chosen: gpu.Chosen, found: gpu.Found, compiled: Compiled) -> dict[str, Any]:
    return roofline.stated(probe.machine(chosen, found), compiled.paths)


def _all_here(chosen: Workload) -> bool:
    """Whether every input has been fetched."""
    return all(entry.place(name, pin(name)).exists() for name in chosen.pins)


def write_page(out: Path) -> Path:
    """The page with the last record of each workload and GPU below `out`."""
    paths = site.latest_records(out)
    # One that an earlier version wrote may not be valid any more; it is no part of what was asked for.
    valid = [path for path in paths if not validate.validate(record.load_strict(path))]
    return site.write_site(valid, out / "site")


def closing_lines(measured: Sequence[Measured], page: Path) -> list[str]:
    """Where records and page are; where a record is not as it should be, the last words are why."""
    return [
        *(f"record  {each.path}" for each in measured),
        f"page    {page}",
        *(each.sentence for each in measured if each.exit is not Exit.DONE),
    ]


def execute(
    plan: Plan,
    write: Write,
    asked: Stop,
    worker: Sequence[str] = WORKER,
    turn: Turn = nullcontext,
) -> Ran:
    """The plan's launches, one after the other, as long as each ends as planned and nobody asks for the end."""
    ran = Ran()
    if plan.blocked is not None:
        code, reason = plan.blocked.code, plan.blocked.reason
        ran.outcome = Outcome(status="blocked", reason_code=code, reason=reason)
        return ran
    launch = partial(_launch, plan, ran, asked=asked, write=write, worker=worker)
    try:
        for number in range(1, plan.launches + 1):
            folder = plan.straight if number == 1 else plan.folder / f"straight-{number}"
            with turn(asked):
                launch("straight", folder)
            if ran.outcome is not None:
                return ran
        if plan.interruption is not None:
            with turn(asked):
                _check_resume(plan, ran, plan.interruption, launch, write)
        if ran.outcome is None:
            with turn(asked):
                recompute.compare(plan, ran, asked, write, worker)
    except OSError as error:  # of the parent's own files: the worker tells of its own
        code = "disk_full" if error.errno == errno.ENOSPC else "file_system"
        ran.outcome = Outcome(status="failed", reason_code=code, reason=str(error))
    return ran


def _check_resume(
    plan: Plan, ran: Ran, interruption: Interruption, launch: MakeLaunch, write: Write
) -> None:
    folder = plan.folder / "resumed"
    killed = launch("interrupted", folder)
    if ran.outcome is not None:
        return
    step = next(
        event
        for event in killed.events
        if event["event"] == "step_finished" and event["step"] == interruption.after_step
    )
    ran.kill_delay_seconds = interruption.step_share * step["seconds"]
    launch("resumed", folder)
    if ran.outcome is not None:
        return
    ran.resume = compare_runs(plan.straight, folder)
    difference = ran.resume.first_difference
    if difference is None:
        write("the resumed run equals the straight one byte for byte")
    else:
        write(f"the resumed run differs from the straight one: {difference}")


def _launch(
    plan: Plan,
    ran: Ran,
    role: Role,
    folder: Path,
    *,
    asked: Stop,
    write: Write,
    worker: Sequence[str],
) -> Launch:
    """Run one process, and measure it before another one writes to the folder."""
    ordinal = len(ran.launches) + 1
    write(f"launch {ordinal}, {role}: {folder}")
    if role != "resumed":
        conditions.write_inputs(plan, folder)
    seen = runner.launch(
        folder,
        role,
        arguments=conditions.arguments(plan, *(("--resume",) if role == "resumed" else ())),
        environment=plan.environment,
        limits=conditions.limits(plan),
        interruption=plan.interruption if role == "interrupted" else None,
        sampling=conditions.sampled(plan),
        listen=Live(write),
        stopped=asked.outcome,
        worker=worker,
    )
    ran.outcome = _departure(seen)
    ran.warnings += [event for event in seen.events if event["event"] == "warned"]
    ran.launches.append(_measured(plan, seen, ran.outcome, ordinal))
    run_page.leave(folder, seen.outcome, write)
    return seen


def _departure(seen: Launch) -> Outcome | None:
    """How the launch departed from the plan; None where it did not."""
    if seen.role == "interrupted":
        if seen.outcome.status == "killed":
            return None
        if seen.outcome.status == "finished":
            return Outcome(
                status="failed",
                reason_code="not_interrupted",
                reason="The run that was to be killed ended before its time came",
            )
    return None if seen.outcome.status == "finished" else seen.outcome


def _measured(plan: Plan, seen: Launch, outcome: Outcome | None, ordinal: int) -> dict[str, Any]:
    is_finished = any(event["event"] == "run_finished" for event in seen.events)
    sampled = conditions.sampled(plan)
    doubts = sampling.doubts(
        seen.samples,
        created_monotonic=seen.created_monotonic,
        ended_monotonic=seen.ended_monotonic,
        has_died=seen.has_sampler_died,
        every_seconds=sampled.every_seconds,
    )
    failure = None
    if outcome is not None and not is_finished:
        failure = (outcome.reason_code or outcome.status, cut(outcome.reason or outcome.status))
    return measuring.launch(
        seen.folder,
        role=seen.role,
        ordinal=ordinal,
        pid=seen.pid,
        created_monotonic=seen.created_monotonic,
        interpreter_monotonic=seen.interpreter_monotonic,
        ended_monotonic=seen.ended_monotonic,
        exit_code=seen.exit_code,
        failure=failure,
        warmup_steps=plan.workload.warmup_steps,
        peak_bytes={} if seen.peak_rss_bytes is None else {"rss": seen.peak_rss_bytes},
        samples=seen.samples,
        telemetry_reasons=doubts,
        every_seconds=sampled.every_seconds,
    )


def _complete(plan: Plan, ran: Ran) -> dict[str, Any]:
    """The record, valid. A limit can be broken between two samples: only the derived peaks show it then."""
    complete = record.complete(facts(plan, ran))
    broken = [name for name, kept in complete["resource_contract"].items() if kept is False]
    if broken and ran.outcome is None:
        ran.outcome = Outcome(
            status="contract_exceeded",
            reason_code="limit_exceeded",
            reason=f"Not within its limit: {', '.join(broken)}",
        )
        complete = record.complete(facts(plan, ran))
    problems = validate.validate(complete)
    assert not problems, "our own record is not valid:\n" + "\n".join(map(str, problems))
    return complete


def _interruption(chosen: Workload, seed: int) -> Interruption | None:
    """The kill comes at any moment of the step that follows, drawn from the seed."""
    if chosen.interrupt_after_update is None:
        return None
    share = random.Random(f"interruption {seed}").random()
    return Interruption(after_step=chosen.interrupt_after_update, step_share=share)
