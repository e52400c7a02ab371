"""The import report: one row for each leaf, one for each way in which the run departs from the launch.

Its keys are those of the published report; `semantics`, `execution`, `problems`, `warnings`, `source` and
`profile_identity` come on top. It holds no path and no time: equal launches give equal reports.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from miniverl.compiler.bindings import Bindings, lowering_rows
from miniverl.compiler.profiles import Profile
from miniverl.compiler.rule import REJECTING, Class, Finding
from miniverl.compiler.source import Source
from miniverl.engine import recipe as recipes
from miniverl.engine.problem import Problem
from miniverl.engine.recipe import Recipe

SCHEMA_VERSION = 1


def report(
    *,
    source: Source,
    profile: Profile,
    rules_sha256: str,
    profile_identity: Mapping[str, Any],
    bindings: Bindings,
    findings: Sequence[Finding],
    problems: Sequence[Problem],
    required_input: Sequence[Problem],
    warnings: Sequence[str],
    semantics: str,
    execution: Mapping[str, Any],
    recipe: Recipe | None,
) -> dict[str, Any]:
    """The report as plain JSON values."""
    rejected = [
        one.field
        for one in findings
        if one.classification in REJECTING and one.field not in source.open
    ]
    return {
        "algorithm": source.leaves.get("algorithm.adv_estimator"),
        "executable": semantics == "accepted",
        "execution": dict(execution),
        "field_classification": [_row(finding, source) for finding in findings],
        "generated_path": None if recipe is None else "recipe.json",
        **_generated(recipe),
        "input_contract": profile.input_contract,
        "local_lowering": sorted(
            [
                *lowering_rows(bindings, source.leaves),
                *_stated_rows(source),
                *_frozen_rows(source),
                *_lowered_rows(findings),
            ],
            key=lambda row: (row["source_field"], row["kind"]),
        ),
        "problems": [problem_row(problem) for problem in problems],
        "profile": profile.name,
        "profile_field_rules_sha256": rules_sha256,
        "profile_identity": dict(profile_identity),
        "report_path": "report.json",
        "required_user_input": [problem_row(problem) for problem in required_input],
        "schema_version": SCHEMA_VERSION,
        "semantics": semantics,
        "source": {
            "config_name": source.config_name,
            "description": source.description,
            **_script(source),
        },
        "source_config_sha256": source.sha256,
        "source_verl": {
            "commit": profile.pin.commit,
            "repository": profile.pin.repository,
            "tag": profile.pin.tag,
        },
        "status": semantics,
        "unresolved_fields": sorted(problem.field for problem in required_input),
        "unsupported_fields": rejected,
        "warnings": list(warnings),
    }


def _generated(recipe: Recipe | None) -> dict[str, Any]:
    """The digest of the recipe's file, and whether its text was read again and means the same."""
    if recipe is None:
        return {"generated_recipe_sha256": None, "generated_recipe_validated": False}
    text = recipes.dumps(recipe)
    return {
        "generated_recipe_sha256": hashlib.sha256(text.encode()).hexdigest(),
        "generated_recipe_validated": recipes.loads(text, "the compiled launch") == recipe,
    }


def problem_row(problem: Problem) -> dict[str, Any]:
    return {
        "field": problem.field,
        "fix": problem.fix,
        "origin": problem.origin,
        "reason": problem.reason,
        "value": problem.value,
    }


def _script(source: Source) -> dict[str, str]:
    script = source.script
    return {"script": script.name, "script_sha256": script.sha256} if script else {}


def _row(finding: Finding, source: Source) -> dict[str, Any]:
    is_rejected = finding.classification in REJECTING
    status = "unsupported" if is_rejected else "resolved"
    return {
        "classification": str(finding.classification),
        "local_target": finding.label,
        "origin": finding.origin,
        "reason": finding.reason,
        "resolution_status": "unresolved" if finding.field in source.open else status,
        "source_value": finding.value,
        "upstream_field": finding.field,
    }


def _stated_rows(source: Source) -> Iterator[dict[str, Any]]:
    """What was stated on top of the launch, where it differs from it."""
    for field, value in source.leaves.items():
        follows = source.origins[field].startswith("default ")
        if source.launched.get(field) != value and not follows:
            yield _lowering("override", field, source.launched.get(field), value)


def _frozen_rows(source: Source) -> Iterator[dict[str, Any]]:
    """What only running the script could tell, where nothing reads it."""
    frozen = source.script.frozen if source.script else {}
    for field, written in frozen.items():
        yield _lowering("frozen", field, written, source.leaves[field])


def _lowered_rows(findings: Sequence[Finding]) -> Iterator[dict[str, Any]]:
    """What one device has no use for, and values that mean something else here than upstream."""
    yield from _resources(findings)
    for finding in findings:
        if finding.field == "actor_rollout_ref.rollout.name":
            local = finding.lowered or finding.label
            yield _lowering("physical_runtime", finding.field, finding.value, local)
        elif finding.field in _RESOURCES:
            continue
        elif finding.classification is Class.DISTRIBUTED:
            if type(finding.value) is int and finding.value > 1 and finding.origin != "default":
                yield _lowering("distributed_only", finding.field, finding.value, 1)
        elif _means_otherwise(finding):
            yield _lowering("local_value", finding.field, finding.value, finding.lowered)


def _means_otherwise(finding: Finding) -> bool:
    """Labels of earlier profiles name quantities of their own; what is written for them is no other value."""
    is_same_quantity = finding.target is not None and finding.label == finding.target
    return is_same_quantity and bool(finding.warning) and finding.classification in _RUN_OTHERWISE


def _resources(findings: Sequence[Finding]) -> Iterator[dict[str, Any]]:
    """Devices of a machine and machines are one row, as published."""
    stated = {one.field: one.value for one in findings if one.field in _RESOURCES}
    if any(type(value) is int and value > 1 for value in stated.values()):
        source = {field.removeprefix("trainer."): value for field, value in stated.items()}
        local = {"devices": 1, "processes": 1}
        yield _lowering("distributed_only", "/".join(_RESOURCES), source, local)


_RESOURCES = ("trainer.n_gpus_per_node", "trainer.nnodes")
_RUN_OTHERWISE = frozenset({Class.CONFORMANT, Class.LOWERED})


def _lowering(kind: str, field: str, source_value: Any, local_value: Any) -> dict[str, Any]:
    return {
        "kind": kind,
        "local_value": local_value,
        "source_field": field,
        "source_value": source_value,
    }
