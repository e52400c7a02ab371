"""What this machine is and what can be run on it: machine, stack, cards, cache, disk, and the way out."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from miniverl.bench import cache, environment, gpu, pin, stack, workload
from miniverl.bench.entry import place
from miniverl.bench.gpu_profile import GIB, profiles
from miniverl.compiler.upstream import cache_dir
from miniverl.engine.problem import CannotHere

Level = Literal["ok", "warning", "error"]
Finding = dict[str, str]

_SHOWN = 3  # differences that are told in words; the JSON has all


def examine(variables: Mapping[str, str]) -> dict[str, Any]:
    """Everything that the doctor looks at; nothing is fetched, and no torch is loaded."""
    found, checkout = gpu.detect(), environment.checkout()
    running = running_stack(found)
    cached = {name: _cache_state(name) for name in sorted(pin.pins())}
    chosen = gpu.choose(None, False, found)
    report: dict[str, Any] = {
        "checkout": {"commit": checkout.commit, "dirty": checkout.is_dirty},
        "hardware": environment.hardware(chosen.profile.device, chosen.card, found),
        "environment": environment.environment(running, chosen.profile.threads, variables),
        "differences_from_lock": [str(difference) for difference in running.differences],
        "cards": [card.name for card in found.cards],
        "why_no_card": found.why_none,
        "profile": chosen.profile.name,
        "cache": {"folder": str(cache_dir()), "free_gib": _free_gib(cache_dir()), "pins": cached},
    }
    report["workloads"] = {
        name: _runnable(workload.workload(name), report) for name in workload.names()
    }
    report["profiles"] = {name: _usable(name, found) for name in profiles()}
    report["findings"] = _findings(report, found, chosen, running)
    return report


def running_stack(found: gpu.Found) -> stack.Stack:
    """The stack that is installed, by its torch, compared with its lock."""
    return stack.stack_of(stack.name_of(found.torch, found.torch_has_cuda))


def fingerprint(variables: Mapping[str, str]) -> dict[str, Any]:
    """The stable part of this machine and stack, for a pipeline to notice when they change."""
    found = gpu.detect()
    return environment.fingerprint(running_stack(found), found, variables)


def text(report: Mapping[str, Any]) -> str:
    """The report for a person: facts, then what can be run, then what to do."""
    hardware, software = report["hardware"], report["environment"]
    cards = ", ".join(report["cards"]) or f"none: {report['why_no_card']}"
    memory = f"{hardware['memory_gib']:.1f} GiB"
    torch = software["packages"].get("torch", "not installed")
    lines = [
        f"machine   {hardware['cpu_model']}, {hardware['cpu_count']} cores, {memory}",
        f"system    {software['os']}, Linux {software['kernel']}, Python {software['python']}",
        f"cards     {cards}",
        f"stack     {software['stack']}, torch {torch}; lock {_lock(software)}",
        f"cache     {report['cache']['folder']}, {report['cache']['free_gib']:.1f} GiB free",
        *(f"          {name:<22} {state}" for name, state in report["cache"]["pins"].items()),
        f"profiles  {report['profile']} is what a run takes here",
        *(f"          {name:<22} {state}" for name, state in report["profiles"].items()),
        "workloads",
        *(f"          {name:<22} {state}" for name, state in report["workloads"].items()),
        "",
        *(f"{one['level']:<8}  {one['what']}. {one['fix']}".rstrip() for one in report["findings"]),
    ]
    return "\n".join(lines)


def _cache_state(name: str) -> str:
    chosen = pin.pin(name)
    entry = place(name, chosen)
    if not entry.exists():
        return "not fetched"
    if isinstance(chosen, pin.UpstreamPin):
        return "fetched"
    problems = cache.damage(entry, trusts_times=True)
    return "fetched" if not problems else f"damaged: {problems[0].field}"


def _usable(name: str, found: gpu.Found) -> str:
    try:
        gpu.choose(name, False, found)
    except CannotHere as error:
        return error.problems[0].reason
    return "usable"


def _runnable(chosen: workload.Workload, report: Mapping[str, Any]) -> str:
    """Whether the contract's limits can be met here at all."""
    contract, free_gib = chosen.contract, report["cache"]["free_gib"]
    if contract.disk_gib > free_gib:
        return f"needs {contract.disk_gib:g} GiB of disk, {free_gib:.1f} are free"
    hardware = report["hardware"]
    memory, limit = (
        (hardware["memory_gib"], contract.peak_rss_gib)
        if hardware["device"] == "cpu"
        else (hardware["vram_gib"], contract.peak_reserved_gib)
    )
    if isinstance(memory, float) and limit > memory:
        return f"may take {limit:g} GiB of memory, {memory:.1f} are there"
    return "can run"


def _findings(
    report: Mapping[str, Any], found: gpu.Found, chosen: gpu.Chosen, running: stack.Stack
) -> list[Finding]:
    findings = []
    if running.name == "compile":
        findings.append(
            _finding("warning", "Without torch it can compile, not run", "Run make setup")
        )
    if running.differences:
        what = (
            f"The {running.name} stack is not as locked, {len(running.differences)} differences: "
        )
        what += "; ".join(report["differences_from_lock"][:_SHOWN])
        fixes = dict.fromkeys(difference.fix for difference in running.differences)
        findings.append(_finding("error", what, "; ".join(fixes)))
    of_card = None if chosen.card is None else chosen.profile
    for each in stack.card_problems(running.name, found.driver, of_card):
        findings.append(_finding("error", each.reason, each.fix))
    if chosen.note:
        fix = "Install a CUDA stack with MINIVERL_STACK=cu130 make setup, or stay on the CPU"
        findings.append(_finding("warning", chosen.note, fix))
    for name, state in report["cache"]["pins"].items():
        if state.startswith("damaged"):
            entry = place(name, pin.pin(name))
            findings.append(
                _finding("error", f"{name} is {state}", f"Delete {entry} and fetch again")
            )
    if report["hardware"]["cpu_count"] < chosen.profile.threads:
        what = f"The profile takes {chosen.profile.threads} threads, and there are fewer cores"
        findings.append(_finding("warning", what, "Runs will be slow"))
    return findings or [_finding("ok", "Nothing stands in the way of a run", "")]


def _finding(level: Level, what: str, fix: str) -> Finding:
    return {"level": level, "what": what, "fix": fix}


def _lock(software: Mapping[str, Any]) -> str:
    words = {
        True: "matches in versions, files and surroundings",
        False: "differs",
        None: "not there, nothing verified",
    }
    return words[software["stack_matches_lock"]]


def _free_gib(folder: Path) -> float:
    """Of the file system that the folder is on, or will be."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    return round(shutil.disk_usage(there).free / GIB, 1)
