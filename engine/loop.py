"""Run a recipe, or go on with a run: prompts, rollout, reward, scores, advantages, update, and again.

A step is a pure function of the recipe, its inputs, and the models and the state before it. What it produced is
appended to the logs first; a checkpoint then binds them, so a process killed at any instant loses only what
came after the last checkpoint, and computes the same bytes again.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from miniverl.engine import checkpoint, decoders, folder, metrics, models
from miniverl.engine.assemble import Assembled
from miniverl.engine.checkpoint import AcceptedChange, State
from miniverl.engine.clock import Clock, Counted, peak_bytes
from miniverl.engine.critic_update import critic_objective, value_metrics
from miniverl.engine.cycle import Cycle, Cycled, num_tokens
from miniverl.engine.events import (
    CheckpointSaved,
    Event,
    ImportsDone,
    Phase,
    RunFinished,
    RunStarted,
    RunStopped,
    StepFinished,
    StepStarted,
    ValidationFinished,
    Warned,
)
from miniverl.engine.experience import Experience
from miniverl.engine.export import export, export_critic
from miniverl.engine.gather import filter_metrics
from miniverl.engine.identity import (
    Change,
    changes,
    identity,
    make_deterministic,
    require_names,
)
from miniverl.engine.inputs import Inputs, load_inputs
from miniverl.engine.journal import Journal, Log, finite
from miniverl.engine.kl_reward import next_coefficient
from miniverl.engine.ladder import Ladder
from miniverl.engine.models import Model
from miniverl.engine.order import Cursor, num_steps
from miniverl.engine.policy_update import PolicyObjectives
from miniverl.engine.problem import Refused, diverged
from miniverl.engine.recipe import Critic, Dtype, Recipe
from miniverl.engine.roles import Roles, load_roles
from miniverl.engine.schedule import factor
from miniverl.engine.score import bins
from miniverl.engine.update import Fitting, Objective, Plan, update

__all__ = ["Inputs", "run"]


def run(
    recipe: Recipe,
    inputs: Inputs,
    out: Path,
    *,
    device: str,
    threads: int,
    resume: bool,
    listen: Callable[[Event], None],
    allow_changed: Collection[str] = (),
    is_stopping: Callable[[], bool] = lambda: False,
) -> bool:
    """Run the recipe in the folder `out`, or go on with the run in it, to its last step; returns True there.

    `is_stopping` is asked between steps: where it says so the last step is saved, and that is the end for now.
    Events go to `out`/journal.jsonl and to `listen`. `allow_changed` names fields of the identity that a resumed
    run may differ in; then its bytes are those of no uninterrupted run. Raises WrongCall, Refused or CannotHere
    with everything that a user has to mend.
    """
    models.require_device(device)
    make_deterministic(device, threads)
    with folder.written(out), folder.locked(out):
        if not resume:
            folder.require_new(out)
        journal = Journal(out / "journal.jsonl", out / "recovery", listen)
        journal(ImportsDone())
        loaded = load_inputs(recipe, inputs)  # before anything moves: other inputs are refused
        itself = identity(recipe, inputs, device, threads)
        require_names(allow_changed, itself)
        started = time.perf_counter()
        found = folder.restart(out, recipe.sha256, itself, journal, allow_changed)
        restart_seconds = time.perf_counter() - started
        accepted = [] if found is None else changes(found[1].identity, itself)
        # A process killed between its last checkpoint and this left one too many.
        checkpoint.retain(out / "checkpoints", recipe.steps.keep_checkpoints)
        last_step = num_steps(len(loaded.prompts), recipe.data, recipe.steps)
        journal(
            RunStarted(
                recipe_sha256=recipe.sha256,
                num_steps=last_step,
                resumed_step=None if found is None else found[1].step,
                device=device,
                threads=threads,
                accepted_changes={
                    each.name: {"then": each.then, "now": each.now} for each in accepted
                },
            )
        )
        for each in accepted:
            journal(_accepted(each))
        state = _start(recipe, itself) if found is None else _gone_on(found[1], itself, accepted)
        if state.step < last_step:
            folder.move_exports_aside(out, journal)
        if state.step < last_step or not folder.is_exported(out):
            roles = load_roles(recipe, inputs, loaded, journal, device)
            clock = Clock(journal, roles.policy.device)
            if found is not None:
                with clock.phase("restore", state.step, before=restart_seconds):
                    checkpoint.restore(found[0], roles.parts)
            ladder = Ladder(journal, roles.policy.device, state.downshifts)
            cycle = Cycle(recipe, loaded, roles, clock, ladder)
            training = _Training(recipe, out, roles, cycle, journal, clock, ladder)
            reached = training.go(state, last_step, is_stopping)
            if reached < last_step:
                journal(RunStopped(step=reached))
                return False
            _export(recipe, roles, inputs, out)
        journal(RunFinished(steps=last_step))
    return True


class _Training:
    """The run while it goes on: the models, the open logs, and what changes from step to step."""

    def __init__(
        self,
        recipe: Recipe,
        out: Path,
        roles: Roles,
        cycle: Cycle,
        journal: Journal,
        clock: Clock,
        ladder: Ladder,
    ) -> None:
        self._recipe = recipe
        self._out = out
        self._roles = roles
        self._cycle = cycle
        self._journal = journal
        self._clock = clock
        self._ladder = ladder
        self._logs = {name: Log(out / name) for name in folder.LOGS}
        if decoders.merges(roles.policy, recipe) and recipe.rollout.dtype != "float32":
            journal(_merged_in(recipe.rollout.dtype))

    def go(self, state: State, last_step: int, is_stopping: Callable[[], bool]) -> int:
        """From behind `state` to the end of `last_step`, or of the step in which it is asked to stop; returns which."""
        recipe = self._recipe
        if state.step == 0 and recipe.validation is not None and recipe.validation.before_training:
            self._validate(0)
        is_asked = is_stopping()
        while state.step < last_step and not is_asked:
            state = self._step(state)
            step = state.step
            # Before the checkpoint, which thereby binds what validation logs.
            if recipe.validation is not None and (
                _is_due(step, recipe.validation.every_steps)
                or (recipe.validation.every_steps > 0 and step == last_step)
            ):
                self._validate(step)
            is_asked = is_stopping()
            if step == last_step or is_asked or _is_due(step, recipe.steps.checkpoint_every):
                self._save(state)
        return state.step

    def _step(self, before: State) -> State:
        """The state behind the next step; logs are bound when it is saved."""
        recipe, step, started = self._recipe, before.step + 1, time.perf_counter()
        self._journal(StepStarted(step=step))
        cycled = self._cycle.run(step, before.cursor, kl_coefficient=before.kl_coefficient)
        numbers = self._update_critic(step, before.critic_steps, cycled)
        is_policy_trained = recipe.trains_policy_in(step)
        experiences: Sequence[Experience] = cycled.assembled.experiences
        if is_policy_trained:
            trained, experiences = self._update_policy(step, before.policy_steps, cycled)
            numbers |= trained
        self._append(step, cycled, experiences, numbers)
        self._journal(
            StepFinished(
                step=step,
                seconds=time.perf_counter() - started,
                metrics=finite(numbers),
                memory=peak_bytes(self._roles.policy.device),
            )
        )
        return replace(
            before,
            step=step,
            cursor=cycled.gathered.cursor,
            policy_steps=before.policy_steps + is_policy_trained,
            critic_steps=before.critic_steps + (recipe.critic is not None),
            kl_coefficient=self._next_kl_coefficient(before.kl_coefficient, cycled.assembled),
        )

    def _update_critic(self, step: int, ticks: int, cycled: Cycled) -> dict[str, float]:
        """Its numbers are told apart by their names."""
        recipe, critic = self._recipe.critic, self._roles.critic
        if recipe is None:
            return {}
        assert critic is not None
        objectives = partial(critic_objective, critic, recipe)
        with self._clock.phase("critic_update", step) as counted:
            seed = recipe.mini_batch_seed
            fitting = partial(self._fitting, "critic_update", step, critic, counted)
            numbers = self._updated("critic", recipe, seed, ticks, cycled, objectives, fitting)
            counted.tokens = recipe.update.epochs * num_tokens(cycled.gathered.trajectories)
        self._tell_skipped("critic", step, numbers)
        named = {f"critic_{name}": value for name, value in numbers.items()}
        return named | value_metrics(cycled.assembled.experiences)

    def _update_policy(
        self, step: int, ticks: int, cycled: Cycled
    ) -> tuple[dict[str, float], Sequence[Experience]]:
        """Its numbers, and what it learnt from with the policy's log-probs before it."""
        recipe = self._recipe
        objectives = PolicyObjectives(self._roles.policy, recipe, step=step)
        with self._clock.phase("update", step) as counted:
            seed = recipe.seeds.mini_batches
            fitting = partial(self._fitting, "update", step, self._roles.policy, counted)
            numbers = self._updated("policy", recipe, seed, ticks, cycled, objectives, fitting)
            counted.tokens = recipe.update.epochs * num_tokens(cycled.gathered.trajectories)
        self._tell_skipped("policy", step, numbers)
        return numbers, objectives.completed(cycled.assembled.experiences)

    def _updated(
        self,
        role: str,
        of: Recipe | Critic,
        seed: int,
        ticks: int,
        cycled: Cycled,
        objectives: Callable[[Sequence[Experience]], Objective],
        fitting: Fitting,
    ) -> dict[str, float]:
        """`of` says how it is trained; `ticks`: how often its learning rate has moved on before."""
        part = self._roles.parts[role]
        return update(
            part.parameters,
            part.optimizer,
            cycled.assembled.experiences,
            Plan.of(of.update, self._recipe.rollout.samples_per_prompt, seed, of.optimizer),
            objectives,
            learning_rate=of.optimizer.learning_rate * factor(ticks, of.learning_rate_schedule),
            fitting=fitting,
        )

    def _fitting(
        self,
        phase: Phase,
        step: int,
        model: Model,
        counted: Counted,
        members: Sequence[Experience],
        micro_batch_tokens: int,
        attempt: Callable[[int], dict[str, float]],
    ) -> dict[str, float]:
        """One mini-batch's gradient, in the recipe's bins or in those that fit."""
        trajectories = [each.trajectory for each in members]

        def counting(tokens: int) -> dict[str, float]:
            found = attempt(tokens)
            counted.bins(bins(trajectories, tokens))
            return found

        return self._ladder.tokens(
            phase, step, trajectories, micro_batch_tokens, counting, trained=model
        )

    def _tell_skipped(self, role: str, step: int, numbers: Mapping[str, float]) -> None:
        if numbers["skipped_steps"]:
            self._journal(_skipped(role, step, int(numbers["skipped_steps"])))

    def _next_kl_coefficient(self, coefficient: float | None, assembled: Assembled) -> float | None:
        if coefficient is None:
            return None
        assert self._recipe.kl_reward is not None
        assert assembled.current_kl is not None
        return next_coefficient(
            self._recipe.kl_reward, coefficient, assembled.current_kl, len(assembled.experiences)
        )

    def _append(
        self,
        step: int,
        cycled: Cycled,
        experiences: Sequence[Experience],
        numbers: dict[str, float],
    ) -> None:
        """Log the step, and complete its numbers."""
        numbers |= metrics.rollout_metrics(
            cycled.gathered.trajectories, self._recipe.rollout.samples_per_prompt
        )
        numbers |= metrics.scoring_metrics(experiences, cycled.gathered.responses)
        numbers |= cycled.assembled.metrics
        if self._recipe.group_filter is not None:
            numbers |= filter_metrics(cycled.gathered)
        for each in experiences:
            self._logs["trajectories.jsonl"].append(metrics.trajectory_row(step, each))
            if self._roles.teachers is not None:
                self._logs["teacher_targets.jsonl"].append(self._roles.teachers.row(step, each))
        self._logs["metrics.jsonl"].append({"step": step, **finite(numbers)})

    def _validate(self, step: int) -> None:
        assert self._recipe.validation is not None, "called for a recipe that validates"
        found, by_source = self._cycle.validate(step)
        for each in found:
            self._logs["validation.jsonl"].append(metrics.validation_row(step, each))
        numbers = metrics.rollout_metrics(
            [each.trajectory for each in found], self._recipe.validation.samples_per_prompt
        )
        self._journal(ValidationFinished(step=step, metrics={**numbers, **by_source}))

    def _save(self, state: State) -> None:
        step, parts = state.step, self._roles.parts
        for role, part in parts.items():
            if not all(each.isfinite().all() for each in part.parameters.values()):
                raise Refused([diverged(role, step, "its weights are not finite any more")])
        checkpoints = self._out / "checkpoints"
        with self._clock.phase("checkpoint", step):
            bound = replace(
                state,
                logs={name: log.sync() for name, log in self._logs.items()},
                downshifts=tuple(self._ladder.downshifts),
            )
            path = checkpoint.save(checkpoints, parts, bound)
            checkpoint.retain(checkpoints, self._recipe.steps.keep_checkpoints)
        self._journal(
            CheckpointSaved(
                step=step,
                folder=str(path.relative_to(self._out)),
                bytes=checkpoint.num_bytes(path),
            )
        )


def _start(recipe: Recipe, identity: Mapping[str, str]) -> State:
    """Before the first step."""
    return State(
        step=0,
        cursor=Cursor(epoch=0, index=0),
        policy_steps=0,
        critic_steps=0,
        kl_coefficient=None if recipe.kl_reward is None else recipe.kl_reward.coefficient,
        logs={},
        recipe_sha256=recipe.sha256,
        identity=identity,
        accepted_changes=(),
    )


def _gone_on(found: State, identity: Mapping[str, str], accepted: Sequence[Change]) -> State:
    """What was found, for a process that differs in what was accepted."""
    known = tuple(
        AcceptedChange(step=found.step, name=each.name, then=each.then, now=each.now)
        for each in accepted
    )
    return replace(found, identity=identity, accepted_changes=(*found.accepted_changes, *known))


def _export(recipe: Recipe, roles: Roles, inputs: Inputs, out: Path) -> None:
    """The policy last: with it the run is over."""
    if recipe.critic is not None:
        assert roles.critic is not None
        assert inputs.critic is not None
        export_critic(roles.critic, recipe.critic, out, inputs.critic)
    export(roles.policy, recipe.policy, out, inputs.model)


def _is_due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def _merged_in(dtype: Dtype) -> Warned:
    """Of a change that is a thousandth of its weight, bfloat16 keeps one weight in four."""
    message = f"the rollout merges the adapter in {dtype}, which rounds small changes away"
    return Warned(code="adapter_rounded", message=message)


def _accepted(change: Change) -> Warned:
    message = (
        f"{change.name} was {change.then} and is {change.now}, as accepted: "
        "the result need not be that of an uninterrupted run"
    )
    return Warned(code="resumed_with_change", message=message)


def _skipped(role: str, step: int, count: int) -> Warned:
    what = f"{count} optimizer steps of the {role} in step {step}"
    message = f"{what} changed nothing: their gradients were not finite"
    return Warned(code="optimizer_steps_skipped", message=message)
