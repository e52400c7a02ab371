"""A record: one JSON document, read strictly, checked against its schema, and sealed by digests.

`complete` turns measured facts into a record; `validate` in validate.py says whether a record still is one.
"""

import json
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError

from miniverl.bench.comparability import sha256_of
from miniverl.bench.derive import derived
from miniverl.bench.finding import Coded, Finding, Mistake, finding, pointer
from miniverl.bench.privacy import scrubbed
from miniverl.engine.problem import Problem, Refused, WrongCall
from miniverl.engine.strict import strict_json

Json = Mapping[str, Any]

SCHEMA_VERSIONS = (1, 2)
KIND = "single_device_rl_workload"

_LARGEST_BYTES = 64 << 20  # a record of hundreds of launches has a tenth of it
_SEALS = ("block_sha256", "record_sha256")


def complete(measured: Json) -> dict[str, Any]:
    """The record of version 2 that `measured`, every field that is not derived, makes."""
    known = scrubbed({"schema_version": 2, "kind": KIND, "ext": {}, **measured})
    return seal(merged(known, derived(known)))


def seal(record: Json) -> dict[str, Any]:
    """The record with its digests: one for each block, so that a changed block is named, and one for all."""
    content = {name: block for name, block in record.items() if name not in _SEALS}
    content["block_sha256"] = {name: sha256_of(block) for name, block in content.items()}
    content["record_sha256"] = sha256_of(content)
    return content


def merged(into: Any, more: Any) -> Any:
    """`into` with the fields of `more`, at any depth; where both have a value, that of `more`."""
    if not isinstance(into, Mapping) or not isinstance(more, Mapping):
        return more
    return {**into, **{n: merged(into[n], v) if n in into else v for n, v in more.items()}}


def load_strict(path: Path) -> dict[str, Any]:
    """The JSON object in `path`.

    Raises WrongCall where the file cannot be read, and Refused where it is not strict JSON, or not an object.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST_BYTES + 1)
    except OSError as error:
        raise WrongCall([_unreadable(path, error)]) from error
    if len(content) > _LARGEST_BYTES:
        raise _no_record(path, "too_large", f"is larger than {_LARGEST_BYTES >> 20} MiB")
    return loads_strict(content, path)


def loads_strict(content: bytes, path: Path) -> dict[str, Any]:
    """The JSON object in `content`, read from `path`; raises Refused where it is not strict JSON, or no object."""
    try:
        value = strict_json(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise _no_record(path, "not_utf8", "is not UTF-8") from error
    except ValueError as error:
        raise _no_record(path, "not_strict_json", str(error)) from error
    if not isinstance(value, dict):
        raise _no_record(path, "no_object", "holds no object")
    return value


def schema_problems(record: Json, origin: str) -> list[Finding]:
    """Where the record is not what its schema version asks for."""
    version = record.get("schema_version")
    if version not in SCHEMA_VERSIONS or isinstance(version, bool):
        known = " and ".join(map(str, SCHEMA_VERSIONS))
        mistake = Mistake("/schema_version", version, f"only the versions {known} are known")
        return [finding("unknown_version", mistake, origin)]
    errors = sorted(_validator(version).iter_errors(record), key=lambda e: list(map(str, e.path)))
    told = dict.fromkeys(mistake for error in errors for mistake in _told(error))
    return [finding(code, mistake, origin) for code, mistake in told]


def seal_mistakes(record: Json) -> Iterator[Mistake]:
    """The blocks whose digest is not the one that the record was written with."""
    sealed, is_whole = seal(record), True
    for name in sorted(sealed["block_sha256"].keys() | record["block_sha256"].keys()):
        written, found = record["block_sha256"].get(name), sealed["block_sha256"].get(name)
        if written != found:
            is_whole = False
            reason = f"changed since the record was written: its digest is {found}"
            yield Mistake(f"/{name}", f"block_sha256 {written}", reason, found)
    if is_whole and record["record_sha256"] != sealed["record_sha256"]:
        expected = sealed["record_sha256"]
        reason = f"does not follow from the record: expected {expected}"
        yield Mistake("/record_sha256", record["record_sha256"], reason, expected)


@cache
def _validator(version: int) -> Draft202012Validator:
    schema = files("miniverl.bench") / "schemas" / f"record-v{version}.json"
    return Draft202012Validator(json.loads(schema.read_text(encoding="utf-8")))


def _told(error: ValidationError) -> Iterator[Coded]:
    """Each mistake in a schema error."""
    path = list(error.absolute_path)
    match error.validator:
        case "required":
            missing = [name for name in error.validator_value if name not in error.instance]
            # One error a name: jsonschema reports each of them with the whole list.
            name = next(name for name in missing if repr(name) in error.message)
            yield "missing_field", Mistake(pointer(*path, name), None, "missing field")
        case "additionalProperties" if error.validator_value is False:
            known = error.schema.get("properties", {})
            for name in sorted(set(error.instance) - set(known)):
                found = _short(error.instance[name])
                yield "unknown_field", Mistake(pointer(*path, name), found, "unknown field")
        case _:
            expected = error.schema.get("title")
            reason = f"expected {expected}" if expected else error.message[:300]
            yield "wrong_value", Mistake(pointer(*path), _short(error.instance), reason, expected)


def _short(value: Any) -> Any:
    """A value that fits into a sentence."""
    if isinstance(value, dict | list):
        return f"{type(value).__name__} of {len(value)}"
    return value[:100] if isinstance(value, str) else value


def _no_record(path: Path, code: str, reason: str) -> Refused:
    return Refused([finding(code, Mistake("", str(path), reason), str(path))])


def _unreadable(path: Path, error: OSError) -> Problem:
    return Problem(
        field="record",
        value=str(path),
        origin=str(path),
        reason=f"cannot be read: {error.strerror}",
        fix="Give a record's path",
    )
