"""What a run tells while it goes on. The journal writes these, the bench measures from them.

One JSON line an event: the fields below, `event` (its name), `pid`, and `monotonic_seconds`
(CLOCK_MONOTONIC, shared by every process of one boot, so that a parent can subtract the child's start).
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal

Phase = Literal[
    "rollout",
    "reward",
    "score_old",
    "score_reference",
    "score_values",
    "score_teacher",
    "advantage",
    "critic_update",
    "update",
    "checkpoint",
    "validation",
    "restore",  # of a resumed run: its checkpoint found, verified and loaded; its step is that of the checkpoint
]


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportsDone:
    """The interpreter runs and every module the run needs is loaded."""

    name: ClassVar[str] = "imports_done"


@dataclass(frozen=True, kw_only=True, slots=True)
class RunStarted:
    """`resumed_step` is the last finished step that the run continues from; None for a new run.

    `accepted_changes`: field of the identity -> its values then and now, for what was let differ in this resume.
    """

    name: ClassVar[str] = "run_started"
    recipe_sha256: str
    num_steps: int
    resumed_step: int | None
    device: str
    threads: int
    accepted_changes: Mapping[str, Mapping[str, str | None]]


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelLoaded:
    name: ClassVar[str] = "model_loaded"
    role: str
    parameters: int
    trainable_parameters: int
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightsQuantised:
    """The quantised part of a role's weights: what it takes, and whether an earlier run had quantised it."""

    name: ClassVar[str] = "weights_quantised"
    role: str
    bytes: int
    is_from_cache: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplerLoaded:
    """What a policy with quantised weights is sampled over: "merged", a copy of its own, or "nf4", the weights themselves.

    `bytes` are those that sampling adds to the policy's. How far its log-probabilities are from the policy's is
    among each step's metrics (sampler_difference).
    """

    name: ClassVar[str] = "sampler_loaded"
    weights: str
    dtype: str
    bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class StepStarted:
    name: ClassVar[str] = "step_started"
    step: int  # counted from 1


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseFinished:
    """`tokens` are the response tokens the phase produced, scored or trained on; 0 where it has none.

    So with what the device computed at once: how many `batches` one after the other, the `most_rows` of one, and
    the `most_tokens`, prompts included, a shared one once. Sampling has rows only: they come and go singly.
    """

    name: ClassVar[str] = "phase_finished"
    step: int
    phase: Phase
    seconds: float
    tokens: int
    batches: int = 0
    most_rows: int = 0
    most_tokens: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Downshifted:
    """Memory did not suffice, and the phase goes on with less at once, from here on (engine/ladder.py).

    `rows` decoded at once or `tokens` of a bin, or whether activations are computed again (`recomputes`, 0 or 1).
    """

    name: ClassVar[str] = "downshifted"
    step: int
    phase: Phase
    what: Literal["rows", "tokens", "recomputes"]
    then: int
    now: int


@dataclass(frozen=True, kw_only=True, slots=True)
class StepFinished:
    """`metrics` are the step's training numbers; `memory` the bytes the process can see (peaks so far)."""

    name: ClassVar[str] = "step_finished"
    step: int
    seconds: float
    metrics: Mapping[str, float]
    memory: Mapping[str, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointSaved:
    name: ClassVar[str] = "checkpoint_saved"
    step: int
    folder: str  # relative to the run folder
    bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ValidationFinished:
    name: ClassVar[str] = "validation_finished"
    step: int  # 0: before training
    metrics: Mapping[str, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Warned:
    name: ClassVar[str] = "warned"
    code: str
    message: str


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFinished:
    name: ClassVar[str] = "run_finished"
    steps: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RunStopped:
    """The run ends before its last step, because somebody asked; `step` is saved, and a resumed run goes on from it."""

    name: ClassVar[str] = "run_stopped"
    step: int  # 0: before the first, and nothing is saved


Event = (
    ImportsDone
    | RunStarted
    | ModelLoaded
    | WeightsQuantised
    | SamplerLoaded
    | StepStarted
    | PhaseFinished
    | Downshifted
    | StepFinished
    | CheckpointSaved
    | ValidationFinished
    | Warned
    | RunFinished
    | RunStopped
)


def to_dict(event: Event) -> dict[str, Any]:
    """The event's fields and its name, as plain JSON values."""
    return {"event": event.name, **asdict(event)}
