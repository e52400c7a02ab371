"""Which images a Containerfile or an Apptainer definition takes without a digest: a tag may change, a digest not.

    python3 containers/pinned.py FILE...

Looked at: FROM, COPY --from, RUN --mount=from, the `# syntax=` line, and `From:` of a definition. A variable in
an image's name hides it, and counts as unpinned.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

CANNOT_HERE = 3
_DIGEST = re.compile(r"@sha256:[0-9a-f]{64}$")


def main() -> None:
    found = [f"{name}: {each}" for name in sys.argv[1:] for each in unpinned(Path(name))]
    if found:
        sys.exit("\n".join(found))


def unpinned(path: Path) -> list[str]:
    """The images in the file that have no digest."""
    text = path.read_text()
    images = _of_definition(text) if path.suffix == ".def" else _of_containerfile(text)
    return [image for image in images if not _DIGEST.search(image) or "$" in image]


def refuse_unpinned(path: Path) -> None:
    """End the program where an image has no digest."""
    if found := unpinned(path):
        print(f"{path.name} takes {', '.join(found)} without a digest.", file=sys.stderr)
        sys.exit(CANNOT_HERE)


def _of_containerfile(text: str) -> Iterator[str]:
    """Images from elsewhere: neither `scratch`, which is nothing, nor a stage of the same file."""
    stages = {"scratch"}
    for number, line in enumerate(text.splitlines()):
        syntax = re.match(r"#\s*syntax\s*=\s*(\S+)", line, re.IGNORECASE)
        if syntax and number == 0:
            yield syntax[1]
    for instruction in _instructions(text):
        verb, *words = instruction.split()
        named: list[str] = []
        if verb.upper() == "FROM":
            words = [word for word in words if not word.startswith("--")]
            named = words[:1]
        elif verb.upper() in ("COPY", "ADD"):
            named = [word.partition("=")[2] for word in words if word.startswith("--from=")]
        elif verb.upper() == "RUN":
            mounts = [word for word in words if word.startswith("--mount=")]
            named = [m[1] for mount in mounts if (m := re.search(r"[=,]from=([^,]+)", mount))]
        yield from (name for name in named if name not in stages and not name.isdigit())
        if verb.upper() == "FROM" and len(words) == 3:
            stages.add(words[2])


def _instructions(text: str) -> Iterator[str]:
    """Each instruction on one line, without comments."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\s*\n", " ", "\n".join(lines))
    yield from (line for line in joined.splitlines() if line.strip())


def _of_definition(text: str) -> Iterator[str]:
    """A definition may have several stages, each with its From."""
    for found in re.finditer(r"^\s*from:\s*(\S+)", text, re.IGNORECASE | re.MULTILINE):
        yield found[1]


if __name__ == "__main__":
    main()
