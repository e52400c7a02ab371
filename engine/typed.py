"""A frozen dataclass from plain JSON or YAML values, or every reason why it cannot be one. Loads no torch.

Types are those of the class: numbers, texts, None, Literal, Mapping, tuples and nested dataclasses. A field
without a default must be there, an unknown one may not.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from miniverl.engine.problem import Problem


class Builder:
    """Builds values of one document and collects its problems.

    `fix` is what mends any of them but an unknown field, for which `suggest(name, known names)` says it.
    """

    def __init__(
        self, origin: str, *, fix: str, suggest: Callable[[str, Iterable[str]], str] | None = None
    ) -> None:
        self.problems: list[Problem] = []
        self._origin = origin
        self._fix = fix
        self._suggest = suggest

    def build(self, kind: Any, value: Any, path: str) -> Any:
        """`value` as a `kind`, or None with the reason in `problems`."""
        if kind is Any:
            return value
        origin, inner = get_origin(kind), get_args(kind)
        if origin in (Union, UnionType):
            option = next(option for option in inner if option is not NoneType)
            return None if value is None else self.build(option, value, path)
        if is_dataclass(kind):
            return self._build_part(kind, value, path)
        if origin is tuple and isinstance(value, list):
            items = [inner[0]] * len(value) if inner[-1] is Ellipsis else list(inner)
            if len(items) == len(value):
                pairs = enumerate(zip(items, value, strict=True))
                return tuple(self.build(item, part, f"{path}.{n}") for n, (item, part) in pairs)
        elif origin is Mapping and isinstance(value, dict):
            return {
                name: self.build(inner[1], part, f"{path}.{name}") for name, part in value.items()
            }
        elif origin is Literal:
            if any(value == one and type(value) is type(one) for one in inner):
                return value
        elif kind is float and type(value) in (int, float):
            if math.isfinite(value):
                return float(value)
        elif isinstance(kind, type) and type(value) is kind:
            return value
        self._tell(path, value, f"expected {_spelled(kind)}")
        return None

    def _build_part(self, kind: Any, value: Any, path: str) -> Any:
        if not isinstance(value, Mapping):
            self._tell(path, value, "expected a mapping")
            return None
        hints = get_type_hints(kind)
        known = {part.name: part for part in fields(kind)}
        before = len(self.problems)
        for name in sorted(value.keys() - known.keys(), key=str):
            fix = self._suggest(str(name), known) if self._suggest else self._fix
            self._tell(f"{path}.{name}", value[name], "unknown field", fix)
        for name, part in known.items():
            if name not in value and part.default is MISSING:
                self._tell(f"{path}.{name}", None, "missing field")
        parts = {
            name: self.build(hints[name], value[name], f"{path}.{name}")
            for name in known
            if name in value
        }
        return kind(**parts) if len(self.problems) == before else None

    def _tell(self, path: str, value: Any, reason: str, fix: str | None = None) -> None:
        self.problems.append(
            Problem(
                field=path,
                value=value,
                origin=self._origin,
                reason=reason,
                fix=self._fix if fix is None else fix,
            )
        )


def _spelled(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(map(repr, get_args(kind)))
    return getattr(kind, "__name__", str(kind))
