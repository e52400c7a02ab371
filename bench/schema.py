"""JSON Schemas of the files that people meet, generated from the types that read or write those files.

`python -m miniverl.bench.schema` writes them to bench/schemas, where the wheel takes them from.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import StrEnum
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from miniverl.bench.workload import Workload
from miniverl.compiler import source as sources
from miniverl.compiler.files import BLOCK
from miniverl.compiler.leaf import nested
from miniverl.compiler.profiles import DEFAULTS, called
from miniverl.compiler.report_shape import Report
from miniverl.compiler.whole import json_text, write_text
from miniverl.engine.recipe import Recipe

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_PLAIN: Mapping[Any, dict[str, Any]] = {
    Any: {},
    NoneType: {"type": "null"},
    bool: {"type": "boolean"},
    float: {"type": "number"},
    int: {"type": "integer"},
    str: {"type": "string"},
}


def schemas() -> dict[str, dict[str, Any]]:
    """Every generated schema by its file name."""
    return {
        "import-report.json": document(Report, "the report of miniverl compile"),
        "recipe.json": document(Recipe, "a recipe of miniverl run"),
        "resolved-input.json": resolved_input(),
        "workload.json": workload_file(),
    }


def document(kind: type, title: str) -> dict[str, Any]:
    """The schema of a file that holds one `kind`."""
    parts: dict[str, Any] = {}
    root = schema_of(kind, parts)["$ref"].rpartition("/")[2]
    return {"$schema": _DIALECT, "title": title, **parts.pop(root), "$defs": parts}


def schema_of(kind: Any, parts: dict[str, Any]) -> dict[str, Any]:
    """The schema of a type; those of dataclasses go into `parts`."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind in _PLAIN:
        return dict(_PLAIN[kind])
    if origin in (Union, UnionType):
        return {"anyOf": [schema_of(one, parts) for one in inner]}
    if origin is Literal:
        return {"enum": list(inner)}
    if origin is tuple and inner[-1] is Ellipsis:
        return {"type": "array", "items": schema_of(inner[0], parts)}
    if origin is tuple:
        items = [schema_of(one, parts) for one in inner]
        return {"type": "array", "prefixItems": items, "minItems": len(items), "items": False}
    if origin is Mapping:
        return {"type": "object", "additionalProperties": schema_of(inner[1], parts)}
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return {"enum": [str(one) for one in kind]}
    assert is_dataclass(kind), f"no schema for {kind}"
    assert isinstance(kind, type)
    if kind.__name__ not in parts:
        parts[kind.__name__] = {}  # so that a type may hold itself
        parts[kind.__name__] = _object(kind, parts)
    return {"$ref": f"#/$defs/{kind.__name__}"}


def _object(kind: type, parts: dict[str, Any]) -> dict[str, Any]:
    assert is_dataclass(kind)
    hints = get_type_hints(kind)
    return {
        "type": "object",
        "properties": {one.name: schema_of(hints[one.name], parts) for one in fields(kind)},
        "required": sorted(one.name for one in fields(kind) if one.default is MISSING),
        "additionalProperties": False,
    }


def workload_file() -> dict[str, Any]:
    """A workload, or one that extends another and states what differs."""
    whole = document(Workload, "a workload of miniverl bench")
    stated = {**whole["properties"], "extends": {"type": "string"}}
    bindings = whole["$defs"]["WorkloadBindings"]
    whole["$defs"]["WorkloadBindings"] = {**bindings, "required": []}
    alone = {"required": whole.pop("required"), "not": {"required": ["extends"]}}
    alone["properties"] = {"bindings": {"required": bindings["required"]}}
    extending = {"required": ["name", "version", "title", "extends"]}
    return {**whole, "properties": stated, "anyOf": [alone, extending]}


def resolved_input() -> dict[str, Any]:
    """A whole resolved config: the sections and leaves of the pinned tree. A leaf's values are judged, not typed."""
    profile = called(DEFAULTS["resolved"])
    defaults = sources.defaults(profile.config_name, version=profile.verl)
    tree = nested(dict.fromkeys(defaults))
    return {
        "$schema": _DIALECT,
        "title": f"a whole resolved {profile.config_name} of verl {profile.pin.tag}",
        **_section(tree),
        "not": {"required": [BLOCK]},
    }


def _section(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Leaves may be added to a section, as Hydra's + does; none may be missing."""
    parts = {name: {} if part is None else _section(part) for name, part in tree.items()}
    return {"type": "object", "properties": parts, "required": sorted(tree)}


def main() -> None:
    folder = Path(__file__).parent / "schemas"
    for name, schema in schemas().items():
        write_text(folder / name, json_text(schema))
        sys.stderr.write(f"{name}: {len(json.dumps(schema))} bytes\n")


if __name__ == "__main__":
    main()
