"""Trajectories of a run by worst, best, or changed: the same prompt at different steps, answered otherwise.

Read from the logs as they are, so a run that goes on, or that was killed, can be looked at too.
"""

import heapq
import importlib.util
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from miniverl.bench import run_folder
from miniverl.bench.run_folder import State
from miniverl.engine.problem import Problem, Refused, WrongCall

LOGS = {False: "trajectories.jsonl", True: "validation.jsonl"}  # by whether it is validation

_SHOWN_CHARACTERS = 600


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """One trajectory. `advantage`: mean over the tokens of its response; validation has none, and no prompt's tokens."""

    step: int
    prompt_id: int
    sample: int
    prompt_tokens: tuple[int, ...] | None
    response: str
    response_tokens: int
    finished: bool
    reward: float
    advantage: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Changed:
    """Two answers to one prompt, of one sample, at two steps."""

    then: Seen
    now: Seen


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """How many of each. `step`: of this step alone; what changed, against the time before it that the prompt came."""

    worst: int
    best: int
    changed: int
    step: int | None
    validation: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Inspection:
    folder: Path
    state: State
    log: str
    num_trajectories: int
    torn_bytes: int
    worst: Sequence[Seen]
    best: Sequence[Seen]
    changed: Sequence[Changed]
    prompts: (
        Mapping[tuple[int, ...], str] | None
    )  # texts by tokens; None where the tokenizer is not there
    why_no_prompts: str | None


def inspect(folder: Path, wanted: Wanted) -> Inspection:
    """Raises WrongCall where there is no run or no such step, Refused where a log is damaged."""
    run_folder.require_run(folder)
    path = folder / LOGS[wanted.validation]
    every = [seen(path, *numbered) for numbered in enumerate(run_folder.rows(path), start=1)]
    if wanted.step is not None:
        _require_step(folder, wanted.step, {each.step for each in every})
    chosen = [each for each in every if wanted.step in (None, each.step)]
    worst = heapq.nsmallest(wanted.worst, chosen, key=lambda each: (*_rank(each), -each.step))
    best = heapq.nlargest(wanted.best, chosen, key=lambda each: (*_rank(each), each.step))
    changed = heapq.nlargest(wanted.changed, _pairs(every, wanted.step), key=_weight)
    shown = [*worst, *best, *(each.now for each in changed)]
    prompts, why = prompt_texts(folder, {each.prompt_tokens for each in shown} - {None})
    return Inspection(
        folder=folder,
        state=run_folder.state(folder),
        log=path.name,
        num_trajectories=len(chosen),
        torn_bytes=run_folder.torn_bytes(path),
        worst=worst,
        best=best,
        changed=changed,
        prompts=prompts,
        why_no_prompts=why,
    )


def plain(found: Inspection) -> dict[str, Any]:
    """As JSON values, whole texts."""
    return {
        "run": str(found.folder),
        "status": found.state.status,
        "step": found.state.step,
        "num_steps": found.state.num_steps,
        "log": found.log,
        "trajectories": found.num_trajectories,
        "torn_bytes": found.torn_bytes,
        "worst": [_plain(found, each) for each in found.worst],
        "best": [_plain(found, each) for each in found.best],
        "changed": [
            {"then": _plain(found, each.then), "now": _plain(found, each.now)}
            for each in found.changed
        ],
    }


def lines(found: Inspection) -> Iterator[str]:
    """For a terminal: what would steer it is shown by its number, and long texts are cut."""
    steps = "?" if found.state.num_steps is None else found.state.num_steps
    yield f"run       {found.folder}: {found.state.status}, step {found.state.step} of {steps}"
    yield f"read      {found.num_trajectories} trajectories of {found.log}"
    if found.torn_bytes:
        yield f"          its last line is torn ({found.torn_bytes} bytes), and left out"
    if found.why_no_prompts:
        yield f"prompts   by number: {found.why_no_prompts}"
    for title, group in (("worst", found.worst), ("best", found.best)):
        if group:
            yield from ("", title)
        for each in group:
            yield f"  step {each.step}  {_which(each)}  {_numbers(each)}"
            yield from _told("prompt", _prompt(found, each))
            yield from _told("response", each.response)
    if found.changed:
        yield from ("", "changed")
    for pair in found.changed:
        moved = f"reward {pair.then.reward:.3f} -> {pair.now.reward:.3f}"
        yield f"  step {pair.then.step} -> {pair.now.step}  {_which(pair.now)}  {moved}"
        yield from _told("prompt", _prompt(found, pair.now))
        yield from _told(f"step {pair.then.step}", pair.then.response)
        yield from _told(f"step {pair.now.step}", pair.now.response)


def printable(text: str) -> str:
    """A model may write anything: what moves a cursor, or turns the direction of writing, is shown as its number."""
    return "".join(
        each if each.isprintable() or each == "\n" else each.encode("unicode_escape").decode()
        for each in text
    )


def seen(path: Path, number: int, row: Mapping[str, Any]) -> Seen:
    """Line `number` of the log. Raises Refused where it lacks something."""
    tokens, advantages = row.get("prompt_tokens"), row.get("advantages")
    try:
        return Seen(
            step=row["step"],
            prompt_id=row["prompt_id"],
            sample=row["sample"],
            prompt_tokens=None if tokens is None else tuple(tokens),
            response=row["response"],
            response_tokens=len(row["response_tokens"]),
            finished=row["finished"],
            reward=row["reward"],
            advantage=fmean(advantages) if advantages else None,
        )
    except KeyError as error:
        raise Refused([run_folder.broken(path, number, f"it has no {error}")]) from error


def prompt_texts(
    folder: Path, wanted: Iterable[Any]
) -> tuple[Mapping[tuple[int, ...], str] | None, str | None]:
    """What the policy was given, special tokens and all; the tokenizer is that of the bound model."""
    bindings = folder / "bindings.json"
    if not bindings.is_file():
        return None, "the run has no bindings.json, which says where the model is"
    path = Path(json.loads(bindings.read_text("utf-8"))["model"]) / "tokenizer.json"
    if not path.is_file():
        return None, f"there is no {path}"
    if importlib.util.find_spec("tokenizers") is None:  # as in an installation that only compiles
        return None, "the package tokenizers is not installed"
    from tokenizers import Tokenizer

    decode: Callable[..., str] = Tokenizer.from_file(str(path)).decode
    return {each: decode(list(each), skip_special_tokens=False) for each in wanted}, None


def _rank(each: Seen) -> tuple[float, float]:
    return each.reward, each.advantage or 0.0


def _pairs(seen: Iterable[Seen], step: int | None) -> Iterator[Changed]:
    """First and last answer of each prompt and sample; with a step, its answer and the one before it."""
    first: dict[tuple[int, int, int], Seen] = {}
    last: dict[tuple[int, int, int], Seen] = {}
    counted: Counter[tuple[int, int, int]] = (
        Counter()
    )  # a prompt that is drawn twice in a step has two
    for each in seen:
        at = (each.step, each.prompt_id, each.sample)
        key = (each.prompt_id, each.sample, counted[at])
        counted[at] += 1
        if step is None:
            first.setdefault(key, each)
            last[key] = each
        elif each.step < step:
            first[key] = each
        elif each.step == step:
            last[key] = each
    for key, now in last.items():
        then = first.get(key)
        if then is not None and (then.response, then.reward) != (now.response, now.reward):
            yield Changed(then=then, now=now)


def _weight(pair: Changed) -> tuple[float, int]:
    """The reward that moved most counts most, then what is newer."""
    return abs(pair.now.reward - pair.then.reward), pair.now.step


def _require_step(folder: Path, step: int, known: set[int]) -> None:
    if step in known:
        return
    fix = f"Name one of {min(known)} to {max(known)}" if known else "Wait for its first step"
    problem = Problem(
        field="--step",
        value=step,
        origin="command line",
        reason=f"{folder} has no trajectories of that step",
        fix=fix,
    )
    raise WrongCall([problem])


def _plain(found: Inspection, each: Seen) -> dict[str, Any]:
    tokens = each.prompt_tokens
    return {
        "step": each.step,
        "prompt_id": each.prompt_id,
        "sample": each.sample,
        "prompt": None if tokens is None or found.prompts is None else found.prompts[tokens],
        "response": each.response,
        "response_tokens": each.response_tokens,
        "finished": each.finished,
        "reward": each.reward,
        "advantage": each.advantage,
    }


def _which(each: Seen) -> str:
    return f"prompt {each.prompt_id}, sample {each.sample}"


def _numbers(each: Seen) -> str:
    advantage = "" if each.advantage is None else f"  advantage {each.advantage:+.3f}"
    end = "" if each.finished else ", ended by the limit"
    return f"reward {each.reward:.3f}{advantage}  {each.response_tokens} tokens{end}"


def _prompt(found: Inspection, each: Seen) -> str | None:
    if each.prompt_tokens is None or found.prompts is None:
        return None
    return found.prompts[each.prompt_tokens]


def _told(name: str, text: str | None) -> Iterator[str]:
    """A text under its name, line by line."""
    if text is None:
        return
    cut = f" ... ({len(text)} characters)" if len(text) > _SHOWN_CHARACTERS else ""
    shown = (printable(text[:_SHOWN_CHARACTERS]) + cut).split("\n")
    yield f"    {name:<9} {shown[0]}"
    yield from (f"    {'':<9} {each}" for each in shown[1:])
