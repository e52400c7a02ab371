"""The lines that a person sees while a launch runs, from the engine's own events."""

from dataclasses import replace

from miniverl.bench.live import Live
from miniverl.engine.events import (
    Event,
    ModelLoaded,
    PhaseFinished,
    RunStarted,
    StepFinished,
    StepStarted,
    ValidationFinished,
    Warned,
    to_dict,
)

STARTED = RunStarted(
    recipe_sha256="0" * 64,
    num_steps=12,
    resumed_step=None,
    device="cpu",
    threads=2,
    accepted_changes={},
)
METRICS = {"reward_mean": 0.25, "kl_loss": 0.00123, "loss": -0.05}


def lines(*events: Event) -> list[str]:
    written: list[str] = []
    live = Live(written.append)
    for event in events:
        live(to_dict(event))
    return written


def finished(step: int, metrics: dict[str, float]) -> StepFinished:
    return StepFinished(step=step, seconds=3.0, metrics=metrics, memory={})


def test_a_step_is_one_line_with_its_rate_and_its_seconds_by_phase() -> None:
    (line,) = lines(
        STARTED,
        StepStarted(step=3),
        PhaseFinished(step=3, phase="rollout", seconds=2.0, tokens=100),
        PhaseFinished(step=3, phase="reward", seconds=0.001, tokens=0),
        PhaseFinished(step=3, phase="update", seconds=0.9, tokens=100),
        finished(3, METRICS),
    )
    assert line == (
        "  step  3/12  reward 0.250  KL 1.23e-03  loss -5.00e-02  50 tokens/s"
        "  3.0 s (rollout 2.0, update 0.9)"
    )


def test_a_loss_that_is_no_number_is_left_out() -> None:
    (line,) = lines(STARTED, StepStarted(step=1), finished(1, {"reward_mean": 0.5}))
    assert line == "  step  1/12  reward 0.500  3.0 s ()"


def test_without_a_reference_there_is_no_kl() -> None:
    (line,) = lines(STARTED, StepStarted(step=1), finished(1, {"reward_mean": 0.0, "loss": 0.0}))
    assert "KL" not in line


def test_what_follows_a_step_is_not_counted_into_the_next() -> None:
    *_, last = lines(
        STARTED,
        StepStarted(step=1),
        finished(1, METRICS),
        PhaseFinished(step=1, phase="checkpoint", seconds=9.0, tokens=0),
        StepStarted(step=2),
        finished(2, METRICS),
    )
    assert "9.0" not in last


def test_loads_resumes_validations_and_warnings_are_told() -> None:
    resumed = replace(STARTED, resumed_step=4)
    loaded = ModelLoaded(role="policy", parameters=1000, trainable_parameters=10, seconds=1.5)
    assert lines(
        resumed,
        loaded,
        ValidationFinished(
            step=4,
            metrics={"aux/a/reward/std@2": 0.1, "core/a/acc/mean@2": 0.25, "reward_mean": 0.5},
        ),
        Warned(code="log_cut_back", message="7 bytes were moved"),
    ) == [
        "  resumed after step 4",
        "  policy: 1,000 parameters, 10 trained, 1.5 s to load",
        "  validation at step 4: core/a/acc/mean@2 0.25  reward_mean 0.5",
        "  warning: 7 bytes were moved",
    ]
