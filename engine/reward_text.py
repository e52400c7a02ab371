r"""Rules that read the response as it stands: its last number, or the whole of it.

    last_number_equals   the last number has the value of the ground truth
    exact_answer         the response is the ground truth

Each takes the response and the ground truth, and is pure. The standard library alone: a handed-over run carries
the text of this module.
"""

import re
from decimal import Decimal

# A minus belongs to the number unless something it could be subtracted from stands right before it.
_NUMBER = re.compile(
    r"(?:(?<![\w)\]}.])[-\u2212])?"
    r"(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|(?<!\d)\.\d+)",
    re.ASCII,
)


def last_number_equals(response: str, truth: str) -> float:
    """1.0 if the last number of the response equals the ground truth, which is one number, in value; else 0.0.

    A number is ASCII digits, optionally with commas between groups of three, a decimal part, and a minus
    ("-" or U+2212) right before it that does not follow a word, a closing bracket or a full stop: "7-5" holds 7
    and 5, "= -5" holds -5, "1,234.50" is 1234.5, "12." is 12 at the end of a sentence, "1,2" is 1 and 2.
    Fractions and exponents are not read as one number: "1/2" ends in 2.
    """
    number = last_number(response)
    return float(number is not None and number == _value(str(truth).strip()))


def exact_answer(response: str, truth: str) -> float:
    """1.0 if the response is the ground truth, apart from white space around either; else 0.0."""
    return float(response.strip() == truth.strip())


def is_number(text: str) -> bool:
    """Whether the text, apart from white space around it, is one number."""
    return _NUMBER.fullmatch(text.strip()) is not None


def last_number(text: str) -> Decimal | None:
    """The last number in `text` as above; None if there is none."""
    numbers = _NUMBER.findall(text)
    return _value(numbers[-1]) if numbers else None


def _value(number: str) -> Decimal:
    return Decimal(number.replace(",", "").replace("\u2212", "-"))
