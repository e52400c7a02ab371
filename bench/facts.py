"""What a record states and does not derive: how the workload was to be run, where, and what came of it."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from miniverl.bench import determinism, entry, environment, measure, telemetry
from miniverl.bench.comparability import sha256_of
from miniverl.bench.gpu import Chosen, Found
from miniverl.bench.launch_values import is_number, mean, sampled
from miniverl.bench.pin import DataPin, HubPin, ModelPin, ShapePin, is_local, pin
from miniverl.bench.resume import ResumeCheck
from miniverl.bench.runner import Interruption, Outcome
from miniverl.bench.stack import Stack
from miniverl.bench.workload import Workload
from miniverl.compiler.lower import Compiled
from miniverl.engine import recipe as recipes
from miniverl.engine.problem import Problem
from miniverl.engine.recipe import Recipe

_NOT_PLANNED = "The workload does not ask for it"
_LONGEST_TEXT = 2000  # of a reason or message, in schemas/record-v2.json
_LARGEST_DISAGREEMENT = 0.05  # of the energy counter and the sampled power


@dataclass(frozen=True, kw_only=True, slots=True)
class Blocked:
    """Why this machine cannot make the plan's launches."""

    code: str
    problems: tuple[Problem, ...]

    @property
    def reason(self) -> str:
        return "; ".join(
            one.reason if one.reason[:1].isupper() else f"{one.field} = {one.value!r}: {one.reason}"
            for one in self.problems
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """A workload made ready for this machine. `interruption` None: resume is not checked.

    `roofline` is what the shares are counted from; None: none is drawn.
    """

    workload: Workload
    seed: int
    launches: int
    found: Found
    chosen: Chosen
    stack: Stack
    compiled: Compiled
    recipe: Recipe
    environment: Mapping[str, str]
    interruption: Interruption | None
    folder: Path
    roofline: Mapping[str, Any] | None = None
    blocked: Blocked | None = None
    telemetry_hz: int | None = None  # None: as sampling.py has it
    notes: tuple[tuple[str, str], ...] = ()  # what was decided for this machine: code and sentence

    @property
    def straight(self) -> Path:
        """The run folder of the first straight launch."""
        return self.folder / "straight"

    @property
    def record_class(self) -> str:
        if not self.chosen.is_official or not self.stack.matches:
            return "unofficial"
        is_own = self.seed == self.workload.seed and not any(map(is_local, self.workload.pins))
        return "reference" if is_own else "modified"


@dataclass(kw_only=True, slots=True)
class Ran:
    """What came of a plan so far. `outcome` is why it did not go on; None where all went as planned."""

    launches: list[dict[str, Any]] = field(default_factory=list)
    outcome: Outcome | None = None
    resume: ResumeCheck | None = None
    kill_delay_seconds: float | None = None
    compared: Mapping[str, Any] | None = None  # by engine/determinism.py
    warnings: list[Mapping[str, Any]] = field(default_factory=list)


def facts(plan: Plan, ran: Ran) -> dict[str, Any]:
    """Every field of a record that is not derived from others."""
    checkout, report = environment.checkout(), plan.compiled.report
    outcome, profile = ran.outcome, plan.chosen.profile
    return {
        "class": plan.record_class,
        "status": "measured" if outcome is None else outcome.status,
        "reason_code": outcome and outcome.reason_code,
        "reason": outcome and cut(outcome.reason or outcome.status),
        "measured_at": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "miniverl_version": version("miniverl"),
        "source_commit": checkout.commit,
        "source_dirty": checkout.is_dirty,
        "workload_driver_sha256": environment.code_sha256(),
        "workload": _workload(plan),
        "profile": report["profile"],
        "profile_identity": dict(report["profile_identity"]),
        "verl": {**report["source_verl"], "distributed_execution_tested": False},
        "models": {
            "policy" if role == "model" else role: _model(plan.workload, role, name)
            for role, name in plan.workload.bindings.models.items()
        },
        "inputs": [entry.input_of(name) for name in input_pins(plan.workload, report)],
        "recipe": {
            "compiled": recipes.to_dict(plan.recipe),
            "source_config_sha256": report["source_config_sha256"],
            "report_sha256": sha256_of(report),
            "prompts_available": _rows(plan.workload.bindings.train),
        },
        "hardware": environment.hardware(profile.device, plan.chosen.card, plan.found),
        "environment": environment.environment(plan.stack, profile.threads, plan.environment),
        "launches": ran.launches,
        **({} if plan.roofline is None else {"roofline": dict(plan.roofline)}),
        "resource_contract": _contract(plan),
        "resume": _resume(plan, ran),
        "determinism": determinism.stated(
            ran.launches, "not_checked" if ran.resume is None else ran.resume.status, ran.compared
        ),
        "artifacts": measure.artifacts(plan.straight, plan.folder),
        "findings": _findings(plan, ran),
        "scientific_scope": {
            "algorithm_comparison": False,
            "runtime_correctness_only": True,
            "task_quality_evaluated": False,
        },
    }


def input_pins(chosen: Workload, report: Mapping[str, Any]) -> Sequence[str]:
    """The names of every pin that the workload takes, upstream's config tree first."""
    return (f"verl-{report['source_verl']['tag'].removeprefix('v')}", *chosen.pins)


def _workload(plan: Plan) -> dict[str, Any]:
    chosen = plan.workload
    return {
        "name": chosen.name,
        "title": chosen.title,
        "version": chosen.version,
        "version_sha256": chosen.sha256,
        "seed": plan.seed,
        "warmup_steps": chosen.warmup_steps,
        "interrupt_after_update": chosen.interrupt_after_update,
        "launches": plan.launches,
        "checks_resume": chosen.checks_resume,
    }


def _model(workload: Workload, role: str, name: str) -> dict[str, Any]:
    chosen, kind = pin(name), role.partition(".")[0]
    bound = "quantization" if kind == "model" else f"{kind}_quantization"
    assert isinstance(chosen, ModelPin), f"{name} is no model"
    return {
        "pin": name,
        "source": entry.source_of(chosen),
        "revision": chosen.revision if isinstance(chosen, HubPin) else None,
        "licence": chosen.licence,
        "weights": "synthetic" if isinstance(chosen, ShapePin) else "trained",
        "quantization": workload.bindings.quantised.get(bound),
    }


def _rows(reference: str) -> int:
    name, _, split = reference.partition("/")
    chosen = pin(name)
    assert isinstance(chosen, DataPin), f"{name} is no data"
    return chosen.splits[split].rows


def _contract(plan: Plan) -> dict[str, Any]:
    """A limit on memory that this device does not have is not supported."""
    contract, is_gpu = plan.workload.contract, plan.chosen.profile.device == "cuda"
    return {
        "device_hour_limit": contract.device_hours,
        "peak_reserved_limit_gib": contract.peak_reserved_gib if is_gpu else measure.NOT_SUPPORTED,
        "peak_rss_limit_gib": measure.NOT_SUPPORTED if is_gpu else contract.peak_rss_gib,
        "disk_limit_gib": contract.disk_gib,
    }


def _resume(plan: Plan, ran: Ran) -> dict[str, Any]:
    delay = ran.kill_delay_seconds
    stated = {"kill_delay_seconds": measure.NOT_MEASURED if delay is None else round(delay, 6)}
    if ran.resume is None:
        planned = plan.interruption is not None
        reason = "The launches that it takes did not end as planned" if planned else _NOT_PLANNED
        return stated | {
            "status": "not_checked",
            "reason": reason,
            "differing_files": [],
            "first_difference": None,
        }
    first = ran.resume.first_difference
    return stated | {
        "status": ran.resume.status,
        "reason": None,
        "differing_files": list(ran.resume.differing),
        "first_difference": first
        and {"file": first.file, "byte": first.byte, "place": first.place},
    }


def _findings(plan: Plan, ran: Ran) -> list[dict[str, str]]:
    findings = [_finding("compiler", "info", text) for text in plan.compiled.warnings]
    findings += [_finding(code, "info", text) for code, text in plan.notes]
    if plan.chosen.note:
        findings.append(_finding("device", "warning", plan.chosen.note))
    if plan.stack.matches is None:
        message = f"There is no lock of the {plan.stack.name} stack here: nothing was verified"
        findings.append(_finding("no_lock", "warning", message))
    if plan.stack.differences:
        packages = ", ".join(map(str, plan.stack.differences))
        message = f"Differs from the {plan.stack.name} lock: {packages}"
        findings.append(_finding("stack_differs", "warning", message))
    if environment.checkout().is_dirty:
        message = (
            "The checkout has changes that are not committed: the commit does not name the code"
        )
        findings.append(_finding("dirty_tree", "warning", message))
    seen = {(event["code"], event["message"]) for event in ran.warnings}
    findings += [_finding(code, "warning", message) for code, message in sorted(seen)]
    found = {told for launch in ran.launches for told in _telemetry_findings(launch)}
    found |= {told for launch in ran.launches for told in _downshift_findings(launch)}
    return findings + [_finding(code, "warning", message) for code, message in sorted(found)]


# Reason for which telemetry is invalid -> what a reader should know.
_DOUBTS = {
    "gap": "Three samples in a row or more are missing: something held the machine up, and peaks may have passed unseen",
    "device_lost": "The card stopped answering the driver",
    "foreign_process": "Other processes computed on the card meanwhile",
    "throttled": "Processor or card slowed down for heat, a fault or lack of power",
    "sampler_died": "The sampler died before the run, so the last samples are missing",
}


# What went on with less -> how that is said, and what became of the bytes.
_LESS = {
    "rows": "decoded {now} rows at once in place of {then}; bytes stay as they were where batch_invariant is proven",
    "recomputes": "computed activations again; bytes stay as they were",
    "tokens": "computed bins of {now} tokens in place of {then}; a launch that did not has other bytes, by rounding",
}


def _downshift_findings(launch: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Code and message of each phase that went on with less, because memory did not suffice."""
    for each in launch.get("downshifts", ()):
        less = _LESS[each["what"]].format(**each)
        told = f"Memory did not suffice: from step {each['step']} on {each['phase']} {less}"
        yield "less_at_once", f"{told} (launch {launch['ordinal']})"


def _telemetry_findings(launch: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Code and message of each doubt about the machine while it ran."""
    telemetry_of, ordinal = launch["telemetry"], launch["ordinal"]
    for reason in telemetry_of["reasons"]:
        if reason in _DOUBTS:
            yield reason, f"{_DOUBTS[reason]} (launch {ordinal})"
    if telemetry_of["status"] == "not_measured":
        yield "no_telemetry", f"Nothing was sampled (launch {ordinal})"
    series = telemetry_of["series"]
    if any(telemetry.power_capped(int(one)) for one in series.get("clock_event_reasons", ())):
        yield "power_capped", f"The card's clocks were held at its power limit (launch {ordinal})"
    load, cores = series.get("load_average", ()), os.cpu_count() or 1
    if load and mean(load) > cores:
        told = f"The load averaged {mean(load):.1f} on {cores} cores: others shared them"
        yield "shared_cores", f"{told} (launch {ordinal})"
    lived = launch["ended_monotonic_seconds"] - launch["created_monotonic_seconds"]
    agreement = sampled(telemetry_of, lived)["telemetry"]["energy_agreement"]
    if is_number(agreement) and abs(agreement - 1) > _LARGEST_DISAGREEMENT:
        told = f"The sampled power adds up to {agreement:.0%} of the energy counter"
        yield "energy_mismatch", f"{told} (launch {ordinal})"


def _finding(code: str, severity: str, message: str) -> dict[str, str]:
    return {"code": code, "severity": severity, "message": cut(message)}


def cut(text: str) -> str:
    """A reason or message as long as a record may hold."""
    return text if len(text) <= _LONGEST_TEXT else text[: _LONGEST_TEXT - 3] + "..."
