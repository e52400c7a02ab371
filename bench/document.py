"""A YAML document of ours becomes a frozen dataclass, or every reason why it does not.

Which types a class may have, engine/typed.py says.
"""

from collections.abc import Iterable
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, TypeVar

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError

from miniverl.compiler.suggest import did_you_mean
from miniverl.engine.problem import Problem, WrongCall
from miniverl.engine.typed import Builder

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
    builder = Builder(origin, fix="Correct the document", suggest=_suggested)
    built = builder.build(kind, plain, field)
    if builder.problems:
        raise WrongCall(builder.problems)
    assert isinstance(built, kind)
    return built


def _suggested(name: str, known: Iterable[str]) -> str:
    return did_you_mean(name, known, f"Known: {', '.join(known)}")


def _problem(field: str, value: object, origin: str, reason: str) -> Problem:
    return Problem(
        field=field, value=value, origin=origin, reason=reason, fix="Correct the document"
    )
