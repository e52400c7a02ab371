"""A comparison of releases as text: a few lines for a terminal, a Markdown page for the docs."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

_CHANGES = {
    "added": "a leaf that the rules do not take",
    "removed": "its leaf is gone",
    "default": "another default",
    "readers": "read in other places",
    "read": "read for the first time",
    "functions": "a function that reads it computes something else",
}


def lines(compared: Mapping[str, Any]) -> list[str]:
    """What is told on a terminal."""
    counts = Counter(row["change"] for row in compared["touched"])
    told = [
        f"verl {compared['pin']['verl']} -> {compared['against']['verl']}, as {compared['profile']} judges",
        f"leaves      {len(compared['added_leaves'])} added, {len(compared['removed_leaves'])} removed",
        f"defaults    {len(compared['changed_defaults'])} changed",
        f"functions   {len(compared['changed_functions'])} of the algorithms changed",
    ]
    told += [f"touched     {counts[change]:4} {text}" for change, text in _CHANGES.items()]
    return told


def verdict(compared: Mapping[str, Any]) -> str:
    touched = compared["touched_verdicts"]
    if touched:
        return f"{touched} verdicts are touched: verl {compared['against']['verl']} is not what is judged here."
    return f"No verdict is touched by verl {compared['against']['verl']}."


def page(compared: Mapping[str, Any]) -> str:
    """The whole comparison as Markdown."""
    pin, against = compared["pin"], compared["against"]
    parts = [
        f"# What verl {against['verl']} changes",
        "",
        f"Written by `miniverl drift --against verl=={against['verl']} -o docs/drift.md`, from the wheels of both",
        "releases; nothing of either is run. [compile.md](compile.md#drift) says what it means here.",
        "",
        "| verl | wheel, sha256 |",
        "|---|---|",
        f"| {pin['verl']}, the pin | `{pin['wheel_sha256']}` |",
        f"| {against['verl']} | `{against['wheel_sha256']}` |",
        "",
        verdict(compared),
        "",
        *_leaves(compared),
        *_functions(compared["changed_functions"]),
        *_touched(compared["touched"]),
    ]
    return "\n".join(parts).rstrip() + "\n"


def _leaves(compared: Mapping[str, Any]) -> Iterator[str]:
    for title, fields in (
        ("Added leaves", compared["added_leaves"]),
        ("Removed leaves", compared["removed_leaves"]),
    ):
        yield from (f"## {title}: {len(fields)}", "")
        for section, inside in groupby(fields, key=lambda field: str(field).rpartition(".")[0]):
            names = ", ".join(f"`{field.rpartition('.')[2]}`" for field in inside)
            yield f"- `{section}`: {names}"
        yield ""
    changed = compared["changed_defaults"]
    yield from (f"## Changed defaults: {len(changed)}", "")
    for row in changed:
        yield f"- `{row['field']}`: `{row['before']}` to `{row['after']}`"
    yield ""


def _functions(changed: Sequence[Mapping[str, str]]) -> Iterator[str]:
    yield from (f"## Changed functions of the algorithms: {len(changed)}", "")
    for file, rows in groupby(changed, key=lambda row: row["file"]):
        yield f"- `{file}`: " + ", ".join(f"`{row['function']}` {row['change']}" for row in rows)
    yield ""


def _touched(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield from ("## Touched verdicts", "", "Added leaves aside, which stand above.", "")
    yield from ("| field | class as shipped | change | where |", "|---|---|---|---|")
    for row in rows:
        if row["change"] != "added":
            where = "; ".join(f"`{place}`" for place in row["where"])
            change = _CHANGES[row["change"]]
            yield f"| `{row['field']}` | {row['classification']} | {change} | {where} |"
