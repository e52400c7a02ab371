"""Run a recipe, or go on with a run: prompts, rollout, reward, scores, advantages, update, and again.

A step is a pure function of the recipe, its inputs and the policy before it. What it produced is appended to
the logs first; a checkpoint then binds them, so a process killed at any instant loses only what came after
the last checkpoint, and computes the same bytes again.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import torch

from miniverl.engine import checkpoint, folder, metrics, models
from miniverl.engine.advantage import ADVANTAGES, Outcomes
from miniverl.engine.checkpoint import State
from miniverl.engine.clock import Clock, peak_bytes
from miniverl.engine.decoder import Decoder
from miniverl.engine.events import (
    CheckpointSaved,
    Event,
    ImportsDone,
    ModelLoaded,
    Phase,
    RunFinished,
    RunStarted,
    StepFinished,
    StepStarted,
    ValidationFinished,
    Warned,
)
from miniverl.engine.experience import Experience, TeacherTargets
from miniverl.engine.export import export
from miniverl.engine.gather import Gathered, Judged, filter_metrics, gather
from miniverl.engine.identity import identity, make_deterministic
from miniverl.engine.inputs import Inputs, LoadedInputs, load_inputs
from miniverl.engine.journal import Journal, Log, finite
from miniverl.engine.models import Model, Reference
from miniverl.engine.order import Cursor, num_steps
from miniverl.engine.policy_update import policy_objectives
from miniverl.engine.problem import Problem, Refused
from miniverl.engine.recipe import Dtype, Recipe, Rollout, Validation
from miniverl.engine.reward import Answer, Reward
from miniverl.engine.reward import score as judged
from miniverl.engine.sample import Response, Sampling, generate
from miniverl.engine.schedule import factor
from miniverl.engine.score import Scores, score
from miniverl.engine.seeds import named_seed
from miniverl.engine.teachers import Teachers, load_teachers
from miniverl.engine.trajectory import Prompt, Trajectory
from miniverl.engine.update import Plan, adamw, update

__all__ = ["Inputs", "run"]

_START = Cursor(epoch=0, index=0)


def run(
    recipe: Recipe,
    inputs: Inputs,
    out: Path,
    *,
    device: str,
    threads: int,
    resume: bool,
    listen: Callable[[Event], None],
) -> None:
    """Run the recipe in the folder `out`, or go on with the run in it, to its last step.

    Events go to `out`/journal.jsonl and to `listen`. Raises WrongCall, Refused or CannotHere with everything
    that a user has to mend.
    """
    models.require_device(device)
    make_deterministic(device, threads)
    with folder.written(out), folder.locked(out):
        if not resume:
            folder.require_new(out)
        journal = Journal(out / "journal.jsonl", out / "recovery", listen)
        journal(ImportsDone())
        found = folder.restart(out, recipe.sha256, identity(device, threads), journal)
        # A process killed between its last checkpoint and this left one too many.
        checkpoint.retain(out / "checkpoints", recipe.steps.keep_checkpoints)
        parts = load_inputs(recipe, inputs)
        last_step = num_steps(len(parts.prompts), recipe.data, recipe.steps)
        journal(
            RunStarted(
                recipe_sha256=recipe.sha256,
                num_steps=last_step,
                resumed_step=None if found is None else found[1].step,
                device=device,
                threads=threads,
            )
        )
        step, cursor = (0, _START) if found is None else (found[1].step, found[1].cursor)
        if step < last_step or not folder.is_exported(out):
            training = _Training(recipe, inputs, out, parts, journal, device)
            if found is not None:
                checkpoint.restore(found[0], training.policy.trained(), training.optimizer)
            training.go(step, cursor, last_step, identity(device, threads))
            export(training.policy, recipe.policy, out, inputs.model)
        journal(RunFinished(steps=last_step))


class _Training:
    """The run while it goes on: the models, the optimizer, the open logs."""

    def __init__(
        self,
        recipe: Recipe,
        inputs: Inputs,
        out: Path,
        parts: LoadedInputs,
        journal: Journal,
        device: str,
    ) -> None:
        self._recipe = recipe
        self._out = out
        self._parts = parts
        self._journal = journal
        self.policy = self._load_policy(inputs.model, device)
        self._clock = Clock(journal, self.policy.device)
        self._reference = self._load_reference()
        self._teachers = self._load_teachers(inputs.teachers, device)
        self.optimizer = adamw(self.policy.trained(), recipe.optimizer)
        self._decoder = Decoder(self.policy, models.DTYPES[recipe.rollout.dtype])
        self._logs = {name: Log(out / name) for name in folder.LOGS}
        if recipe.policy.lora is not None and recipe.rollout.dtype != "float32":
            journal(_merged_in(recipe.rollout.dtype))

    def go(self, step: int, cursor: Cursor, last_step: int, identity: Mapping[str, str]) -> None:
        """From behind `step` to the end of `last_step`."""
        recipe = self._recipe
        if step == 0 and recipe.validation is not None and recipe.validation.before_training:
            self._validate(0)
        while step < last_step:
            step += 1
            cursor = self._step(step, cursor)
            # Before the checkpoint, which thereby binds what validation logs.
            if recipe.validation is not None and (
                _is_due(step, recipe.validation.every_steps)
                or (recipe.validation.every_steps > 0 and step == last_step)
            ):
                self._validate(step)
            if step == last_step or _is_due(step, recipe.steps.checkpoint_every):
                self._save(step, cursor, identity)

    def _step(self, step: int, cursor: Cursor) -> Cursor:
        """Returns where the data stands behind it."""
        recipe, started = self._recipe, time.perf_counter()
        self._journal(StepStarted(step=step))
        gathered = self._gathered(step, cursor)
        trajectories = gathered.trajectories
        old = self._scores("score_old", step, self.policy, trajectories)
        reference = self._reference_scores(step, trajectories)
        targets = self._teacher_targets(step, trajectories)
        experiences = self._experiences(step, trajectories, old, reference, targets)
        with self._clock.phase("update", step) as counted:
            numbers = update(
                self.policy.trained(),
                self.optimizer,
                experiences,
                Plan.of(
                    recipe.update,
                    recipe.rollout.samples_per_prompt,
                    recipe.seeds.mini_batches,
                    recipe.optimizer,
                ),
                policy_objectives(self.policy, recipe, step=step),
                learning_rate=recipe.optimizer.learning_rate
                * factor(step - 1, recipe.learning_rate_schedule),
            )
            counted.tokens = recipe.update.epochs * _num_tokens(trajectories)
        if numbers["skipped_steps"]:
            self._journal(_skipped(step, int(numbers["skipped_steps"])))
        numbers |= metrics.rollout_metrics(trajectories)
        numbers |= metrics.scoring_metrics(experiences, gathered.responses, old.entropy)
        if recipe.group_filter is not None:
            numbers |= filter_metrics(gathered)
        self._append(step, experiences, numbers)
        self._journal(
            StepFinished(
                step=step,
                seconds=time.perf_counter() - started,
                metrics=finite(numbers),
                memory=peak_bytes(self.policy.device),
            )
        )
        return gathered.cursor

    def _gathered(self, step: int, cursor: Cursor) -> Gathered:
        return gather(
            cursor,
            self._parts.prompts,
            self._recipe.data,
            self._recipe.seeds.data,
            self._recipe.group_filter,
            sample=partial(self._rollout, step),
            judge=partial(self._rewarded, step),
        )

    def _rollout(
        self, step: int, prompts: Sequence[Prompt], earlier: Sequence[Prompt]
    ) -> list[Response]:
        with self._clock.phase("rollout", step) as counted:
            if not earlier:
                self._decoder.load()
            responses = generate(
                self._decoder,
                prompts,
                self._sampling(self._recipe.rollout),
                seed=self._recipe.seeds.sampling,
                policy_version=step - 1,
                earlier=earlier,
            )
            counted.tokens = sum(len(each.tokens) for each in responses)
        return responses

    def _rewarded(self, step: int, responses: Sequence[Response]) -> list[Judged]:
        with self._clock.phase("reward", step):
            return [
                Judged(trajectory=self._trajectory(each, self._parts.reward), extras={})
                for each in responses
            ]

    def _scores(
        self, phase: Phase, step: int, model: Model, trajectories: Sequence[Trajectory]
    ) -> Scores:
        """Raises Refused where the model has diverged: nothing can be learnt from what is not a number."""
        with self._clock.phase(phase, step) as counted:
            scores = score(
                model,
                trajectories,
                temperature=self._recipe.rollout.temperature,
                micro_batch_tokens=self._recipe.update.micro_batch_tokens,
                with_entropy=phase == "score_old",
            )
            counted.tokens = _num_tokens(trajectories)
        if not all(each.isfinite().all() for each in scores.log_probs):
            raise Refused([_diverged(step, "its log-probabilities are not finite any more")])
        return scores

    def _reference_scores(self, step: int, trajectories: Sequence[Trajectory]) -> Scores | None:
        if self._reference is None:
            return None
        with self._reference() as model:
            return self._scores("score_reference", step, model, trajectories)

    def _teacher_targets(
        self, step: int, trajectories: Sequence[Trajectory]
    ) -> Sequence[TeacherTargets | None]:
        if self._teachers is None:
            return [None] * len(trajectories)
        with self._clock.phase("score_teacher", step) as counted:
            counted.tokens = _num_tokens(trajectories)
            return self._teachers.targets(
                trajectories,
                micro_batch_tokens=self._recipe.update.micro_batch_tokens,
                num_tokens=len(self.policy.head_VH),
            )

    def _experiences(
        self,
        step: int,
        trajectories: Sequence[Trajectory],
        old: Scores,
        reference: Scores | None,
        targets: Sequence[TeacherTargets | None],
    ) -> list[Experience]:
        with self._clock.phase("advantage", step):
            rewards_NR, mask_NR = _token_rewards(trajectories)
            estimate = ADVANTAGES[self._recipe.advantage.estimator](
                Outcomes(
                    token_rewards_NR=rewards_NR,
                    mask_NR=mask_NR,
                    # A prompt met twice in one step has two groups.
                    groups_N=torch.arange(len(trajectories))
                    // self._recipe.rollout.samples_per_prompt,
                    values_NR=None,
                ),
                self._recipe.advantage,
            )
            return [
                Experience(
                    trajectory=trajectory,
                    is_trained_R=mask_NR[index, :length],
                    old_log_probs_R=old.log_probs[index],
                    advantages_R=estimate.advantages_NR[index, :length],
                    reference_log_probs_R=None if reference is None else reference.log_probs[index],
                    importance_weights_R=None,
                    values_R=None,
                    returns_R=None,
                    teacher=targets[index],
                )
                for index, trajectory in enumerate(trajectories)
                for length in [len(trajectory.response_tokens)]
            ]

    def _validate(self, step: int) -> None:
        recipe = self._recipe.validation
        assert recipe is not None, "called for a recipe that validates"
        with self._clock.phase("validation", step) as counted:
            self._decoder.load()
            responses = generate(
                self._decoder,
                self._parts.held_out,
                self._sampling(recipe),
                seed=named_seed(self._recipe.seeds.sampling, "validation"),
                policy_version=step,
            )
            trajectories = [
                self._trajectory(each, self._parts.held_out_reward) for each in responses
            ]
            for each in trajectories:
                self._logs["validation.jsonl"].append(metrics.validation_row(step, each))
            counted.tokens = _num_tokens(trajectories)
        self._journal(ValidationFinished(step=step, metrics=metrics.rollout_metrics(trajectories)))

    def _sampling(self, wanted: Rollout | Validation) -> Sampling:
        return Sampling(
            samples_per_prompt=wanted.samples_per_prompt,
            max_tokens=self._recipe.rollout.max_response_tokens,
            temperature=wanted.temperature,
            top_p=wanted.top_p,
            top_k=wanted.top_k,
            end_tokens=self._parts.end_tokens,
        )

    def _trajectory(self, response: Response, reward: Reward) -> Trajectory:
        tokenizer = self._parts.tokenizer
        answer = Answer(
            text=tokenizer.decode(response.tokens, skip_special_tokens=True),
            raw_text=tokenizer.decode(response.tokens, skip_special_tokens=False),
            num_tokens=len(response.tokens),
        )
        return Trajectory(
            prompt_id=response.prompt.prompt_id,
            sample=response.sample,
            prompt_tokens=response.prompt.tokens,
            response_tokens=response.tokens,
            is_finished=response.is_finished,
            response=answer.text,
            reward=judged(reward, response.prompt, answer),
        )

    def _append(
        self, step: int, experiences: Sequence[Experience], numbers: dict[str, float]
    ) -> None:
        for each in experiences:
            self._logs["trajectories.jsonl"].append(metrics.trajectory_row(step, each))
            if self._teachers is not None:
                self._logs["teacher_targets.jsonl"].append(self._teachers.row(step, each))
        self._logs["metrics.jsonl"].append({"step": step, **finite(numbers)})

    def _save(self, step: int, cursor: Cursor, identity: Mapping[str, str]) -> None:
        if not all(each.isfinite().all() for each in self.policy.trained().values()):
            raise Refused([_diverged(step, "its weights are not finite any more")])
        checkpoints = self._out / "checkpoints"
        with self._clock.phase("checkpoint", step):
            path = checkpoint.save(
                checkpoints,
                self.policy.trained(),
                self.optimizer,
                State(
                    step=step,
                    cursor=cursor,
                    learning_rate_step=step,
                    logs={name: log.sync() for name, log in self._logs.items()},
                    recipe_sha256=self._recipe.sha256,
                    identity=identity,
                ),
            )
            checkpoint.retain(checkpoints, self._recipe.steps.keep_checkpoints)
        self._journal(
            CheckpointSaved(
                step=step,
                folder=str(path.relative_to(self._out)),
                bytes=checkpoint.num_bytes(path),
            )
        )

    def _load_policy(self, path: Path, device: str) -> Model:
        started = time.perf_counter()
        policy = models.load_policy(
            self._recipe.policy, path, adapter_seed=self._recipe.seeds.parameters, device=device
        )
        self._report("policy", policy, started)
        return policy

    def _load_reference(self) -> Reference | None:
        """Before the checkpoint is restored: the reference is the policy that the run started with."""
        if self._recipe.kl_loss is None:
            return None
        started = time.perf_counter()
        reference = models.reference_of(self.policy)
        with reference() as model:
            self._report("reference", model, started)
        return reference

    def _load_teachers(self, paths: Sequence[Path], device: str) -> Teachers | None:
        recipe, started = self._recipe.distillation, time.perf_counter()
        if recipe is None:
            return None
        teachers = load_teachers(recipe, paths, self._parts.teacher_of_prompt, device)
        for teacher, model in zip(recipe.teachers, teachers.models, strict=True):
            self._report(teacher.input, model, started)
        return teachers

    def _report(self, role: str, model: Model, started: float) -> None:
        trained = model.trained() if role == "policy" else {}
        self._journal(
            ModelLoaded(
                role=role,
                parameters=model.num_parameters(),
                trainable_parameters=sum(each.numel() for each in trained.values()),
                seconds=time.perf_counter() - started,
            )
        )


def _token_rewards(trajectories: Sequence[Trajectory]) -> tuple[torch.Tensor, torch.Tensor]:
    """The reward of each response at its last token, and where its tokens are (bool)."""
    lengths_N = torch.tensor([len(each.response_tokens) for each in trajectories])
    positions_R = torch.arange(int(lengths_N.max()))
    rewards_N = torch.tensor([each.reward for each in trajectories])
    is_last_NR = positions_R == lengths_N[:, None] - 1
    return torch.where(is_last_NR, rewards_N[:, None], 0.0), positions_R < lengths_N[:, None]


def _is_due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def _num_tokens(trajectories: Sequence[Trajectory]) -> int:
    return sum(len(each.response_tokens) for each in trajectories)


def _merged_in(dtype: Dtype) -> Warned:
    """Of a change that is a thousandth of its weight, bfloat16 keeps one weight in four."""
    message = f"the rollout merges the adapter in {dtype}, which rounds small changes away"
    return Warned(code="adapter_rounded", message=message)


def _skipped(step: int, count: int) -> Warned:
    message = (
        f"{count} optimizer steps of step {step} changed nothing: their gradients were not finite"
    )
    return Warned(code="optimizer_steps_skipped", message=message)


def _diverged(step: int, reason: str) -> Problem:
    return Problem(
        field="policy",
        value=f"step {step}",
        origin="training",
        reason=reason,
        fix="Lower recipe.optimizer.learning_rate, and start a new run",
    )
