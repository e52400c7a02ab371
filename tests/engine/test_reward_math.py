"""The rules for final answers, by hand; tests/conformance compares them with the pinned upstream's."""

import pytest

from miniverl.engine.reward_math import gsm8k, gsm8k_flexible, math, math_dapo


@pytest.mark.parametrize(
    ("response", "truth", "reward"),
    [
        ("16 - 3 = 13\n#### 13", "13", 1.0),
        ("#### 1,234", "1234", 1.0),
        ("#### -5", "-5", 1.0),
        ("#### 1\n#### 2", "2", 1.0),
        ("#### 2\n#### 1", "2", 0.0),
        ("####13", "13", 0.0),
        ("#### 13.0", "13", 0.0),
        ("#### 13.", "13", 0.0),
        ("#### $13", "13", 0.0),
        ("the answer is 13", "13", 0.0),
        ("", "13", 0.0),
    ],
)
def test_gsm8k_wants_the_number_behind_four_hashes_to_the_letter(response, truth, reward):
    assert gsm8k(response, truth) == reward


def test_gsm8k_looks_at_the_last_300_characters_only():
    assert gsm8k("#### 13" + "." * 293, "13.") == 0.0
    assert gsm8k("#### 13" + " " * 293, "13") == 1.0
    assert gsm8k("#### 13" + " " * 294, "13") == 0.0


@pytest.mark.parametrize(
    ("response", "truth", "reward"),
    [
        ("the answer is 13", "13", 1.0),
        ("13 . . .", "13", 1.0),
        ("the answer is 13.", "13", 0.0),
        ("1,234", "1234", 0.0),
        (". .", ".", 1.0),
        ("none", "13", 0.0),
    ],
)
def test_gsm8k_flexible_takes_the_last_number_as_it_stands(response, truth, reward):
    assert gsm8k_flexible(response, truth) == reward


@pytest.mark.parametrize(
    ("response", "truth", "reward"),
    [
        (r"so \boxed{7}.", "7", 1.0),
        (r"\boxed{6} no, \boxed{7}", "7", 1.0),
        (r"\boxed{\dfrac{1}{2}}", r"\frac12", 1.0),
        (r"\boxed{1/2}", r"\frac{1}{2}", 1.0),
        (r"\boxed{0.5}", r"\frac12", 1.0),
        (r"\boxed{.5}", "0.5", 1.0),
        (r"\boxed{x = 3}", "3", 1.0),
        (r"\boxed{f(x) = 3}", "3", 0.0),
        (r"\boxed{5\text{ cm}}", "5", 1.0),
        (r"\boxed{90^\circ}", "90", 1.0),
        (r"\boxed{\left( 1, 2 \right)}", "(1,2)", 1.0),
        (r"\boxed{\sqrt3}", r"\sqrt{3}", 1.0),
        (r"\boxed{50\%}", "50", 1.0),
        (r"$\boxed 7$ is it", "7", 1.0),
        (r"\fbox{7}", "7", 0.0),
        (r"\boxed{7", "7", 0.0),
        (r"\boxed{1.0}", "1", 0.0),
        (r"\boxed{\frac}", r"\frac", 1.0),
        (r"\boxed{\frac}", r"\frac{1}{2}", 0.0),
        ("7", "7", 0.0),
    ],
)
def test_math_compares_the_last_boxed_answer_after_rewriting(response, truth, reward):
    assert math(response, truth) == reward


@pytest.mark.parametrize(
    ("response", "truth", "is_right", "prediction"),
    [
        ("Answer: 7", "7", True, "7"),
        ("answer : 6\nANSWER: 7", "7", True, "7"),
        ("Answer: $x = 1,000$", "1000", True, "1000"),
        ("Answer: \\boxed{12}", "12", True, "12"),
        ("Answer: \\frac12", "\\frac{1}{2}", True, "\\frac{1}{2}"),
        ("Answer: 12 dollars", "12", True, "12"),
        ("Answer: 8", "7", False, "8"),
        ("It is 7", "7", False, "[INVALID]"),
        ("Answer: 7" + " " * 300, "7", False, "[INVALID]"),
    ],
)
def test_math_dapo_wants_the_answer_behind_its_name(response, truth, is_right, prediction):
    score = 1.0 if is_right else -1.0
    assert math_dapo(response, truth) == {"score": score, "acc": is_right, "pred": prediction}
