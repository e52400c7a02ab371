"""Why something ended, in the forms that leave a process: an exit code, plain JSON, failure.json."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from miniverl.bench.exits import Exit
from miniverl.compiler.whole import json_text
from miniverl.engine.problem import CannotHere, Problem, Problems, Refused, WrongCall

EXITS: Mapping[type[Problems], Exit] = {
    WrongCall: Exit.WRONG_CALL,
    Refused: Exit.NO,
    CannotHere: Exit.CANNOT_HERE,
}
# What a status or reason code calls them; any exception that is not here is a crash.
CODES: Mapping[str, str] = {
    "WrongCall": "wrong_call",
    "Refused": "refused",
    "CannotHere": "cannot_here",
    "OutOfMemoryError": "out_of_memory",  # torch's
    "MemoryError": "out_of_memory",
}
_CPU_OUT_OF_MEMORY = "DefaultCPUAllocator: can't allocate memory"  # a RuntimeError of torch's


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """`kind` names the exception; `problems` are those of a Problems, else `traceback` tells."""

    kind: str
    problems: tuple[Mapping[str, Any], ...]
    traceback: str | None

    @property
    def code(self) -> str:
        if self.traceback is not None and _CPU_OUT_OF_MEMORY in self.traceback:
            return "out_of_memory"
        return CODES.get(self.kind, "crashed")

    @property
    def reason(self) -> str:
        """One line."""
        if self.traceback is not None:
            return self.traceback.strip().splitlines()[-1]
        return "; ".join(
            f"{one['field']} = {one['value']!r}: {one['reason']}" for one in self.problems
        )


def plain(problems: Iterable[Problem]) -> list[dict[str, Any]]:
    """Problems as JSON values; a value that JSON has no word for is written as text."""
    rows = [asdict(problem) for problem in problems]
    for row in rows:
        for name in {"value", "expected"} & row.keys():  # the second: of a Finding
            if not isinstance(row[name], str | int | float | bool | None):
                row[name] = str(row[name])
    return rows


def raised(code: str | None, problems: Iterable[Mapping[str, Any]]) -> Problems | None:
    """The exception that a worker ended with; None where it was none of Problems."""
    kinds = {CODES[kind.__name__]: kind for kind in EXITS}
    if code not in kinds:
        return None
    return kinds[code](Problem(**problem) for problem in problems)


def write(folder: Path, failure: Failure) -> None:
    """failure.json, whole. Not synced to the disk: it tells of a process, not of a result."""
    write_beside(folder / "failure.json", asdict(failure))


def read(folder: Path) -> Failure | None:
    path = folder / "failure.json"
    if not path.exists():
        return None
    told = json.loads(path.read_text("utf-8"))
    return Failure(kind=told["kind"], problems=tuple(told["problems"]), traceback=told["traceback"])


def write_beside(path: Path, value: Any) -> None:
    """A reader finds the whole file or none."""
    beside = path.with_name(path.name + ".part")
    try:
        beside.write_text(json_text(value), "utf-8")
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
