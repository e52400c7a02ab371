"""What a check finds in a record: a code, a JSON pointer, what stands there, what would be right, and the fix.

A code belongs to one layer, and the layers are passed in this order: what an outer one refuses, an inner one is
not asked about. json -> schema -> semantics -> identity -> privacy.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from miniverl.engine.problem import Problem

Layer = Literal["json", "schema", "semantics", "identity", "privacy"]

MEASURE_AGAIN = "Take the record as it was written, or measure again"
_NEWER = "Update miniverl, or take a record of a version that this one knows"
_STRICT = "Give a record as miniverl wrote it: one JSON object, UTF-8"
_PRIVATE = "Do not publish it; a record written by this version has such text replaced"


class Code(NamedTuple):
    """`rule` is what is expected wherever no single value is."""

    layer: Layer
    rule: str
    fix: str = MEASURE_AGAIN


CODES: Mapping[str, Code] = {
    "too_large": Code("json", "a file of at most 64 MiB", _STRICT),
    "not_utf8": Code("json", "UTF-8", _STRICT),
    "not_strict_json": Code("json", "JSON without NaN or a key that stands twice", _STRICT),
    "no_object": Code("json", "one JSON object", _STRICT),
    "unknown_version": Code("schema", "schema_version 1 or 2", _NEWER),
    "missing_field": Code("schema", "a field that the schema requires"),
    "unknown_field": Code("schema", "only fields that the schema names"),
    "wrong_value": Code("schema", "a value of the kind that the schema names"),
    "beyond_precision": Code("semantics", "a number that can be computed with"),
    "placeholder": Code("semantics", "text without an unfilled placeholder"),
    "no_such_time": Code("semantics", "a day and time that exist"),
    "derived_differs": Code("semantics", "what follows from the raw samples"),
    "clock_order": Code("semantics", "times that run forward, within their launch"),
    "wrong_count": Code("semantics", "counts that fit the recipe, and each other"),
    "memory_order": Code(
        "semantics", "peaks no lower than a sample; reserved no less than allocated"
    ),
    "wrong_telemetry": Code("semantics", "series of equal length, and the status that they have"),
    "contradiction": Code("semantics", "statements that agree with each other"),
    "limit_broken": Code("semantics", "numbers within the limit that they are said to keep"),
    "name_differs": Code("identity", "one name or digest in every place where it stands"),
    "output_differs": Code("identity", "equal digests of equal outputs"),
    "unknown_pin": Code("identity", "a pin that this version knows", _NEWER),
    "pin_differs": Code("identity", "the digest that the pin states"),
    "seal_broken": Code("identity", "the digest that the record was written with"),
    "private_path": Code("privacy", "no absolute path", _PRIVATE),
    "private_user": Code("privacy", "no name of a user", _PRIVATE),
    "private_host": Code("privacy", "no name or address of a host", _PRIVATE),
    "private_email": Code("privacy", "no e-mail address", _PRIVATE),
    "private_secret": Code("privacy", "no token, key or password", _PRIVATE),
    "private_hardware": Code("privacy", "a device's identifier as its sha256 only", _PRIVATE),
}


class Mistake(NamedTuple):
    """What one check yields; its code is that of the check. `expected` None: the rule of the code."""

    field: str  # a JSON pointer
    found: Any
    reason: str
    expected: Any = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding(Problem):
    """A Problem of a record: `field` is a JSON pointer, `value` what was found there."""

    code: str
    expected: Any

    @property
    def layer(self) -> Layer:
        return CODES[self.code].layer


def finding(code: str, mistake: Mistake, origin: str) -> Finding:
    known = CODES[code]
    return Finding(
        code=code,
        field=mistake.field,
        value=mistake.found,
        expected=known.rule if mistake.expected is None else mistake.expected,
        origin=origin,
        reason=mistake.reason,
        fix=known.fix,
    )


Coded = tuple[str, Mistake]


def coded(code: str, mistakes: Iterable[Mistake]) -> Iterator[Coded]:
    """Each mistake with the code of its check."""
    return ((code, mistake) for mistake in mistakes)


def pointer(*parts: str | int) -> str:
    """A JSON pointer (RFC 6901)."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts)
