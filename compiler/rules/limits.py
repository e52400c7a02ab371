"""Limits that several tables put on their leaves, each made for the field that it guards."""

import math
from collections.abc import Callable
from typing import Any

from miniverl.compiler.rule import Class, Limit


def is_whole(value: Any, at_least: int) -> bool:
    """A whole number of at least `at_least`; a truth value is none."""
    return type(value) is int and value >= at_least


LARGEST_WHOLE = 2**53 - 1  # readers of JSON, as recipes and records are, agree no further


def is_number(value: Any) -> bool:
    """A finite number that every reader of a recipe agrees on; a truth value is none."""
    if type(value) is int:
        return abs(value) <= LARGEST_WHOLE
    return type(value) is float and math.isfinite(value)


def whole(field: str, *, at_least: int) -> Limit:
    return Limit(
        accepts=lambda value: is_whole(value, at_least),
        because=f"upstream expects a whole number of at least {at_least} here",
        fix=f"Set {field} to a whole number of at least {at_least}",
    )


def seed(field: str) -> Limit:
    """The recipe is JSON, whose readers agree on whole numbers up to 2^53 - 1 only."""
    return Limit(
        accepts=lambda value: is_whole(value, 0) and value <= LARGEST_WHOLE,
        because="a seed is a whole number from 0 to 2^53 - 1 here",
        fix=f"Set {field} to such a number",
    )


def number(field: str, spelled: str, accepts: Callable[[float], bool]) -> Limit:
    """`spelled` is the range in words, as in "above 0"."""
    return Limit(
        accepts=lambda value: is_number(value) and accepts(value),
        because=f"only a finite number {spelled} has a meaning here",
        fix=f"Set {field} to a number {spelled}",
    )


def clip(field: str) -> Limit:
    """Null leaves it to another leaf."""
    return Limit(
        accepts=lambda bound: bound is None or (is_number(bound) and bound >= 0),
        because="a clip is the distance of the probability ratio from 1",
        fix=f"Set {field} to a number of at least 0, or to null",
    )


def truth(field: str) -> Limit:
    return Limit(
        accepts=lambda value: type(value) is bool,
        because="upstream expects True or False here",
        fix=f"Set {field} to True or False",
    )


def one_of(field: str, *accepted: str, because: str, otherwise: Class = Class.UNSUPPORTED) -> Limit:
    return Limit(
        accepts=lambda value: type(value) is str and value in accepted,
        because=because,
        fix=f"Set {field} to one of: {', '.join(accepted)}",
        otherwise=otherwise,
    )
