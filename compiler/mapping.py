"""One YAML or JSON file as a mapping, read strictly: what two readers could take for two things is refused.

Every scalar is typed as upstream's loader types it (scalar.py). Problems are collected with file and line.
Nothing is followed: no alias, no tag, no `${...}`, no environment variable.
"""

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    MappingEndEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from miniverl.compiler.leaf import flat
from miniverl.compiler.scalar import Scalar, plain
from miniverl.engine.problem import Problem, Refused, WrongCall

LARGEST_BYTES = 4 * 2**20
MOST_VALUES = 20_000  # upstream's whole tree has 855 leaves
DEEPEST = 32  # upstream's tree is 8 deep
MOST_PROBLEMS = 100  # a file with more is no config that somebody could mend

_INDENTED_BY_TAB = re.compile(r" *\t")
_SHOWN_CHARACTERS = 60
_CONSTANTS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """A leaf is a scalar, a whole list or an empty mapping; `lines` has the line of each, from 1."""

    name: str  # of the file, without its folder
    leaves: Mapping[str, Any]
    lines: Mapping[str, int]
    sha256: str  # over the file's bytes

    def origin(self, field: str) -> str:
        return f"{self.name}:{self.lines[field]}"


def read(path: Path) -> Document:
    """The mapping in a .yaml, .yml or .json file.

    Raises WrongCall for what is no file, Refused with everything that is wrong inside it.
    """
    content = _content(path)
    text = _text(content, path.name)
    is_json = path.suffix == ".json"
    reader = _Reader(path.name, _json_scalar if is_json else plain)
    whole = reader.whole(text, with_tabs=not is_json)
    if is_json and not reader.problems:
        reader.check_json(text)
    if reader.problems:
        raise Refused(reader.problems)
    assert isinstance(whole, dict)
    return Document(
        name=path.name,
        leaves=dict(flat(whole)),
        lines=reader.lines,
        sha256=hashlib.sha256(content).hexdigest(),
    )


def _content(path: Path) -> bytes:
    if not path.is_file():
        reason = "no such file"
        raise WrongCall([_problem("source", str(path), "command line", reason, "Give a file")])
    if (size := path.stat().st_size) > LARGEST_BYTES:
        reason = f"{size} bytes, and no config has more than {LARGEST_BYTES}"
        raise Refused([_problem(path.name, None, path.name, reason, "Give the config alone")])
    with path.open("rb") as file:
        return file.read(LARGEST_BYTES)


def _text(content: bytes, name: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        byte = f"byte {content[error.start]:#04x}"
        fix = "Save the file as UTF-8"
        raise Refused([_problem(name, byte, f"{name}:{line}", "not UTF-8", fix)]) from error


class _Reader:
    """Walks the parser's events, which no alias can multiply."""

    def __init__(self, name: str, scalar: Callable[[str], Scalar]) -> None:
        self.problems: list[Problem] = []
        self.lines: dict[str, int] = {}
        self._name = name
        self._scalar = scalar
        self._count = 0

    def whole(self, text: str, *, with_tabs: bool) -> Any:
        """The document's value, or None with the reasons in `problems`."""
        tabs = self._tabs(text) if with_tabs else set()
        events = YAML(typ="safe", pure=True).parse(text)
        try:
            documents = [
                self._document(event, events)
                for event in events
                if isinstance(event, DocumentStartEvent)
            ]
        except YAMLError as error:
            self._syntax(error, tabs)
            return None
        if len(documents) != 1 or not isinstance(documents[0], dict):
            reason = f"{len(documents)} documents" if len(documents) > 1 else "not a mapping"
            self._add(self._name, None, 1, reason, "Give one mapping of sections, such as data:")
        return documents[0] if documents else None

    def check_json(self, text: str) -> None:
        """YAML reads more than JSON is: comments, single quotes, commas at the end."""
        try:
            json.loads(text)
        except json.JSONDecodeError as error:
            reason = f"not JSON: {error.msg}"
            self._add(self._name, None, error.lineno, reason, "Write JSON, or name it .yaml")

    def _tabs(self, text: str) -> set[int]:
        lines = text.splitlines()
        found = {number for number, line in enumerate(lines, 1) if _INDENTED_BY_TAB.match(line)}
        for number in sorted(found):
            self._add(self._name, "\t", number, "indented by a tab", "Indent by spaces")
        return found

    def _syntax(self, error: YAMLError, tabs: set[int]) -> None:
        mark = getattr(error, "problem_mark", None)
        line = 1 if mark is None else mark.line + 1
        if line not in tabs:
            said = getattr(error, "problem", None) or str(error).partition("\n")[0]
            self._add(self._name, None, line, f"not YAML: {said}", "Mend the line")

    def _document(self, event: DocumentStartEvent, events: Iterator[Any]) -> Any:
        if event.version or event.tags:
            line = event.start_mark.line + 1
            reason = "a directive changes how a file is read"
            self._add(self._name, None, line, reason, "Remove the lines that begin with %")
        return self._value(next(events), events, "", 0)

    def _value(self, event: Any, events: Iterator[Any], path: str, depth: int) -> Any:
        line = event.start_mark.line + 1
        self.lines.setdefault(path, line)
        self._stop_at_a_bomb(line, depth)
        if isinstance(event, AliasEvent):
            self._add(path, f"*{event.anchor}", line, "an alias", "Write the value out")
            return None
        if event.anchor is not None:
            self._add(path, f"&{event.anchor}", line, "an anchor", "Write the value out")
        if event.tag is not None:
            self._add(path, str(event.tag), line, "a tag", "Write the plain value")
        if isinstance(event, ScalarEvent):
            return self._typed(event, path, line)
        if isinstance(event, SequenceStartEvent):
            return [
                self._value(item, events, path, depth + 1) for item in takewhile(_goes_on, events)
            ]
        return self._mapping(events, path, depth)

    def _mapping(self, events: Iterator[Any], path: str, depth: int) -> dict[str, Any]:
        values: dict[str, Any] = {}
        lines: dict[str, int] = {}
        while not isinstance(event := next(events), MappingEndEvent):
            line = event.start_mark.line + 1
            key = self._key(event, events, path, depth)
            field = f"{path}.{key}" if path else str(key)
            self.lines[field] = line
            value = self._value(next(events), events, field, depth + 1)
            if key is None:
                continue
            if key in values:
                reason = f"stated twice, first in line {lines[key]}"
                self._add(field, value, line, reason, "Keep one of them")
            values[key], lines[key] = value, line
        return values

    def _key(self, event: Any, events: Iterator[Any], path: str, depth: int) -> str | None:
        """None where it is no name of a section or a leaf."""
        line = event.start_mark.line + 1
        value = self._value(event, events, path, depth + 1)
        is_plain = isinstance(event, ScalarEvent) and event.implicit[0]
        if not isinstance(value, str):
            fix = f'Write it as text, in quotes: "{event.value}"' if is_plain else "Use plain names"
            self._add(path or self._name, value, line, "a key that is not text", fix)
        elif is_plain and value == "<<":
            self._add(path or self._name, value, line, "a merge of mappings", "Write them out")
        elif not value or "." in value:
            reason = "a key is one name, and levels are nested"
            self._add(path or self._name, value, line, reason, "Nest it, a level to a line")
        else:
            return value
        return None

    def _typed(self, event: ScalarEvent, path: str, line: int) -> Scalar:
        if not event.implicit[0]:
            return self._string(str(event.value), path, line)
        try:
            value = self._scalar(event.value)
        except ValueError:
            self._add(path, event.value, line, "looks like a number and is none", "Quote it")
            return None
        if isinstance(value, float) and not math.isfinite(value):
            self._add(path, event.value, line, "not a finite number", "Give a finite number")
            return None
        return self._string(value, path, line) if isinstance(value, str) else value

    def _string(self, text: str, path: str, line: int) -> str:
        if "${" in text:
            fix = "Write the value itself"
            self._add(path, text, line, "a reference that was left unresolved", fix)
        try:  # two escapes of JSON make one character
            return text.encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError:
            self._add(path, None, line, "half a character (a lone surrogate)", "Write it whole")
            return ""

    def _stop_at_a_bomb(self, line: int, depth: int) -> None:
        self._count += 1
        if depth > DEEPEST or self._count > MOST_VALUES:
            reason = f"nested deeper than {DEEPEST} levels or of more than {MOST_VALUES} values"
            fix = "Give the config alone"
            problem = _problem(self._name, None, f"{self._name}:{line}", reason, fix)
            raise Refused([*self.problems, problem])

    def _add(self, field: str, value: object, line: int, reason: str, fix: str) -> None:
        shown = value[:_SHOWN_CHARACTERS] if isinstance(value, str) else value
        origin = f"{self._name}:{line}"
        self.problems.append(_problem(field or self._name, shown, origin, reason, fix))
        if len(self.problems) == MOST_PROBLEMS:
            raise Refused(self.problems)


def _goes_on(event: Any) -> bool:
    return not isinstance(event, SequenceEndEvent)


def _json_scalar(text: str) -> Scalar:
    """A number, a truth value or null; raises ValueError for anything else."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    value: Scalar = json.loads(text)
    return value


def _problem(field: str, value: object, origin: str, reason: str, fix: str) -> Problem:
    return Problem(field=field, value=value, origin=origin, reason=reason, fix=fix)
