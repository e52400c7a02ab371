"""`$(( ))` and `(( ))`: whole numbers of 64 bits, as bash computes them."""

import re
from collections.abc import Callable

MAX_DEPTH = 30

_TOKEN = re.compile(
    r"\s*(?:(\d+#[0-9a-zA-Z@_]+|0[xX][0-9a-fA-F]+|\d+)|([A-Za-z_]\w*(?:\[[^]]*\])?)|"
    r"(\*\*|<<=|>>=|\+\+|--|[-+*/%&|^]=|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%<>=!~&|^?:,()]))",
    re.ASCII,
)
# Loosest first; the comma, assignments and ?: stand apart.
_LEVELS: tuple[tuple[str, ...], ...] = (
    ("||",),
    ("&&",),
    ("|",),
    ("^",),
    ("&",),
    ("==", "!="),
    ("<", "<=", ">", ">="),
    ("<<", ">>"),
    ("+", "-"),
    ("*", "/", "%"),
)
_ASSIGNS = ("=", "+=", "-=", "*=", "/=", "%=", "<<=", ">>=", "&=", "|=", "^=")


class ArithmeticFault(Exception):
    """bash ends the command here: a division by zero, or no expression."""


class Arithmetic:
    """Evaluates one expression; `read` gives a variable's number, `write` sets it."""

    def __init__(
        self, expression: str, read: Callable[[str], int], write: Callable[[str, int], None]
    ) -> None:
        self._tokens = _tokens(expression)
        self._at = 0
        self._depth = 0
        self._read = read
        self._write = write
        self._is_live = True  # false in the operand that a ?: or && does not take

    def value(self) -> int:
        """The expression's value; 0 when it is empty. Raises ArithmeticFault."""
        if not self._tokens:
            return 0
        value = self._comma()
        if self._at < len(self._tokens):
            raise ArithmeticFault(f"`{self._tokens[self._at]}` is not expected there")
        return value

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _take(self) -> str:
        token = self._peek()
        self._at += 1
        return token

    def _comma(self) -> int:
        value = self._assignment()
        while self._peek() == ",":
            self._take()
            value = self._assignment()
        return value

    def _assignment(self) -> int:
        name = self._peek()
        operator = self._tokens[self._at + 1] if self._at + 1 < len(self._tokens) else ""
        if not _is_name(name) or operator not in _ASSIGNS:
            return self._ternary()
        self._at += 2
        value = self._nested(self._assignment)
        if operator != "=":
            value = self._binary(operator[:-1], self._variable(name), value)
        return self._assigned(name, value)

    def _ternary(self) -> int:
        condition = self._level(0)
        if self._peek() != "?":
            return condition
        self._take()
        first = self._choice(bool(condition), self._comma)
        if self._take() != ":":
            raise ArithmeticFault("a `?` without its `:`")
        second = self._choice(not condition, lambda: self._nested(self._ternary))
        return first if condition else second

    def _choice(self, is_taken: bool, operand: Callable[[], int]) -> int:
        """The operand's value; without effects where it is not taken."""
        was_live = self._is_live
        self._is_live = was_live and is_taken
        value = operand()
        self._is_live = was_live
        return value

    def _level(self, level: int) -> int:
        if level == len(_LEVELS):
            return self._power()
        left = self._level(level + 1)
        while (operator := self._peek()) in _LEVELS[level]:
            self._take()
            if operator == "||":
                right = self._choice(not left, lambda: self._level(level + 1))
                left = int(bool(left or right))
            elif operator == "&&":
                right = self._choice(bool(left), lambda: self._level(level + 1))
                left = int(bool(left and right))
            else:
                left = self._binary(operator, left, self._level(level + 1))
        return left

    def _power(self) -> int:
        base = self._unary()
        if self._peek() != "**":
            return base
        self._take()
        exponent = self._nested(self._power)
        if exponent < 0:
            raise ArithmeticFault("an exponent below zero")
        return _signed(pow(base, exponent, 1 << 64))

    def _unary(self) -> int:
        operator = self._peek()
        if operator in ("++", "--"):
            self._take()
            name = self._take()
            if not _is_name(name):
                raise ArithmeticFault(f"`{operator}` without a variable")
            return self._assigned(name, self._variable(name) + (1 if operator == "++" else -1))
        if operator in ("-", "+", "!", "~"):
            self._take()
            value = self._nested(self._unary)
            return {"-": _signed(-value), "+": value, "!": int(not value), "~": ~value}[operator]
        return self._primary()

    def _primary(self) -> int:
        token = self._take()
        if token == "(":
            value = self._nested(self._comma)
            if self._take() != ")":
                raise ArithmeticFault("a parenthesis that is never closed")
            return value
        if _is_name(token):
            value = self._variable(token)
            if self._peek() in ("++", "--"):
                step = 1 if self._take() == "++" else -1
                self._assigned(token, value + step)
            return value
        if token[:1].isdigit():
            return number(token)
        raise ArithmeticFault(
            f"`{token}` is not expected there" if token else "an operand is missing"
        )

    def _nested(self, operand: Callable[[], int]) -> int:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ArithmeticFault(f"an expression more than {MAX_DEPTH} deep")
        value = operand()
        self._depth -= 1
        return value

    def _variable(self, name: str) -> int:
        return self._read(name) if self._is_live else 0

    def _assigned(self, name: str, value: int) -> int:
        if self._is_live:
            self._write(name, _signed(value))
        return _signed(value)

    def _binary(self, operator: str, left: int, right: int) -> int:
        if operator in ("/", "%"):
            if right == 0:
                if self._is_live:
                    raise ArithmeticFault("a division by zero")
                return 0
            quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
            return _signed(quotient if operator == "/" else left - quotient * right)
        return _signed(_OPERATIONS[operator](left, right))


_OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "|": lambda left, right: left | right,
    "^": lambda left, right: left ^ right,
    "&": lambda left, right: left & right,
    "==": lambda left, right: left == right,
    "!=": lambda left, right: left != right,
    "<": lambda left, right: left < right,
    "<=": lambda left, right: left <= right,
    ">": lambda left, right: left > right,
    ">=": lambda left, right: left >= right,
    "<<": lambda left, right: left << (right & 63),
    ">>": lambda left, right: left >> (right & 63),
    "+": lambda left, right: left + right,
    "-": lambda left, right: left - right,
    "*": lambda left, right: left * right,
}


def number(token: str) -> int:
    """`10`, `010` (eight), `0x10`, `16#ff`. Raises ArithmeticFault."""
    try:
        if "#" in token:
            base, _, digits = token.partition("#")
            return _signed(int(digits, int(base)))
        if token[:2] in ("0x", "0X"):
            return _signed(int(token, 16))
        if token.startswith("0") and len(token) > 1:
            return _signed(int(token, 8))
        return _signed(int(token[:4000]))
    except ValueError:
        raise ArithmeticFault(f"`{token}` is no number") from None


def _signed(value: int) -> int:
    """Wrapped to 64 bits."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def _is_name(token: str) -> bool:
    return token[:1].isalpha() or token[:1] == "_"


def _tokens(expression: str) -> list[str]:
    tokens, at = [], 0
    expression = expression.strip()
    while at < len(expression):
        found = _TOKEN.match(expression, at)
        if found is None:
            raise ArithmeticFault(f"`{expression[at : at + 20]}` is no arithmetic")
        tokens.append(found[1] or found[2] or found[3])
        at = found.end()
    return tokens
