"""A scorer of the engine's as a reward function of upstream's: one file of Python, that needs nothing of ours.

The file is the text of the module that the rule stands in, and below it the function that upstream calls
(verl/trainer/ppo/reward.py:45). Nothing is run to make it.
"""

from collections.abc import Mapping
from importlib.resources import files

from miniverl.compiler.handoff import SCORE_NAME
from miniverl.engine.problem import Problem, Refused
from miniverl.engine.recipe import Reward

# Scorer -> the module of the engine that holds its rule, and the rule; None: upstream scores so by itself.
_RULES: Mapping[str, tuple[str, str] | None] = {
    "last_number": ("reward_text", "last_number_equals"),
    "exact_answer": ("reward_text", "exact_answer"),
    "gsm8k": ("reward_math", "gsm8k"),
    "gsm8k_flexible": ("reward_math", "gsm8k_flexible"),
    "math": ("reward_math", "math"),
    "math_dapo": ("reward_math", "math_dapo"),
    "math_verify": ("reward_math_verify", "math_verify"),
    "by_data_source": None,
    "function": None,
    "reward_model": None,
}


def writes_score(reward: Reward) -> bool:
    """Whether the bundle needs a reward function. Raises Refused for a scorer that upstream cannot be given."""
    if reward.scorer not in _RULES:
        problem = Problem(
            field="recipe.reward.scorer",
            value=reward.scorer,
            origin="recipe.json",
            reason="it counts tokens, and a reward function of upstream's is given text alone",
            fix="Train with a reward function of yours, which both can call",
        )
        raise Refused([problem])
    return _RULES[reward.scorer] is not None


def text(scorer: str) -> str:
    """The file's text."""
    rule = _RULES[scorer]
    assert rule is not None, "called for what `writes_score` says yes to"
    module, name = rule
    source = (files("miniverl.engine") / f"{module}.py").read_text("utf-8")
    return f'''{source}

def {SCORE_NAME}(data_source, solution_str, ground_truth, extra_info=None, **others):
    """What verl calls for each response; miniverl's scorer {scorer}."""
    return {name}(solution_str, ground_truth)
'''
