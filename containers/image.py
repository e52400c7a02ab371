"""Builds the image of a stack: `python3 containers/image.py STACK [OPTION ...]`, or `make image STACK=cu130`.

Options go to the engine, such as `--secret id=pip,src=pip.conf` for pip's own settings. A file that takes a
base without a digest, or that is not as recipes.py writes it, is not built.
"""

import subprocess
import sys
from collections.abc import Sequence

import pinned
import recipes
import runtime


def main() -> None:
    stacks = sorted(path.parent.name for path in recipes.CONTAINERS.glob("*/stack.toml"))
    if len(sys.argv) < 2 or sys.argv[1] not in stacks:
        sys.exit(f"Name a stack: {', '.join(stacks)}")
    engine = runtime.chosen()
    if engine == "venv":
        runtime.stop(
            "No docker, podman or apptainer works here. Without an image: "
            f"make bench STACK={sys.argv[1]} RUNTIME=venv"
        )
    print(f"{runtime.tag(sys.argv[1])}  {build(engine, sys.argv[1], sys.argv[2:])}")


def build(engine: str, stack: str, more: Sequence[str]) -> str:
    """Build the image, and return its digest."""
    name = "miniverl.def" if engine == "apptainer" else "Containerfile"
    path = recipes.CONTAINERS / stack / name
    pinned.refuse_unpinned(path)
    write = recipes.definition if engine == "apptainer" else recipes.containerfile
    if path.read_text() != write(recipes.base(), recipes.stack_of(stack)):
        runtime.stop(f"{path.name} of {stack} is not as it is written: make recipes")
    runtime.sif(stack).parent.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(runtime.build_command(engine, stack, revision(), more), check=False)
    digest = runtime.digest(engine, stack) if done.returncode == 0 else None
    if digest is None:
        runtime.stop(
            f"{engine} stopped with exit code {done.returncode}; its own words stand above."
        )
    return digest


def revision() -> str:
    """The commit that the code is copied from, `-dirty` where it was changed since."""
    git = ["git", "-C", str(runtime.ROOT)]
    commit, status = (
        subprocess.run([*git, *asks], check=False, capture_output=True, text=True)
        for asks in (("rev-parse", "HEAD"), ("status", "--porcelain"))
    )
    if commit.returncode != 0:
        return "unknown"
    return commit.stdout.strip() + ("-dirty" if status.stdout.strip() else "")


if __name__ == "__main__":
    main()
