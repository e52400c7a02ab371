"""The shape of an import report, as types: what its JSON Schema is generated from, and its tests hold it to."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from miniverl.compiler.rule import Class

Status = Literal["accepted", "needs_user_input", "rejected"]


@dataclass(frozen=True, kw_only=True, slots=True)
class FieldRow:
    classification: Class
    local_target: str | None
    origin: str
    reason: str
    resolution_status: Literal["resolved", "unresolved", "unsupported"]
    source_value: Any
    upstream_field: str


@dataclass(frozen=True, kw_only=True, slots=True)
class LoweringRow:
    kind: str
    local_value: Any
    source_field: str
    source_value: Any


@dataclass(frozen=True, kw_only=True, slots=True)
class ProblemRow:
    field: str
    fix: str
    origin: str
    reason: str
    value: Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Execution:
    status: Literal["executable", "requires_bindings", "does_not_fit", "not_assessed"]
    missing: tuple[str, ...] = ()
    not_run: tuple[Mapping[str, Any], ...] = ()
    capacity: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceVerl:
    commit: str
    repository: str
    tag: str


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceRow:
    config_name: str
    description: str
    script: str = ""
    script_sha256: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    algorithm: Any
    executable: bool
    execution: Execution
    field_classification: tuple[FieldRow, ...]
    generated_path: str | None
    generated_recipe_sha256: str | None  # over the file's bytes
    generated_recipe_validated: bool  # read again from its text, and equal
    input_contract: str
    local_lowering: tuple[LoweringRow, ...]
    problems: tuple[ProblemRow, ...]
    profile: str
    profile_field_rules_sha256: str
    profile_identity: Mapping[str, Any]
    report_path: str | None
    required_user_input: tuple[ProblemRow, ...]
    schema_version: int
    semantics: Status
    source: SourceRow
    source_config_sha256: str
    source_verl: SourceVerl
    status: Status
    unresolved_fields: tuple[str, ...]
    unsupported_fields: tuple[str, ...]
    warnings: tuple[str, ...]
