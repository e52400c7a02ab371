"""What a person sees while a launch runs: one line a step when the step ends, on a terminal a bar below them.

A terminal that is no screen (`TERM=dumb`), and a CI, which keeps a log, get the lines alone.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from miniverl.bench.terminal import Terminal
from miniverl.bench.units import PHASES

_SHOWN_FROM_SECONDS = 0.05
_DRAWN_PER_SECOND = 4.0  # the run needs the processor more


class Live:
    """Listens to one launch's journal events and writes a line for those that people wait for."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self.write = write
        self._num_steps = 0
        self._phases: dict[str, tuple[float, int]] = {}

    def __call__(self, event: Mapping[str, Any]) -> None:
        match event["event"]:
            case "run_started":
                self._num_steps = event["num_steps"]
                if event["resumed_step"] is not None:
                    self.write(f"  resumed after step {event['resumed_step']}")
            case "model_loaded":
                self.write(
                    f"  {event['role']}: {event['parameters']:,} parameters, "
                    f"{event['trainable_parameters']:,} trained, {event['seconds']:.1f} s to load"
                )
            case "step_started":
                self._phases = {}
            case "phase_finished":
                self._phases[event["phase"]] = (event["seconds"], event["tokens"])
            case "step_finished":
                self.write(_step_line(event, self._num_steps, self._phases))
            case "validation_finished":
                numbers = "  ".join(f"{name} {value:.4g}" for name, value in _sorted(event))
                self.write(f"  validation at step {event['step']}: {numbers}")
            case "downshifted":
                change = f"{event['what']} {event['then']} -> {event['now']}"
                self.write(f"  out of memory in {event['phase']}: {change}")
            case "warned":
                self.write(f"  warning: {event['message']}")


class _Bar(Live):
    """The lines above, and how far it is below them."""

    def __init__(self, drawn: Progress) -> None:
        super().__init__(self._above)
        self._drawn = drawn
        self._task = drawn.add_task("loading", total=None)

    def __call__(self, event: Mapping[str, Any]) -> None:
        super().__call__(event)
        match event["event"]:
            case "run_started":
                done = event["resumed_step"] or 0
                self._drawn.update(self._task, total=event["num_steps"], completed=done)
            case "step_started":
                self._describe(f"step {event['step']}")
            case "phase_finished":
                self._describe(
                    f"step {event['step']}: {PHASES.get(event['phase'], event['phase'])} done"
                )
            case "step_finished":
                self._drawn.update(self._task, completed=event["step"])

    def _describe(self, text: str) -> None:
        self._drawn.update(self._task, description=text)

    def _above(self, line: str) -> None:
        self._drawn.console.print(line, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def shown(write: Callable[[str], None]) -> Iterator[Live]:
    """Listens while the block lasts. Lines of others go through its `write`, which knows of the bar."""
    console = Terminal()
    if not console.is_live:
        yield Live(write)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(
        *columns, console=console, transient=True, refresh_per_second=_DRAWN_PER_SECOND
    ) as drawn:
        yield _Bar(drawn)


def _sorted(event: Mapping[str, Any]) -> list[tuple[str, float]]:
    """The numbers of a validation, but for those that engine/validation.py calls second to look at."""
    return sorted(each for each in event["metrics"].items() if not each[0].startswith("aux/"))


def _step_line(
    event: Mapping[str, Any], num_steps: int, phases: Mapping[str, tuple[float, int]]
) -> str:
    metrics = event["metrics"]
    parts = [f"  step {event['step']:>{len(str(num_steps))}}/{num_steps}"]
    parts.append(f"reward {metrics['reward_mean']:.3f}")
    if "kl_loss" in metrics:
        parts.append(f"KL {metrics['kl_loss']:.2e}")
    if "loss" in metrics:  # not where it is no finite number: the run ends soon, and says why
        parts.append(f"loss {metrics['loss']:+.2e}")
    if "rollout" in phases:
        rollout_seconds, tokens = phases["rollout"]
        parts.append(f"{tokens / rollout_seconds:.0f} tokens/s")
    spent = [
        f"{name} {phases[phase][0]:.1f}"
        for phase, name in PHASES.items()
        if phase in phases and phases[phase][0] >= _SHOWN_FROM_SECONDS
    ]
    parts.append(f"{event['seconds']:.1f} s ({', '.join(spent)})")
    return "  ".join(parts)
