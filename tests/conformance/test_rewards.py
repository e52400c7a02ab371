"""Scorers, the overlong penalty and what validation says, against the pinned wheel's own."""

from typing import Any

import pytest
import torch

from miniverl.engine.algorithm import OverlongPenalty
from miniverl.engine.gather import Judged
from miniverl.engine.reward import RULES_BY_SOURCE, overlong_penalty
from miniverl.engine.reward_math import gsm8k_flexible, math_dapo
from miniverl.engine.trajectory import Trajectory
from miniverl.engine.validation import validation_metrics

pytestmark = pytest.mark.slow

SCORE = "verl/utils/reward_score"
RULES = {
    "openai/gsm8k": ("scorer gsm8k", f"{SCORE}/gsm8k.py:49"),
    "lighteval/MATH": ("scorer math", f"{SCORE}/math_reward.py:17"),
    "math_dapo": ("scorer math_dapo", f"{SCORE}/math_dapo.py:245"),
}


@pytest.fixture(scope="module")
def observed(run_upstream) -> dict[str, Any]:
    return run_upstream("upstream_rewards.py")


def _differences(texts: list[dict[str, Any]], source: str) -> list[float]:
    rule, found = RULES_BY_SOURCE[source], []
    for each in texts:
        ours, theirs = rule(each["response"], each["truth"]), each[source]
        if isinstance(ours, dict):
            assert ours["pred"] == theirs["pred"]
            found += [abs(ours[name] - theirs[name]) for name in ("score", "acc")]
        else:
            found.append(abs(ours - theirs))
    return found


@pytest.mark.parametrize("source", RULES)
def test_scorers(observed, record, source):
    texts = observed["texts"]
    scores = [each[source] for each in texts]
    right = [each["acc"] if isinstance(each, dict) else each for each in scores]
    assert 50 < sum(right) < len(texts) - 50
    function, upstream = RULES[source]
    record(function, upstream, len(texts), max(_differences(texts, source)), 0.0)


def test_the_flexible_scorer(observed, record):
    texts = observed["texts"]
    apart = [abs(gsm8k_flexible(t["response"], t["truth"]) - t["flexible"]) for t in texts]
    record("scorer gsm8k_flexible", f"{SCORE}/gsm8k.py:49", len(texts), max(apart), 0.0)


def test_which_source_is_scored_by_which_rule(observed):
    for each in observed["texts"]:
        assert each["aime"] == math_dapo(each["response"], each["truth"])


def test_the_overlong_penalty(observed, record, largest_difference):
    """Upstream's is in float32."""
    cases = observed["penalties"]
    ours = [
        1
        + overlong_penalty(
            each["tokens"],
            OverlongPenalty(
                max_response_tokens=20, buffer_tokens=each["buffer"], factor=each["factor"]
            ),
        )
        for each in cases
    ]
    assert min(ours) < 0 < max(ours)
    apart = largest_difference(torch.tensor(ours), [each["given"] for each in cases])
    manager = "verl/experimental/reward_loop/reward_manager/dapo.py:108"
    record("overlong penalty", manager, len(cases), apart, 1e-6)


def _judged(given: dict[str, list[Any]], has_more: bool) -> list[Judged]:
    return [
        Judged(
            trajectory=Trajectory(
                prompt_id=int(prompt),
                sample=0,
                prompt_tokens=(1,),
                response_tokens=(2,),
                is_finished=True,
                response="",
                reward=given["reward"][index],
            ),
            extras={"acc": given["acc"][index]} if has_more else {},
            prediction=given["pred"][index] if has_more else None,
        )
        for index, prompt in enumerate(given["prompts"])
    ]


def test_what_validation_says(observed, record):
    apart, count = [], 0
    for case in observed["validations"]:
        given = case["given"]
        sources = {int(p): s for p, s in zip(given["prompts"], given["sources"], strict=True)}
        ours = validation_metrics(_judged(given, case["core"] == "acc"), sources)
        assert {f"val-{name}" for name in ours} == set(case["told"])
        apart += [abs(value - case["told"][f"val-{name}"]) for name, value in ours.items()]
        count += len(ours)
    names = "validation mean, std, best, worst, maj"
    record(names, "verl/trainer/ppo/metric_utils.py:896", count, max(apart), 0.0)
