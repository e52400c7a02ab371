"""Runs miniverl on a stack: `python3 containers/launch.py STACK bench ...`, or `make bench STACK=cu130`.

In the stack's image where an engine works, which is built first if it is not there; else, or with RUNTIME=venv,
in an environment of its own beside .venv, filled from the same lock.
"""

import os
import subprocess
import sys
from pathlib import Path

import image
import runtime


def main() -> None:
    if len(sys.argv) < 3:
        sys.exit("Name a stack and a command: launch.py cu130 bench")
    stack, arguments = sys.argv[1], sys.argv[2:]
    if not (runtime.ROOT / "containers" / stack / "stack.toml").exists():
        runtime.stop(f"There is no stack {stack} in containers/.")
    engine = runtime.chosen()
    if engine == "venv":
        sys.exit(in_venv(stack, arguments))
    if runtime.digest(engine, stack) is None:
        image.build(engine, stack, ())
    sys.exit(runtime.run(engine, stack, arguments))


def in_venv(stack: str, arguments: list[str]) -> int:
    """The exit code of miniverl in the environment of that stack, which is filled first."""
    folder = venv(stack)
    settings = os.environ | {"MINIVERL_STACK": stack, "MINIVERL_VENV": folder.name}
    install = [sys.executable, str(runtime.ROOT / "containers" / "install.py"), "run"]
    done = subprocess.run(install, check=False, env=settings, stdout=sys.stderr)
    if done.returncode != 0:
        return done.returncode
    command = [str(folder / "bin" / "miniverl"), *arguments]
    os.execve(command[0], command, os.environ | {"PYTHONNOUSERSITE": "1"})


def venv(stack: str) -> Path:
    """`.venv` where it holds that stack, else one named after the stack."""
    own = runtime.ROOT / ".venv"
    if any(own.glob(f"installed-*/{stack}.txt")):
        return own
    return runtime.ROOT / f".venv-{stack}"


if __name__ == "__main__":
    main()
