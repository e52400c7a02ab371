"""A YAML document of ours becomes a frozen dataclass, or every reason why it does not.

Fields without a default must stand in the document, unknown ones may not, and types are those of the
class: numbers, strings, None, Literal, Mapping, tuples and nested dataclasses.
"""

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from importlib.resources.abc import Traversable
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError

from miniverl.compiler.suggest import did_you_mean
from miniverl.engine.problem import Problem, WrongCall

T = TypeVar("T")


def load(source: Traversable | Path) -> dict[str, Any]:
    """The mapping in a YAML file; duplicate keys and anything but a mapping are a WrongCall."""
    reader = YAML(typ="safe", pure=True)
    try:
        plain = reader.load(source.read_text(encoding="utf-8"))
    except MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        reason = f"not YAML: {error.problem or error.context}"
        raise WrongCall([_problem("document", None, f"{source.name}:{line}", reason)]) from error
    if not isinstance(plain, dict):
        raise WrongCall([_problem("document", plain, source.name, "expected a mapping")])
    return plain


def build(kind: type[T], plain: object, field: str, origin: str) -> T:
    """`plain` as a `kind`; raises WrongCall with every missing, unknown and ill-typed field."""
    problems: list[Problem] = []
    built = _build(kind, plain, field, origin, problems)
    if problems:
        raise WrongCall(problems)
    assert isinstance(built, kind)
    return built


def _build(kind: Any, value: Any, field: str, origin: str, problems: list[Problem]) -> Any:
    """`value` as a `kind`, or None with the reason appended to `problems`."""
    if get_origin(kind) in (Union, UnionType):
        options = [option for option in get_args(kind) if option is not NoneType]
        return None if value is None else _build(options[0], value, field, origin, problems)
    if is_dataclass(kind):
        return _build_part(kind, value, field, origin, problems)
    if get_origin(kind) is Literal and value in get_args(kind):
        return value
    if get_origin(kind) is tuple and isinstance(value, list):
        item = get_args(kind)[0]
        parts = enumerate(value)
        return tuple(_build(item, v, f"{field}.{i}", origin, problems) for i, v in parts)
    if get_origin(kind) is Mapping and isinstance(value, dict):
        item = get_args(kind)[1]
        return {k: _build(item, v, f"{field}.{k}", origin, problems) for k, v in value.items()}
    if kind is Any:
        return value
    if kind is float and type(value) in (int, float):
        return float(value)
    if isinstance(kind, type) and type(value) is kind:
        return value
    problems.append(_problem(field, value, origin, f"expected {_spelled(kind)}"))
    return None


def _build_part(kind: Any, value: Any, field: str, origin: str, problems: list[Problem]) -> Any:
    if not isinstance(value, Mapping):
        problems.append(_problem(field, value, origin, "expected a mapping"))
        return None
    hints = get_type_hints(kind)
    known = {part.name: part for part in fields(kind)}
    before = len(problems)
    for name in sorted(set(value) - set(known), key=str):
        fix = did_you_mean(str(name), known, f"Known: {', '.join(known)}")
        problems.append(_problem(f"{field}.{name}", value[name], origin, "unknown field", fix))
    for name, part in known.items():
        if name not in value and part.default is MISSING:
            problems.append(_problem(f"{field}.{name}", None, origin, "missing field"))
    parts = {
        name: _build(hints[name], value[name], f"{field}.{name}", origin, problems)
        for name in known
        if name in value
    }
    return kind(**parts) if len(problems) == before else None


def _spelled(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(map(repr, get_args(kind)))
    return getattr(kind, "__name__", str(kind))


def _problem(
    field: str, value: object, origin: str, reason: str, fix: str = "Correct the document"
) -> Problem:
    return Problem(field=field, value=value, origin=origin, reason=reason, fix=fix)
