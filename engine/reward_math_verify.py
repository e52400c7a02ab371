r"""MATH answers compared as mathematics, by the package math-verify: 1/2 is 0.5, and (x+1)^2 is x^2+2x+1.

verl/utils/reward_score/math_verify.py:43 (v0.9.0). A module of its own: only here sympy is loaded.
"""

from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

_TRUTH = (LatexExtractionConfig(),)
_RESPONSE = (ExprExtractionConfig(), LatexExtractionConfig())


def math_verify(response: str, truth: str) -> float:
    """1.0 if anything that the response can be read as equals the ground truth, which is LaTeX; else 0.0.

    What math-verify cannot read, or takes more than its 5 seconds for, does not equal: on a slow machine a
    comparison may run out of them that does not elsewhere.
    """
    truths, responses = parse(f"\\boxed{{{truth}}}", _TRUTH), parse(response, _RESPONSE)
    return float(any(verify(right, read) for read in responses for right in truths))
