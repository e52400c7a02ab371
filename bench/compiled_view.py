"""A compiled launch for people: the verdict, leaves by class, where the run departs from the launch, warnings."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from miniverl.compiler.lower import Compiled
from miniverl.compiler.rule import Class
from miniverl.compiler.whole import write_json, write_text
from miniverl.engine import recipe as recipes

_SHOWN_CHARACTERS = 60
_KINDS = {
    "binding": "bound to",
    "override": "stated on top",
    "physical_runtime": "runs on",
    "distributed_only": "one device",
    "local_value": "means here",
    "frozen": "stands as",
}


def named(compiled: Compiled, output: Path | None, report: Path | None) -> Compiled:
    """The compilation whose report names the files that are written, by their base names."""
    generated = None if output is None or compiled.recipe is None else output.name
    paths = {"generated_path": generated, "report_path": None if report is None else report.name}
    return replace(compiled, report={**compiled.report, **paths})


def write(compiled: Compiled, output: Path | None, report: Path | None) -> list[str]:
    """Write recipe and report where they are wanted; returns a line for each, or why there is none."""
    lines = []
    if report is not None:
        write_json(report, compiled.report)
        lines.append(f"report      {report}")
    if output is not None and compiled.recipe is not None:
        write_text(output, recipes.dumps(compiled.recipe))
        lines.append(f"recipe      {output}")
        lines += _write_bindings(compiled.paths, output)
    elif output is not None:
        lines.append(f"recipe      not written: {_why_no_recipe(compiled)}")
    return lines


def _write_bindings(paths: Mapping[str, Path | None], output: Path) -> list[str]:
    """Beside the recipe, where the bound inputs are, for `miniverl run`, which looks there; the recipe itself holds digests alone."""
    bound = {name: str(path.resolve()) for name, path in paths.items() if path is not None}
    if not bound or not output.is_file() or output.is_symlink():  # such as /dev/stdout
        return []
    beside = output.with_name("bindings.json")
    write_json(beside, bound)
    return [f"bindings    {beside}"]


def lines(compiled: Compiled) -> Iterator[str]:
    """The summary, without the problems."""
    report = compiled.report
    counts = Counter(finding.classification for finding in compiled.findings)
    yield f"{compiled.status.replace('_', ' ')}    {report['source']['description']}"
    yield f"profile     {report['profile']}"
    classes = ", ".join(f"{counts[each]} {each}" for each in Class if counts[each])
    yield f"leaves      {len(compiled.findings)}: {classes}"
    if report["local_lowering"]:
        yield "departures"
        yield from map(_departure, report["local_lowering"])
    for warning in compiled.warnings:
        yield f"warning     {warning}"
    yield f"execution   {_execution(compiled)}"
    for row in compiled.execution.get("not_run", ()):
        yield f"  not run     {row['field']} = {_short(row['value'])}: {row['reason']}"
    if compiled.recipe is not None:
        yield f"sha256      {compiled.recipe.sha256}"


def verdict(compiled: Compiled) -> str:
    """The last line for a launch that is not accepted."""
    count = len(compiled.problems)
    return f"{compiled.status.replace('_', ' ')}: {count} problem{'s' if count > 1 else ''}"


def _departure(row: Mapping[str, Any]) -> str:
    what = f"{_short(row['source_value'])} -> {_short(row['local_value'])}"
    return f"  {_KINDS[row['kind']]:<14}{row['source_field']}: {what}"


def _execution(compiled: Compiled) -> str:
    execution = compiled.execution
    if execution["status"] == "requires_bindings":
        return "requires bindings: " + ", ".join(
            f"--bind {each}=..." for each in execution["missing"]
        )
    status: str = execution["status"]
    return status.replace("_", " ")


def _why_no_recipe(compiled: Compiled) -> str:
    if compiled.status != "accepted":
        return f"the launch is {compiled.status.replace('_', ' ')}"
    return _execution(compiled)


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "..."
