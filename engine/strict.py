"""JSON as every reader understands it: no key twice, no number that some of them cannot hold. Loads no torch."""

import json
from typing import Any, NoReturn

import rfc8785


def strict_json(text: str) -> Any:
    """The value in `text`.

    Raises ValueError, saying why, for text that is not JSON, and for twice the same key in an object, NaN,
    infinities, a number beyond double precision, or nesting deeper than Python follows.
    """
    try:
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
        rfc8785.dumps(value)
    except json.JSONDecodeError as error:
        raise ValueError(f"is not JSON: {error}") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is not strict JSON: {error}") from error
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) < len(pairs):
        names = [name for name, _ in pairs]
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(f"twice the same key: {', '.join(twice)}")
    return unique


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number in JSON")
