"""Statistics of a comparison between two sets of launches: Welch's interval on logarithms, and Holm's correction.

Steps of one launch are not independent, so a launch is one value. Launch times are skewed and compared by
ratio, so the values are logarithms, and an interval for the difference of their means is one for the ratio
of geometric means. No scipy: Student's distribution comes from the continued fraction of the incomplete beta
function (DLMF 8.17.22).
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

_TINY = 1e-300
_ENOUGH = 1e-15


@dataclass(frozen=True, kw_only=True, slots=True)
class Welch:
    """Two samples of logarithms: the difference of means (B - A), its standard error and its freedom."""

    difference: float
    standard_error: float
    degrees_of_freedom: float

    def interval(self, confidence: float) -> tuple[float, float]:
        """Bounds that hold the true difference with this probability; equal where nothing varies."""
        reach = 0.0
        if self.standard_error > 0:
            reach = self.standard_error * t_quantile((1 + confidence) / 2, self.degrees_of_freedom)
        return self.difference - reach, self.difference + reach

    def p_above(self, bound: float) -> float:
        """One-sided p-value against 'the true difference is at most `bound`'; small: it is above."""
        if self.standard_error == 0:
            return 0.0 if self.difference > bound else 1.0
        return t_tail((self.difference - bound) / self.standard_error, self.degrees_of_freedom)

    def p_below(self, bound: float) -> float:
        """One-sided p-value against 'the true difference is at least `bound`'; small: it is below."""
        flipped = Welch(
            difference=-self.difference,
            standard_error=self.standard_error,
            degrees_of_freedom=self.degrees_of_freedom,
        )
        return flipped.p_above(-bound)


def welch(a: Sequence[float], b: Sequence[float]) -> Welch:
    """Welch (1947) on the logarithms of two samples of at least two positive values each."""
    logs_a, logs_b = [math.log(value) for value in a], [math.log(value) for value in b]
    of_a = statistics.variance(logs_a) / len(a)
    of_b = statistics.variance(logs_b) / len(b)
    spread = of_a + of_b
    freedom = math.inf
    if spread > 0:
        freedom = spread**2 / (of_a**2 / (len(a) - 1) + of_b**2 / (len(b) - 1))
    return Welch(
        difference=statistics.fmean(logs_b) - statistics.fmean(logs_a),
        standard_error=math.sqrt(spread),
        degrees_of_freedom=freedom,
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm (1979): p-values that hold for all questions together, in the order given."""
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def t_tail(t: float, degrees_of_freedom: float) -> float:
    """The probability that Student's variable exceeds t."""
    both = incomplete_beta(
        degrees_of_freedom / 2, 0.5, degrees_of_freedom / (degrees_of_freedom + t * t)
    )
    return both / 2 if t >= 0 else 1 - both / 2


def t_quantile(probability: float, degrees_of_freedom: float) -> float:
    """The value that Student's variable stays below with this probability (0 < probability < 1)."""
    if probability < 0.5:
        return -t_quantile(1 - probability, degrees_of_freedom)
    wanted = 1 - probability
    low, high = 0.0, 1.0
    while t_tail(high, degrees_of_freedom) > wanted:
        low, high = high, 2 * high
    while high - low > _ENOUGH * high:
        middle = (low + high) / 2
        if not low < middle < high:
            break
        if t_tail(middle, degrees_of_freedom) > wanted:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function I_x(a, b) for 0 <= x <= 1."""
    if x in (0.0, 1.0):
        return x
    # The fraction converges fast below the mean of the distribution; above it, use the other tail.
    if x > (a + 1) / (a + b + 2):
        return 1 - incomplete_beta(b, a, 1 - x)
    log_beta = math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
    front = math.exp(a * math.log(x) + b * math.log1p(-x) - log_beta) / a
    return front / _beta_fraction(a, b, x)


def _beta_fraction(a: float, b: float, x: float) -> float:
    """1 + d1/(1 + d2/(1 + ...)), evaluated from its head by Lentz's method (as modified by Thompson)."""
    value, c, d = 1.0, 1.0, 0.0
    for n in range(1, 1000):
        m = n // 2
        if n % 2:
            term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            term = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d = 1 + term * d
        d = 1 / (d if abs(d) > _TINY else _TINY)
        c = 1 + term / c
        c = c if abs(c) > _TINY else _TINY
        value *= c * d
        if abs(c * d - 1) < _ENOUGH:
            return value
    raise AssertionError(f"the fraction of I_{x}({a}, {b}) does not converge")
