"""The record of version 1 inside a record: the record itself, or the one that it was migrated from.

Version 1 has the medians of one launch and no samples. Whatever reads records asks here first, so that a migrated
record is read as the one it was.
"""

from collections.abc import Mapping
from typing import Any

from miniverl.engine.strict import strict_json

Json = Mapping[str, Any]


def version1(record: Json) -> Json | None:
    """None: it never was of version 1."""
    if record["schema_version"] == 1:
        return record
    if "migrated_from" not in record:
        return None
    original: dict[str, Any] = strict_json(record["migrated_from"]["text"])
    return original
