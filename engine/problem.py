"""A problem is one thing a user can mend: which field, its value, where it was set, why, and what to do.

Every check collects all of its problems and raises once. Three exceptions say who has to act:

    Problems
    ├── WrongCall    the command line or a file it names is wrong     exit 2
    ├── Refused      the answer is no                                 exit 1
    └── CannotHere   this machine cannot do it                        exit 3
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """One mistake: `field` = `value`, set at `origin`; why it stops us; what mends it."""

    field: str
    value: object
    origin: str
    reason: str
    fix: str

    def __str__(self) -> str:
        return f"{self.field} = {self.value!r} ({self.origin}): {self.reason}. {self.fix}"


class Problems(Exception):
    """All the problems of one check, in the order in which they were found."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        assert self.problems, "an exception without a problem"
        super().__init__("\n".join(map(str, self.problems)))


class WrongCall(Problems):
    """The command line, or a file it names, is wrong."""


class Refused(Problems):
    """The call is right, and the answer is no."""


class CannotHere(Problems):
    """The call is right, and this machine cannot do it."""


@contextmanager
def told_of(**changes: str) -> Iterator[None]:
    """What is wrong with a model is, inside, wrong with one in a role: `changes` are fields of each Problem."""
    try:
        yield
    except WrongCall as error:
        raise WrongCall(replace(each, **changes) for each in error.problems) from error


def diverged(role: str, step: int, reason: str) -> Problem:
    """Of a policy or a critic that has become something else than numbers."""
    part = "recipe" if role == "policy" else f"recipe.{role}"
    return Problem(
        field=role,
        value=f"step {step}",
        origin="training",
        reason=reason,
        fix=f"Lower {part}.optimizer.learning_rate, and start a new run",
    )
