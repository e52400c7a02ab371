"""What a run folder tells, read while another process writes it, or after one was killed: whole lines only."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from miniverl.bench import failure
from miniverl.engine.problem import Problem, Refused, WrongCall

Row = Mapping[str, Any]
Status = Literal["waiting", "running", "finished", "interrupted", "failed", "killed"]

_WORKER = "miniverl.bench.worker"


@dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """How far the run is. `step` is the last finished one; `reason` why it ended where it should not have.

    `waiting`: it has not begun. `killed`: its process is gone and left no word.
    """

    status: Status
    step: int
    num_steps: int | None
    reason: str | None
    reason_code: str | None


def require_run(folder: Path) -> None:
    """Raises WrongCall where the folder holds no run; says which of those below it do."""
    if (folder / "recipe.json").is_file() and (folder / "journal.jsonl").is_file():
        return
    below = sorted(path.parent.name for path in folder.glob("*/journal.jsonl"))
    if not folder.is_dir():
        reason, fix = "there is no such folder", "Name the folder that miniverl run --out made"
    elif below:
        reason, fix = "it holds runs and is none", f"Name one of them: {', '.join(below)}"
    else:
        reason = "it holds no run: a run has recipe.json and journal.jsonl"
        fix = "Name the folder that miniverl run --out made"
    raise WrongCall([_problem("run", str(folder), "command line", reason, fix)])


def rows(path: Path) -> Iterator[dict[str, Any]]:
    """Every whole line of a log; the line that is being written, or that a kill tore, is none.

    Raises Refused for a whole line that is not a JSON object.
    """
    for number, line in enumerate(lines(path), start=1):
        yield parsed(path, number, line)


def lines(path: Path) -> Iterator[bytes]:
    """The whole lines of a log as they are; none where there is no file yet."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield line


def parsed(path: Path, number: int, line: bytes) -> dict[str, Any]:
    """One whole line. Raises Refused where it is not a JSON object."""
    try:
        row = json.loads(line)
    except ValueError as error:
        raise Refused([broken(path, number, f"it is not JSON: {error}")]) from error
    if not isinstance(row, dict):
        raise Refused([broken(path, number, "it is not a JSON object")])
    return row


def broken(path: Path, number: int, reason: str) -> Problem:
    """What is wrong with a whole line of a log."""
    fix = "Resume the run: it cuts its logs back to the last checkpoint"
    return _problem("log", path.name, f"{path}:{number}", reason, fix)


def torn_bytes(path: Path) -> int:
    """Bytes behind the last whole line."""
    if not path.exists():
        return 0
    content = path.read_bytes()
    return len(content) - (content.rfind(b"\n") + 1)


def state(folder: Path) -> State:
    """How the run stands now."""
    last, step, num_steps = None, 0, None
    for event in rows(folder / "journal.jsonl"):
        last = event["event"]
        if last == "run_started":
            num_steps, step = event["num_steps"], event["resumed_step"] or 0
        elif last == "step_finished":
            step = event["step"]
    status, reason, code = _end(folder, last)
    return State(status=status, step=step, num_steps=num_steps, reason=reason, reason_code=code)


def is_at_work(folder: Path) -> bool:
    """Whether the process that worker.json names is alive, and is a worker: numbers are used again."""
    stamp = folder / "worker.json"
    try:
        pid = json.loads(stamp.read_text("utf-8"))["pid"]
        called = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return _WORKER.encode() in called


def _end(folder: Path, last: str | None) -> tuple[Status, str | None, str | None]:
    if is_at_work(folder):
        return "running", None, None
    if last == "run_finished":
        return "finished", None, None
    if last == "run_stopped":
        return "interrupted", "It was asked to stop, and did so between two steps", "interrupted"
    told = failure.read(folder)
    if told is not None:
        return "failed", told.reason, told.code
    if last is None:
        return "waiting", None, None
    return "killed", "Its process is gone and left no word: something killed it", "killed"


def _problem(field: str, value: object, origin: str, reason: str, fix: str) -> Problem:
    return Problem(field=field, value=value, origin=origin, reason=reason, fix=fix)
