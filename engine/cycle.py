"""One step up to its updates: prompts, responses, rewards, what each model says of them, and what follows.

Everything here is a function of the recipe, its inputs and the models as they are; only the clock is touched.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from miniverl.engine.assemble import Assembled, Scored, assemble
from miniverl.engine.clock import Clock, Counted
from miniverl.engine.decoders import decoder_of
from miniverl.engine.events import Phase, SamplerLoaded
from miniverl.engine.experience import TeacherTargets
from miniverl.engine.gather import Gathered, Judged, gather
from miniverl.engine.inputs import LoadedInputs
from miniverl.engine.ladder import Ladder
from miniverl.engine.models import Model
from miniverl.engine.order import Cursor
from miniverl.engine.policy_loss import POLICY_LOSSES
from miniverl.engine.problem import Refused, diverged
from miniverl.engine.recipe import Recipe, Rollout, Validation
from miniverl.engine.reward import Answer, Reward, judge
from miniverl.engine.roles import Roles
from miniverl.engine.sample import Response, Sampling, generate, num_slots
from miniverl.engine.score import Scores, bins, score
from miniverl.engine.seeds import named_seed
from miniverl.engine.teachers import Teachers
from miniverl.engine.trajectory import Prompt, Trajectory
from miniverl.engine.validation import validation_metrics
from miniverl.engine.value import values

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Cycled:
    """What a step's updates learn from, and what it came from."""

    gathered: Gathered
    assembled: Assembled


class Cycle:
    """Samples and scores with the models in `roles`, for training and for validation."""

    def __init__(
        self, recipe: Recipe, loaded: LoadedInputs, roles: Roles, clock: Clock, ladder: Ladder
    ) -> None:
        self._recipe = recipe
        self._loaded = loaded
        self._roles = roles
        self._clock = clock
        self._ladder = ladder
        rollout = recipe.rollout
        self._decoder = decoder_of(roles.policy, rollout)
        ladder.releases(partial(self._decoder.open, 1, 1))  # instead of the cache that it has
        self._is_sampler_told = recipe.policy.quantization is None

    def run(self, step: int, cursor: Cursor, *, kl_coefficient: float | None) -> Cycled:
        """The step whose data begins at `cursor`. Raises Refused where nothing can be learnt from it."""
        gathered = gather(
            cursor,
            self._loaded.prompts,
            self._recipe.data,
            self._recipe.seeds.data,
            self._recipe.group_filter,
            sample=partial(self._rollout, step),
            judge=partial(self._rewarded, step),
        )
        trajectories = gathered.trajectories
        sampled = [torch.tensor(each.filtered_log_probs) for each in gathered.responses]
        correction = self._recipe.rollout_correction
        old: Sequence[Tensor] | None = None
        entropy: Sequence[Tensor] | None = None
        if correction is not None and correction.bypasses_scoring:
            old = sampled
        elif not is_scored_by_update(self._recipe, step):
            scores = self._scores("score_old", step, self._roles.policy, trajectories)
            old, entropy = scores.log_probs, scores.entropy
        scored = Scored(
            trajectories=trajectories,
            sampled=sampled,
            old=old,
            entropy=entropy,
            reference=self._reference_log_probs(step, trajectories),
            values=self._values(step, trajectories),
            teacher=self._teacher_targets(step, trajectories),
        )
        with self._clock.phase("advantage", step):
            assembled = assemble(self._recipe, scored, kl_coefficient=kl_coefficient)
        return Cycled(gathered=gathered, assembled=assembled)

    def validate(self, step: int) -> tuple[list[Judged], dict[str, float]]:
        """Answers to the held-out prompts, by the policy after `step` steps, and what they say together."""
        wanted = self._recipe.validation
        assert wanted is not None, "called for a recipe that validates"
        with self._clock.phase("validation", step) as counted:
            self._load_decoder()
            responses = self._sampled(
                "validation",
                step,
                counted,
                self._loaded.held_out,
                self._sampling(wanted),
                seed=named_seed(self._recipe.seeds.sampling, "validation"),
                policy_version=step,
            )
            found = [self._judged(each, self._loaded.held_out_reward) for each in responses]
            counted.tokens = sum(len(each.tokens) for each in responses)
        sources = {prompt.prompt_id: prompt.data_source for prompt in self._loaded.held_out}
        return found, validation_metrics(found, sources)

    def _rollout(
        self, step: int, prompts: Sequence[Prompt], earlier: Sequence[Prompt]
    ) -> list[Response]:
        with self._clock.phase("rollout", step) as counted:
            if not earlier:
                self._load_decoder()
            responses = self._sampled(
                "rollout",
                step,
                counted,
                prompts,
                self._sampling(self._recipe.rollout),
                seed=self._recipe.seeds.sampling,
                policy_version=step - 1,
                earlier=earlier,
            )
            counted.tokens = sum(len(each.tokens) for each in responses)
        return responses

    def _sampled(
        self,
        phase: Phase,
        step: int,
        counted: Counted,
        prompts: Sequence[Prompt],
        sampling: Sampling,
        *,
        seed: int,
        policy_version: int,
        earlier: Sequence[Prompt] = (),
    ) -> list[Response]:
        """As many rows at once as fit; which they are changes no byte."""

        def attempt(max_rows: int) -> list[Response]:
            responses = generate(
                self._decoder,
                prompts,
                sampling,
                seed=seed,
                policy_version=policy_version,
                earlier=earlier,
                max_rows=max_rows,
            )
            counted.rows(num_slots(prompts, sampling, max_rows))
            return responses

        return self._ladder.rows(phase, step, num_slots(prompts, sampling), attempt)

    def _load_decoder(self) -> None:
        self._decoder.load()
        if not self._is_sampler_told:
            self._is_sampler_told = True
            self._clock.tell(
                SamplerLoaded(
                    weights=self._recipe.rollout.weights or "merged",
                    dtype=self._recipe.rollout.dtype,
                    bytes=self._decoder.num_bytes,
                )
            )

    def _rewarded(self, step: int, responses: Sequence[Response]) -> list[Judged]:
        with self._clock.phase("reward", step):
            return [self._judged(each, self._loaded.reward) for each in responses]

    def _scores(
        self, phase: Phase, step: int, model: Model, trajectories: Sequence[Trajectory]
    ) -> Scores:
        """Raises Refused where the model has diverged: nothing can be learnt from what is not a number."""
        with self._clock.phase(phase, step) as counted:
            scores = self._in_bins(
                phase,
                step,
                counted,
                trajectories,
                self._recipe.update.micro_batch_tokens,
                lambda tokens: score(
                    model,
                    trajectories,
                    temperature=self._recipe.rollout.temperature,
                    micro_batch_tokens=tokens,
                    with_entropy=phase == "score_old",
                ),
            )
            counted.tokens = num_tokens(trajectories)
        if not all(each.isfinite().all() for each in scores.log_probs):
            reason = "its log-probabilities are not finite any more"
            raise Refused([diverged("policy", step, reason)])
        return scores

    def _reference_log_probs(
        self, step: int, trajectories: Sequence[Trajectory]
    ) -> Sequence[Tensor] | None:
        if self._roles.reference is None:
            return None
        with self._roles.reference() as model:
            return self._scores("score_reference", step, model, trajectories).log_probs

    def _values(self, step: int, trajectories: Sequence[Trajectory]) -> Sequence[Tensor] | None:
        if self._roles.critic is None:
            return None
        assert self._recipe.critic is not None
        with self._clock.phase("score_values", step) as counted:
            found = self._in_bins(
                "score_values",
                step,
                counted,
                trajectories,
                self._recipe.critic.update.micro_batch_tokens,
                partial(_values_in, self._roles.critic, trajectories),
            )
            counted.tokens = num_tokens(trajectories)
        if not all(each.isfinite().all() for each in found):
            raise Refused([diverged("critic", step, "its values are not finite any more")])
        return found

    def _teacher_targets(
        self, step: int, trajectories: Sequence[Trajectory]
    ) -> Sequence[TeacherTargets] | None:
        if self._roles.teachers is None:
            return None
        with self._clock.phase("score_teacher", step) as counted:
            counted.tokens = num_tokens(trajectories)
            return self._targets_in_bins(step, counted, self._roles.teachers, trajectories)

    def _targets_in_bins(
        self, step: int, counted: Counted, teachers: Teachers, trajectories: Sequence[Trajectory]
    ) -> Sequence[TeacherTargets]:
        def attempt(micro_batch_tokens: int) -> Sequence[TeacherTargets]:
            found = teachers.targets(
                trajectories,
                micro_batch_tokens=micro_batch_tokens,
                num_tokens=len(self._roles.policy.head_VH),
            )
            for its in teachers.shares(trajectories):
                counted.bins(bins(its, micro_batch_tokens))
            return found

        most = self._recipe.update.micro_batch_tokens
        return self._ladder.tokens("score_teacher", step, trajectories, most, attempt)

    def _in_bins(
        self,
        phase: Phase,
        step: int,
        counted: Counted,
        trajectories: Sequence[Trajectory],
        most: int,
        scored_in: Callable[[int], T],
    ) -> T:
        """In the recipe's bins, or in those that fit."""

        def attempt(tokens: int) -> T:
            found = scored_in(tokens)
            counted.bins(bins(trajectories, tokens))
            return found

        return self._ladder.tokens(phase, step, trajectories, most, attempt)

    def _sampling(self, wanted: Rollout | Validation) -> Sampling:
        return Sampling(
            samples_per_prompt=wanted.samples_per_prompt,
            max_tokens=self._recipe.rollout.max_response_tokens,
            temperature=wanted.temperature,
            top_p=wanted.top_p,
            top_k=wanted.top_k,
            end_tokens=self._loaded.end_tokens,
        )

    def _judged(self, response: Response, reward: Reward) -> Judged:
        tokenizer = self._loaded.tokenizer
        answer = Answer(
            text=tokenizer.decode(response.tokens, skip_special_tokens=True),
            raw_text=tokenizer.decode(response.tokens, skip_special_tokens=False),
            num_tokens=len(response.tokens),
        )
        judgement = judge(reward, response.prompt, answer, self._recipe.reward.overlong_penalty)
        trajectory = Trajectory(
            prompt_id=response.prompt.prompt_id,
            sample=response.sample,
            prompt_tokens=response.prompt.tokens,
            response_tokens=response.tokens,
            is_finished=response.is_finished,
            response=answer.text,
            reward=judgement.reward,
        )
        return Judged(
            trajectory=trajectory, extras=judgement.extras, prediction=judgement.prediction
        )


def _values_in(
    critic: Model, trajectories: Sequence[Trajectory], micro_batch_tokens: int
) -> tuple[Tensor, ...]:
    return values(critic, trajectories, micro_batch_tokens=micro_batch_tokens)


def is_scored_by_update(recipe: Recipe, step: int) -> bool:
    """Whether the policy's log-probs as it enters the step's update can wait for that update's own forward.

    They are then the same numbers, without a pass of their own: the step is one mini-batch of one epoch, and nobody
    asks for them before.
    """
    update = recipe.update
    is_one_mini_batch = update.prompts_per_mini_batch >= recipe.data.prompts_per_step
    is_asked_before = (
        recipe.kl_reward is not None
        or recipe.rollout_correction is not None
        or POLICY_LOSSES[recipe.policy_loss.name].select is not None
    )
    return (
        recipe.trains_policy_in(step)
        and is_one_mini_batch
        and update.epochs == 1
        and not is_asked_before
    )


def num_tokens(trajectories: Sequence[Trajectory]) -> int:
    """Response tokens of all of them."""
    return sum(len(each.response_tokens) for each in trajectories)
