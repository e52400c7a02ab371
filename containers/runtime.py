"""What runs images here: docker, podman or apptainer, whichever works; RUNTIME names one, or `venv` for none.

buildah, which needs no engine and no rights, is taken only where RUNTIME says so: it isolates by chroot alone.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parents[1]
HOME = "/opt/miniverl"  # as recipes.py has it
CANNOT_HERE = 3
# The command that succeeds only where the engine can be used.
_WORKS = {
    "docker": ("docker", "info"),
    "podman": ("podman", "info"),
    "apptainer": ("apptainer", "--version"),
}
NAMES = (*_WORKS, "buildah", "venv")


def chosen() -> str:
    """The runtime to use: as RUNTIME says, else the first that works, else none."""
    asked = os.environ.get("RUNTIME", "")
    if asked and asked not in NAMES:
        stop(f"RUNTIME={asked}: there is no such runtime, but {', '.join(NAMES)}.")
    if asked and asked != "venv":
        if shutil.which(asked) is None:
            stop(f"RUNTIME={asked}: it is not installed. RUNTIME=venv needs no engine.")
        return asked
    return asked or next((name for name in _WORKS if _works(name)), "venv")


def build_command(runtime: str, stack: str, revision: str, more: Sequence[str]) -> list[str]:
    """How to build the image of a stack; `more` are options of the runtime, such as a secret."""
    folder = ROOT / "containers" / stack
    if runtime == "apptainer":
        built = [str(sif(stack)), str(folder / "miniverl.def")]
        return [
            "apptainer",
            "build",
            "--force",
            *more,
            "--build-arg",
            f"REVISION={revision}",
            *built,
        ]
    command = [runtime, "build", "--file", str(folder / "Containerfile"), "--tag", tag(stack)]
    command += ["--build-arg", f"REVISION={revision}", *more]
    if runtime == "buildah":
        command += ["--isolation", "chroot"]
    if runtime in ("buildah", "podman"):
        command += ["--timestamp", "315532800"]  # equal inputs, equal digest
    return [*command, str(ROOT)]


def digest(runtime: str, stack: str) -> str | None:
    """The image's digest, as only the outside knows it; None where there is no image."""
    if runtime == "apptainer":
        if not sif(stack).exists():
            return None
        with sif(stack).open("rb") as file:
            return "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()
    asks = ["image", "inspect", "--format", "{{.Id}}", tag(stack)]
    if runtime == "buildah":
        asks = ["inspect", "--type", "image", "--format", "{{.FromImageDigest}}", tag(stack)]
    answer = subprocess.run([runtime, *asks], check=False, capture_output=True, text=True)
    if answer.returncode != 0:
        return None
    return "sha256:" + answer.stdout.strip().removeprefix("sha256:")


def run(runtime: str, stack: str, arguments: Sequence[str]) -> int:
    """Run miniverl in the stack's image: cache and build/ are this machine's; its exit code."""
    known = digest(runtime, stack)
    assert known, f"there is no image {tag(stack)}"
    told = {"MINIVERL_IMAGE": tag(stack), "MINIVERL_IMAGE_DIGEST": known}
    cache = Path(os.environ.get("MINIVERL_CACHE") or Path.home() / ".cache" / "miniverl")
    mounts = {cache: "/cache", ROOT / "build": f"{HOME}/build"}
    for folder in mounts:
        folder.mkdir(parents=True, exist_ok=True)
    if runtime == "buildah":
        return _run_by_buildah(stack, arguments, told, mounts)
    return _call(run_command(runtime, stack, arguments, told, mounts))


def run_command(
    runtime: str,
    stack: str,
    arguments: Sequence[str],
    told: Mapping[str, str],
    mounts: Mapping[Path, str],
) -> list[str]:
    """Rights are the caller's own, so that what is written to build/ is theirs."""
    has_card = Path("/dev/nvidiactl").exists() or Path("/dev/dxg").exists()
    if runtime == "apptainer":
        command = ["apptainer", "exec", "--containall", "--pwd", HOME, *(["--nv"] * has_card)]
        command += [f"--env={name}={each}" for name, each in told.items()]
        command += [f"--bind={here}:{there}" for here, there in mounts.items()]
        return [*command, str(sif(stack)), "miniverl", *arguments]
    command = [runtime, "run", "--rm", "--interactive", "--init"]
    if runtime == "podman":
        command += ["--userns=keep-id", *(["--device=nvidia.com/gpu=all"] * has_card)]
    else:
        command += ["--gpus=all"] * has_card
    command += [f"--user={os.getuid()}:{os.getgid()}"]
    command += [f"--env={name}={each}" for name, each in told.items()]
    command += [f"--volume={here}:{there}" for here, there in mounts.items()]
    return [*command, tag(stack), *arguments]


def tag(stack: str) -> str:
    return f"miniverl:{stack}"


def sif(stack: str) -> Path:
    return ROOT / "build" / "images" / f"{stack}.sif"


def stop(sentence: str) -> NoReturn:
    print(sentence, file=sys.stderr)
    sys.exit(CANNOT_HERE)


def _run_by_buildah(
    stack: str, arguments: Sequence[str], told: Mapping[str, str], mounts: Mapping[Path, str]
) -> int:
    """It has no `run IMAGE`: a container is made, used and removed."""
    made = subprocess.run(
        ["buildah", "from", tag(stack)], check=True, stdout=subprocess.PIPE, text=True
    )
    container = made.stdout.strip()
    command = ["buildah", "run", "--isolation", "chroot", f"--user={os.getuid()}:{os.getgid()}"]
    command += [f"--env={name}={each}" for name, each in told.items()]
    command += [f"--volume={here}:{there}" for here, there in mounts.items()]
    try:
        return _call([*command, container, "--", "miniverl", *arguments])
    finally:
        subprocess.run(["buildah", "rm", container], check=True, stdout=subprocess.DEVNULL)


def _call(command: Sequence[str]) -> int:
    """Ctrl-C reaches the command too, which ends by itself; its exit code is waited for."""
    process = subprocess.Popen(command)
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            continue


def _works(name: str) -> bool:
    if shutil.which(name) is None:
        return False
    return subprocess.run(_WORKS[name], check=False, capture_output=True).returncode == 0
