"""At home: records of what ran elsewhere. Their class is `unofficial`: nothing held that machine's stack against a lock."""

import json
from pathlib import Path
from typing import Any

from miniverl.bench import compiling, record, suite, validate
from miniverl.bench.facts import Plan, Ran, facts
from miniverl.bench.gpu import Chosen, Found
from miniverl.bench.gpu_profile import profiles
from miniverl.bench.resume import Difference, ResumeCheck
from miniverl.bench.runner import Outcome
from miniverl.bench.stack import Stack
from miniverl.bench.workload import workload
from miniverl.compiler.upstream import quiet
from miniverl.compiler.whole import write_json
from miniverl.engine import recipe as recipes

_NOTE = "Measured by make gpu-check on a machine with nothing of ours installed: its stack is no locked one"


def write_records(out: Path, carry: Path) -> int:
    """A valid record beside each *.measured.json; 1 where there is none."""
    found = sorted(out.glob("*.measured.json"))
    for path in found:
        measured = json.loads(path.read_text("utf-8"))
        complete = _record(measured, carry, out)
        problems = validate.validate(complete)
        assert not problems, "\n".join(map(str, problems))
        target = out / f"{measured['workload']}.record.json"
        write_json(target, complete)
        print(
            f"{target}: {complete['status']}, {complete['class']}, resume {complete['resume']['status']}"
        )
    return 0 if found else 1


def _record(measured: dict[str, Any], carry: Path, out: Path) -> dict[str, Any]:
    machine, check = measured["machine"], measured["resume"]
    ran = Ran(launches=measured["launches"], kill_delay_seconds=measured["kill_delay_seconds"])
    if check is None:
        ran.outcome = _failure(measured["launches"][-1])
    else:
        first = check["first_difference"]
        ran.resume = ResumeCheck(
            status=check["status"],
            differing=tuple(check["differing"]),
            first_difference=first and Difference(**first),
        )
    told = facts(_plan(measured, carry, out), ran)
    told |= {name: machine[name] for name in ("hardware", "environment")}
    told["artifacts"] = measured["artifacts"]
    if machine["hardware"]["device"] == "cuda":
        limits = told["resource_contract"]
        contract = workload(measured["workload"]).contract
        limits["peak_reserved_limit_gib"] = contract.peak_reserved_gib
    return record.complete(told)


def _plan(measured: dict[str, Any], carry: Path, out: Path) -> Plan:
    """What was launched there, compiled once more; a recipe that differs from the carried one is an error."""
    chosen = workload(measured["workload"])
    compiled = compiling.compile_workload(chosen, None, (), measured["dtype"], quiet)
    assert compiled.recipe is not None
    carried = carry / "recipes" / chosen.name / measured["dtype"] / "recipe.json"
    assert json.loads(carried.read_text("utf-8")) == recipes.to_dict(compiled.recipe)
    device = measured["machine"]["hardware"]["device"]
    profile = profiles()["cuda" if device == "cuda" else "cpu"]
    nothing = Found(cards=(), driver=None, driver_cuda=None, torch=None, why_none="not here")
    stack = Stack(name="foreign", lock_sha256=None, matches=None, differences=())
    return Plan(
        workload=chosen,
        seed=chosen.seed,
        launches=1,
        found=nothing,
        chosen=Chosen(profile=profile, card=None, is_official=False, note=_NOTE),
        stack=stack,
        compiled=compiled,
        recipe=compiled.recipe,
        environment={},
        interruption=suite._interruption(chosen, chosen.seed),
        folder=out,
    )


def _failure(launch: dict[str, Any]) -> Outcome:
    told = launch["failure"] or {"code": "not_interrupted", "message": "It did not end as planned"}
    return Outcome(status="failed", reason_code=told["code"], reason=told["message"])
