"""Statistics against closed forms and printed tables."""

import math
import random

import pytest

from miniverl.bench.stats import holm, incomplete_beta, t_quantile, t_tail, welch


@pytest.mark.parametrize("t", [-3.0, -0.5, 0.0, 0.1, 1.0, 12.7])
def test_student_with_one_degree_of_freedom_is_cauchy(t: float) -> None:
    assert t_tail(t, 1) == pytest.approx(0.5 - math.atan(t) / math.pi, abs=1e-14)


@pytest.mark.parametrize("t", [-3.0, 0.2, 1.0, 4.3])
def test_student_with_two_degrees_of_freedom_has_a_closed_form(t: float) -> None:
    assert t_tail(t, 2) == pytest.approx(0.5 - t / (2 * math.sqrt(2 + t * t)), abs=1e-14)


@pytest.mark.parametrize(
    ("probability", "degrees_of_freedom", "printed"),
    [
        (0.975, 1, 12.706),
        (0.975, 4, 2.776),
        (0.975, 10, 2.228),
        (0.95, 8, 1.860),
        (0.995, 30, 2.750),
        (0.975, 120, 1.980),
        (0.025, 4, -2.776),
        (0.5, 7, 0.0),
    ],
)
def test_quantiles_are_those_of_the_printed_table(
    probability: float, degrees_of_freedom: float, printed: float
) -> None:
    assert t_quantile(probability, degrees_of_freedom) == pytest.approx(printed, abs=6e-4)


def test_quantile_inverts_the_tail_at_fractional_degrees_of_freedom() -> None:
    for degrees_of_freedom in (1.3, 4.7, 7.99, 55.5):
        quantile = t_quantile(0.975, degrees_of_freedom)
        assert t_tail(quantile, degrees_of_freedom) == pytest.approx(0.025, rel=1e-12)


def test_incomplete_beta_of_whole_numbers_is_a_binomial_tail() -> None:
    # I_x(2, 3) is the chance of at least 2 successes in 4 trials of probability x.
    x = 0.3
    tail = sum(math.comb(4, k) * x**k * (1 - x) ** (4 - k) for k in (2, 3, 4))
    assert incomplete_beta(2, 3, x) == pytest.approx(tail, rel=1e-14)
    assert incomplete_beta(3, 2, 1 - x) == pytest.approx(1 - tail, rel=1e-14)


def test_welch_of_equal_sizes_and_variances_is_the_pooled_test() -> None:
    # Logarithms 0, 1, 2 and 1, 2, 3: difference 1, variance 1 each, error sqrt(2/3), 4 degrees of freedom.
    a, b = [1.0, math.e, math.e**2], [math.e, math.e**2, math.e**3]
    result = welch(a, b)
    assert result.difference == pytest.approx(1)
    assert result.standard_error == pytest.approx(math.sqrt(2 / 3))
    assert result.degrees_of_freedom == pytest.approx(4)
    low, high = result.interval(0.95)
    assert high - low == pytest.approx(2 * 2.7764451 * math.sqrt(2 / 3))
    assert result.p_above(0) == pytest.approx(t_tail(1 / math.sqrt(2 / 3), 4))
    assert result.p_below(0) == pytest.approx(1 - result.p_above(0))


def test_values_that_do_not_vary_leave_no_doubt() -> None:
    result = welch([2.0, 2.0], [3.0, 3.0])
    assert result.interval(0.95) == pytest.approx((math.log(1.5), math.log(1.5)))
    assert (result.p_above(0.1), result.p_below(0.1)) == (0.0, 1.0)


def test_exchanging_the_sides_turns_the_interval_around() -> None:
    draw = random.Random(1)
    a, b = ([draw.lognormvariate(0, 0.1) for _ in range(5)] for _ in range(2))
    low, high = welch(a, b).interval(0.95)
    assert welch(b, a).interval(0.95) == pytest.approx((-high, -low))


def test_holm_is_the_textbook_example() -> None:
    # Sorted 0.005, 0.01, 0.03, 0.04 times 4, 3, 2, 1 and never falling: 0.02, 0.03, 0.06, 0.06.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []
