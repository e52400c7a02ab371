"""Every launch that the corpus accepts as a workload of its own, `corpus-CASE`, at the size of corpus_runs.yaml."""

from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from miniverl.bench.document import load
from miniverl.compiler.corpus_cases import Case, corpus
from miniverl.compiler.suggest import did_you_mean
from miniverl.engine.problem import Problem, WrongCall

PREFIX = "corpus-"
_SMOLLM2 = "smollm2-135m-instruct"
# Models that a launch names besides the policy; one that scores leaves nothing to a scorer.
_MODELS: Mapping[str, Mapping[str, str | None]] = {
    "ppo": {"critic": _SMOLLM2},
    "grpo_reward_model": {"reward": None, "reward_model": "smollm2-135m-reward"},
}


def accepted() -> dict[str, Case]:
    """The cases that compile, by name."""
    return {case.name: case for case in corpus().cases if case.expected == "accepted"}


def document(name: str) -> dict[str, Any]:
    """The workload document of `corpus-CASE`; raises WrongCall where there is no such case."""
    cases, wanted = accepted(), name.removeprefix(PREFIX)
    if wanted not in cases:
        fix = did_you_mean(wanted, cases, f"Known: {', '.join(cases)}")
        reason = "the corpus has no such case, or does not accept it"
        raise WrongCall([_problem(name, reason, fix)])
    case = cases[wanted]
    plain = load(files("miniverl.bench") / "corpus_runs.yaml")
    added = [{"set": text, "why": case.shows or "the case itself"} for text in case.added]
    return {
        **plain,
        "name": name,
        "title": f"Corpus: {case.launch}" + (f", {case.shows}" if case.shows else ""),
        "launch": case.launch,
        "overrides": [*plain["overrides"], *added],
        "bindings": {**plain["bindings"], **_MODELS.get(case.launch, {})},
    }


def _problem(value: str, reason: str, fix: str) -> Problem:
    return Problem(field="workload", value=value, origin="command line", reason=reason, fix=fix)
