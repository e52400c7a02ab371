"""A contestant: a process that loads once, then answers questions in turns with the others."""

import json
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from miniverl.engine.problem import Problem, Refused

Json = Mapping[str, Any]
_QUIET = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TRL_EXPERIMENTAL_SILENCE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """How a contestant is started; `log` takes what its libraries print."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    log: Path


class Contestant:
    """A running program. It is loaded when `start` returns, and does nothing while nobody asks."""

    def __init__(self, program: Program, log: IO[bytes]) -> None:
        self._program = program
        self._process = subprocess.Popen(
            program.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**program.environment, **_QUIET},
        )
        self._answer()

    def ask(self, question: Json) -> Json:
        """Its answer; raises Refused where it ended instead."""
        assert self._process.stdin
        try:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._ended() from None
        return self._answer()

    def close(self) -> None:
        """Nobody asks any more: it ends by itself, or is ended."""
        assert self._process.stdin
        assert self._process.stdout
        try:
            self._process.stdin.close()
            self._process.wait(10)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        finally:
            self._process.stdout.close()

    def _answer(self) -> Json:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise self._ended()
        answer: Json = json.loads(line)
        return answer

    def _ended(self) -> Refused:
        code = self._process.wait()
        said = self._program.log.read_text("utf-8", errors="replace").strip().splitlines()
        problem = Problem(
            field=self._program.name,
            value=code,
            origin=str(self._program.log),
            reason=f"the contestant ended with {code}; its last words: {said[-1] if said else 'none'}",
            fix="Read its log; where memory was short, leave other contestants out with --only",
        )
        return Refused([problem])


@contextmanager
def started(programs: Sequence[Program]) -> Iterator[Mapping[str, Contestant]]:
    """All of them, loaded one after the other; they end with the block."""
    with ExitStack() as stack:
        running = {}
        for program in programs:
            program.log.parent.mkdir(parents=True, exist_ok=True)
            log = stack.enter_context(program.log.open("wb"))
            contestant = Contestant(program, log)
            stack.callback(contestant.close)
            running[program.name] = contestant
        yield running


def in_turns(
    contestants: Mapping[str, Contestant],
    questions: Mapping[str, Json],
    rounds: int,
    told: Callable[[str, Json], None],
) -> Mapping[str, list[Json]]:
    """Name -> its answers, a round after the other: A B C, A B C, ... `told` hears each."""
    answers: dict[str, list[Json]] = {name: [] for name in questions}
    for number in range(rounds):
        for name, question in questions.items():
            answer = contestants[name].ask({**question, "round": number})
            answers[name].append(answer)
            told(name, answer)
    return answers
