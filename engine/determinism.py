"""Are a step's bytes the same when it is computed again, and in other batches? Answered by doing it and comparing.

One process loads the last checkpoint of a run and computes the beginning of the step behind it, cut to a few prompts
and tokens: responses, what each model says of them, the gradients of their update. All of it once more has to
give equal bytes (tier `same_process`). So have the responses with other rows beside them, in another order, or
waiting for a slot (`batch_invariant`); the scores and gradients of other micro-batches differ by rounding, and
by how much is told.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from miniverl.engine import checkpoint, models
from miniverl.engine.comparison import Comparison, Numbers, compared
from miniverl.engine.critic_update import critic_objective
from miniverl.engine.decoders import decoder_of
from miniverl.engine.experience import Experience
from miniverl.engine.identity import caveats, identity, make_deterministic
from miniverl.engine.inputs import Inputs, LoadedInputs, load_inputs
from miniverl.engine.journal import Journal
from miniverl.engine.order import take
from miniverl.engine.policy_update import PolicyObjectives
from miniverl.engine.recipe import Critic, Recipe
from miniverl.engine.roles import Roles, load_roles
from miniverl.engine.sample import MAX_ROWS, Response, Sampling, generate
from miniverl.engine.score import score
from miniverl.engine.trajectory import Prompt, Trajectory
from miniverl.engine.update import Objective, Plan, accumulate
from miniverl.engine.value import values

_NUM_PROMPTS = 3
_SAMPLES_PER_PROMPT = 2
_RESPONSE_TOKENS = 12
_FEW_ROWS = 2
_LOG_PROBS = "log-probs of the sampler"


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """`step` is the one whose beginning was computed; `caveats` are those of the device."""

    step: int
    prompts: int
    rows: int
    tokens: int
    seconds: float  # beyond loading the models
    comparisons: tuple[Comparison, ...]
    sampler_and_scorer: Comparison
    caveats: tuple[str, ...]


def compare(
    recipe: Recipe, inputs: Inputs, run: Path, out: Path, *, device: str, threads: int
) -> Compared:
    """Compare with the weights that the run in `run` ended with; the models' loading is told in `out`/journal.jsonl.

    Raises what `loop.run` raises where the run cannot be gone on with.
    """
    models.require_device(device)
    make_deterministic(device, threads)
    journal = Journal(out / "journal.jsonl", out / "recovery", lambda event: None)
    loaded = load_inputs(recipe, inputs)
    itself = identity(recipe, inputs, device, threads)
    # The weights are all that is taken from the run: a difference of versions is none of what is compared.
    found = checkpoint.newest(run, recipe.sha256, itself, journal, allow_changed=itself)
    assert found is not None, "a finished run has a checkpoint"
    path, state = found
    roles = load_roles(recipe, inputs, loaded, journal, device)
    checkpoint.restore(path, roles.parts)
    started = time.perf_counter()
    indices, _ = take(
        state.cursor,
        recipe.data.prompts_per_step,
        len(loaded.prompts),
        recipe.data,
        recipe.seeds.data,
    )
    prompts = [loaded.prompts[index] for index in dict.fromkeys(indices)][:_NUM_PROMPTS]
    probe = _Probe(recipe, loaded, roles, state.step)
    first = probe.work(prompts)
    comparisons = [*_again(probe, prompts, first), *_in_other_batches(probe, prompts, first)]
    return Compared(
        step=state.step + 1,
        prompts=len(prompts),
        rows=len(first.responses),
        tokens=sum(len(each.tokens) for each in first.responses),
        seconds=time.perf_counter() - started,
        comparisons=tuple(comparisons),
        sampler_and_scorer=_sampler_and_scorer(first),
        caveats=caveats(device),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Work:
    """What one computation of the rows gave."""

    responses: Sequence[Response]
    scores: Mapping[str, Numbers]  # by what computed them
    gradients: Mapping[str, Numbers]  # by role


class _Probe:
    """The rows and the models that they are computed with."""

    def __init__(self, recipe: Recipe, loaded: LoadedInputs, roles: Roles, step: int) -> None:
        self._recipe = recipe
        self._loaded = loaded
        self._roles = roles
        self._step = step
        rollout = recipe.rollout
        self._decoder = decoder_of(roles.policy, rollout)
        self._decoder.load()

    def work(self, prompts: Sequence[Prompt]) -> _Work:
        responses = self.responses(prompts)
        scores = self.scores(responses, self._recipe.update.micro_batch_tokens)
        return _Work(
            responses=responses,
            scores=scores,
            gradients=self.gradients(
                responses, scores, micro_batch_tokens=self._recipe.update.micro_batch_tokens
            ),
        )

    def responses(self, prompts: Sequence[Prompt], max_rows: int = MAX_ROWS) -> list[Response]:
        rollout = self._recipe.rollout
        sampling = Sampling(
            samples_per_prompt=min(_SAMPLES_PER_PROMPT, rollout.samples_per_prompt),
            max_tokens=min(_RESPONSE_TOKENS, rollout.max_response_tokens),
            temperature=rollout.temperature,
            top_p=rollout.top_p,
            top_k=rollout.top_k,
            end_tokens=self._loaded.end_tokens,
        )
        return generate(
            self._decoder,
            prompts,
            sampling,
            seed=self._recipe.seeds.sampling,
            policy_version=self._step,
            max_rows=max_rows,
        )

    def scores(self, responses: Sequence[Response], micro_batch_tokens: int) -> dict[str, Numbers]:
        """What each model of the recipe says of the responses' tokens."""
        trajectories = [_trajectory(each) for each in responses]
        roles = self._roles
        log_probs = partial(
            score,
            temperature=self._recipe.rollout.temperature,
            micro_batch_tokens=micro_batch_tokens,
            with_entropy=False,
        )
        found: dict[str, Sequence[Tensor]] = {
            "policy": log_probs(roles.policy, trajectories).log_probs
        }
        if roles.reference is not None:
            with roles.reference() as reference:
                found["reference"] = log_probs(reference, trajectories).log_probs
        if roles.critic is not None:
            found["critic"] = values(
                roles.critic, trajectories, micro_batch_tokens=micro_batch_tokens
            )
        return {name: _by_row(responses, rows) for name, rows in found.items()}

    def gradients(
        self,
        responses: Sequence[Response],
        scores: Mapping[str, Numbers],
        *,
        micro_batch_tokens: int,
    ) -> dict[str, Numbers]:
        """Of every trained model, over one mini-batch that is made of all rows."""
        members = self._experiences(responses, scores)
        recipe, roles = self._recipe, self._roles
        found = {
            "policy": self._gradient(
                "policy",
                recipe,
                PolicyObjectives(roles.policy, recipe, step=self._step + 1)(members),
                members,
                micro_batch_tokens,
            )
        }
        if recipe.critic is not None and roles.critic is not None:
            objective = critic_objective(roles.critic, recipe.critic, members)
            found["critic"] = self._gradient(
                "critic", recipe.critic, objective, members, micro_batch_tokens
            )
        return found

    def _gradient(
        self,
        role: str,
        of: Recipe | Critic,
        objective: Objective,
        members: Sequence[Experience],
        micro_batch_tokens: int,
    ) -> Numbers:
        parameters = self._roles.parts[role].parameters
        plan = Plan(
            mini_batch_size=len(members),
            epochs=1,
            shuffle_seed=None,
            micro_batch_tokens=micro_batch_tokens,
            max_gradient_norm=of.optimizer.max_gradient_norm,
        )
        for parameter in parameters.values():
            parameter.grad = None
        accumulate(members, plan, objective)
        found = {
            name: each.grad.detach().cpu()
            for name, each in parameters.items()
            if each.grad is not None
        }
        for parameter in parameters.values():
            parameter.grad = None
        return found

    def _experiences(
        self, responses: Sequence[Response], scores: Mapping[str, Numbers]
    ) -> list[Experience]:
        """With advantages of +1 and -1 in turn: the rewards of a few rows may leave no gradient to compare."""
        trajectories = [_trajectory(each) for each in responses]
        teachers = self._roles.teachers
        targets = None
        if teachers is not None:
            targets = teachers.targets(
                trajectories,
                micro_batch_tokens=self._recipe.update.micro_batch_tokens,
                num_tokens=len(self._roles.policy.head_VH),
            )
        of_reference, of_critic = scores.get("reference"), scores.get("critic")
        found = []
        for index, (response, trajectory) in enumerate(zip(responses, trajectories, strict=True)):
            row = _row(response)
            old_R = scores["policy"][row]
            values_R = None if of_critic is None else of_critic[row]
            found.append(
                Experience(
                    trajectory=trajectory,
                    is_trained_R=torch.ones(len(old_R), dtype=torch.bool),
                    old_log_probs_R=old_R,
                    advantages_R=torch.full_like(old_R, 1.0 - 2.0 * (index % 2)),
                    reference_log_probs_R=None if of_reference is None else of_reference[row],
                    importance_weights_R=None,
                    values_R=values_R,
                    returns_R=None if values_R is None else values_R + 1.0,
                    teacher=None if targets is None else targets[index],
                )
            )
        return found


def _again(probe: _Probe, prompts: Sequence[Prompt], first: _Work) -> Iterator[Comparison]:
    """Everything once more, as it was."""
    second = probe.work(prompts)
    judged = partial(compared, tier="same_process", how="again", has_to_be_equal=True)
    yield judged(_tokens(first.responses), _tokens(second.responses), what="sampled tokens")
    yield judged(_log_probs(first.responses), _log_probs(second.responses), what=_LOG_PROBS)
    for role, numbers in first.scores.items():
        yield judged(numbers, second.scores[role], what=f"scores of the {role}")
    for role, numbers in first.gradients.items():
        yield judged(numbers, second.gradients[role], what=f"gradients of the {role}")


def _in_other_batches(
    probe: _Probe, prompts: Sequence[Prompt], first: _Work
) -> Iterator[Comparison]:
    judged = partial(compared, tier="batch_invariant", has_to_be_equal=True)
    ways: dict[str, Callable[[], list[Response]]] = {
        "prompts in reverse order": lambda: probe.responses(prompts[::-1]),
        f"{_FEW_ROWS} rows at once, the others waiting": lambda: probe.responses(
            prompts, max_rows=_FEW_ROWS
        ),
        "one prompt alone": lambda: probe.responses(prompts[-1:]),
    }
    for how, sampled in ways.items():
        found = sorted(sampled(), key=_row)
        rows = {_row(each) for each in found}
        kept = sorted((each for each in first.responses if _row(each) in rows), key=_row)
        yield judged(_tokens(kept), _tokens(found), what="sampled tokens", how=how)
        yield judged(_log_probs(kept), _log_probs(found), what=_LOG_PROBS, how=how)
    alone = partial(
        compared, tier="batch_invariant", how="one row a micro-batch", has_to_be_equal=False
    )
    scores = probe.scores(first.responses, micro_batch_tokens=1)
    for role, numbers in first.scores.items():
        yield alone(numbers, scores[role], what=f"scores of the {role}")
    gradients = probe.gradients(first.responses, first.scores, micro_batch_tokens=1)
    for role, numbers in first.gradients.items():
        largest = max((float(each.abs().max()) for each in numbers.values()), default=0.0)
        yield alone(numbers, gradients[role], what=f"gradients of the {role}", scale=largest or 1.0)


def _sampler_and_scorer(first: _Work) -> Comparison:
    """Both log-probs of each token: the sampler's, before top-k and top-p, and the one that training starts from."""
    return compared(
        {_row(each): torch.tensor(each.log_probs) for each in first.responses},
        first.scores["policy"],
        tier="same_process",
        what="log-probs",
        how="by the sampler and by the scorer",
        has_to_be_equal=False,
    )


def _tokens(responses: Sequence[Response]) -> dict[str, Tensor]:
    return {_row(each): torch.tensor(each.tokens) for each in responses}


def _log_probs(responses: Sequence[Response]) -> dict[str, Tensor]:
    """Of the whole vocabulary, and behind them those of what top-k and top-p left."""
    return {
        _row(each): torch.tensor((*each.log_probs, *each.filtered_log_probs)) for each in responses
    }


def _by_row(responses: Sequence[Response], rows: Sequence[Tensor]) -> dict[str, Tensor]:
    return {_row(each): row for each, row in zip(responses, rows, strict=True)}


def _row(response: Response) -> str:
    return f"prompt {response.prompt.prompt_id}, sample {response.sample}"


def _trajectory(response: Response) -> Trajectory:
    return Trajectory(
        prompt_id=response.prompt.prompt_id,
        sample=response.sample,
        prompt_tokens=response.prompt.tokens,
        response_tokens=response.tokens,
        is_finished=response.is_finished,
        response="",
        reward=0.0,
    )
