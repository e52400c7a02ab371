"""What a person sees while a launch runs: one line a step, written when the step ends."""

from collections.abc import Callable, Mapping
from typing import Any

from miniverl.bench.units import PHASES

_SHOWN_FROM_SECONDS = 0.05


class Live:
    """Listens to one launch's journal events and writes a line for those that people wait for."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._num_steps = 0
        self._phases: dict[str, tuple[float, int]] = {}

    def __call__(self, event: Mapping[str, Any]) -> None:
        match event["event"]:
            case "run_started":
                self._num_steps = event["num_steps"]
                if event["resumed_step"] is not None:
                    self._write(f"  resumed after step {event['resumed_step']}")
            case "model_loaded":
                self._write(
                    f"  {event['role']}: {event['parameters']:,} parameters, "
                    f"{event['trainable_parameters']:,} trained, {event['seconds']:.1f} s to load"
                )
            case "step_started":
                self._phases = {}
            case "phase_finished":
                self._phases[event["phase"]] = (event["seconds"], event["tokens"])
            case "step_finished":
                self._write(_step_line(event, self._num_steps, self._phases))
            case "validation_finished":
                numbers = "  ".join(f"{name} {value:.4g}" for name, value in _sorted(event))
                self._write(f"  validation at step {event['step']}: {numbers}")
            case "warned":
                self._write(f"  warning: {event['message']}")


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
