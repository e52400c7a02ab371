"""The corpus as text: a line for each case on a terminal, and the page docs/compatibility.md."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_STATUS = {
    "accepted": "accepted",
    "rejected": "rejected",
    "needs_user_input": "needs user input",
    "does_not_compose": "does not compose",
}
_CLASSES = (
    "exact",
    "semantically_conformant",
    "locally_lowered",
    "distributed_only",
    "informational_only",
)


def lines(manifest: Mapping[str, Any]) -> Iterator[str]:
    """A line for each case, then the counts."""
    for case in manifest["cases"]:
        mark = "" if case["is_as_expected"] else "   NOT AS EXPECTED"
        yield f"{case['name']:<34}{_STATUS[case['status']]}{mark}"
    counts = manifest["counts"]
    yield (
        f"{counts['cases']} cases: {counts['composed']} compose, {counts['accepted']} are accepted, "
        f"{counts['semantic_rejections']} are rejected for what they mean, "
        f"{counts['composition_rejections']} do not compose"
    )


def is_as_expected(manifest: Mapping[str, Any]) -> bool:
    """Whether every case, and every earlier profile, says what the corpus expects of it."""
    earlier = (one.get("is_as_expected", True) for one in manifest["earlier"].values())
    return all(case["is_as_expected"] for case in manifest["cases"]) and all(earlier)


def page(manifest: Mapping[str, Any]) -> str:
    """The whole corpus as Markdown."""
    parts = [
        "# Which upstream launches compile",
        "",
        "Written by `miniverl corpus`; `miniverl corpus --check` computes it again and compares every byte.",
        "",
        _summary(manifest),
        "",
        "## Official launches",
        "",
        *_table(case for case in manifest["cases"] if case["shows"] is None),
        "",
        *_sources(case for case in manifest["cases"] if case["shows"] is None),
        "",
        "## Derived launches",
        "",
        *_derived(case for case in manifest["cases"] if case["shows"] is not None),
        "",
        "## What is told of them",
        "",
        *_told(manifest["cases"]),
        "",
        "## Earlier profiles",
        "",
        *_earlier(manifest["earlier"]),
    ]
    return "\n".join(parts).rstrip() + "\n"


def _summary(manifest: Mapping[str, Any]) -> str:
    counts, verl = manifest["counts"], manifest["verl"]
    return (
        f"verl {verl['tag']} (`{verl['commit']}`), profile `{manifest['profile']}`, nothing bound. "
        f"Of {counts['cases']} cases {counts['composed']} compose and {counts['accepted']} are accepted; "
        f"{counts['semantic_rejections']} are rejected for what they mean, "
        f"{counts['composition_rejections']} do not compose. The composed configs are upstream's own, by "
        "digest."
    )


def _table(cases: Iterator[Mapping[str, Any]]) -> Iterator[str]:
    yield "| launch | | leaves | exact | conformant | lowered | distributed | informational | to bind |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for case in cases:
        classes = " | ".join(str(case["classes"].get(one, 0)) for one in _CLASSES)
        bindings = ", ".join(case["missing_bindings"])
        status = _STATUS[case["status"]]
        yield f"| `{case['name']}` | {status} | {case['leaves']} | {classes} | {bindings} |"


def _sources(cases: Iterator[Mapping[str, Any]]) -> Iterator[str]:
    yield "| launch | read from | sha256 | with |"
    yield "|---|---|---|---|"
    for case in cases:
        given = [f"`{name}={value}`" for name, value in sorted(case["environment"].items())]
        if case["date"] is not None:
            given.append(f"its time stamp as `{case['date']}`")
        yield (
            f"| `{case['name']}` | `{case['source_path']}` | `{case['source_sha256']}` | {', '.join(given)} |"
        )
        if case["readme"] is not None:
            readme = case["readme"]
            section = readme["section"].lstrip("# ")
            yield f"| | `{readme['path']}`, {section} | `{readme['sha256']}` | |"


def _derived(cases: Iterator[Mapping[str, Any]]) -> Iterator[str]:
    yield "| case | from | stated on top | shows | |"
    yield "|---|---|---|---|---|"
    for case in cases:
        added = "<br>".join(f"`{_cell(one)}`" for one in case["added_overrides"])
        status = _STATUS[case["status"]]
        yield f"| `{case['name']}` | `{case['launch']}` | {added} | {case['shows']} | {status} |"


def _told(cases: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Problems and warnings of every case that has any."""
    for case in cases:
        problems = [f"{one['field']}: {one['reason']}" for one in case["problems"]]
        if problems or case["warnings"]:
            yield f"`{case['name']}`"
            yield ""
            yield from (f"- problem: {_cell(one)}" for one in problems)
            yield from (f"- warning: {_cell(one)}" for one in case["warnings"])
            yield ""


def _earlier(earlier: Mapping[str, Any]) -> Iterator[str]:
    for profile, one in earlier.items():
        if "statuses" in one:
            yield (
                f"`{profile}` reads whole resolved files, and keeps rejecting what it never took: of "
                f"{one['cases']} cases {one['accepted']} are accepted and {one['rejected']} rejected."
            )
            yield ""
            yield "| case | |"
            yield "|---|---|"
            yield from (
                f"| `{name}` | {_STATUS[status]} |" for name, status in one["statuses"].items()
            )
        else:
            yield (
                f"`{profile}` reads a documented subset. An earlier program published counts of the official "
                f"launches under it; how it counted is not known. Ours: {one['rule']}."
            )
            yield ""
            yield "| | sources | cases | executable | rejected | unimplemented | lowered |"
            yield "|---|---|---|---|---|---|---|"
            for name in ("ours", "published"):
                numbers = one[name]
                columns = ("sources", "cases", "executable", "rejected", "unimplemented", "lowered")
                yield f"| {name} | " + " | ".join(str(numbers[key]) for key in columns) + " |"
        yield ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
