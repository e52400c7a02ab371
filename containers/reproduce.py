"""Builds an image twice, without an engine and without a registry, and runs it: `make image-check`.

    python3 containers/reproduce.py [STACK]      # needs buildah and mmdebstrap, and rights to make device files

The Containerfile is the one that is committed; in place of its base stands a Debian of the same release, made
here. Equal inputs must give an equal digest. Of the base itself nothing is shown: only the registry has it.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

import image
import pinned
import recipes
import runtime

FOLDER = runtime.ROOT / "build" / "image-check"
EPOCH = "315532800"
# What the base must have of what the official one has: a Python that can make environments.
PACKAGES = "python3,python3-venv,ca-certificates"
RUNS = (["doctor"], ["--help"])


def main() -> None:
    stack = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    missing = [name for name in ("buildah", "mmdebstrap") if shutil.which(name) is None]
    if missing:
        runtime.stop(
            f"{' and '.join(missing)} not installed. On Debian: apt install buildah mmdebstrap"
        )
    FOLDER.mkdir(parents=True, exist_ok=True)
    base = build_base()
    digests = [build(stack, base, number) for number in (1, 2)]
    for digest in digests:
        print(digest)
    if digests[0] != digests[1]:
        sys.exit("The same inputs gave two digests.")
    for arguments in RUNS:
        run(stack, arguments)
    print(f"{stack}: built twice with one digest, and it runs")


def build_base() -> str:
    """A root folder of Debian's packages as an image."""
    tar = FOLDER / "rootfs.tar"
    if not tar.exists():
        command = ["mmdebstrap", "--variant=minbase", f"--include={PACKAGES}", debian(), str(tar)]
        timed("rootfs", command, os.environ | {"SOURCE_DATE_EPOCH": EPOCH})
    (FOLDER / "Containerfile").write_text("FROM scratch\nADD rootfs.tar /\n")
    timed("base", [*buildah(), "build", "--timestamp", EPOCH, "--tag", "base", str(FOLDER)])
    return "localhost/base"


def build(stack: str, base: str, number: int) -> str:
    """The digest of the stack's image on top of `base`, built from nothing else."""
    path = recipes.CONTAINERS / stack / "Containerfile"
    pinned.refuse_unpinned(path)
    secret, mounts = pip_settings()
    more = ["--no-cache", f"--from={base}", f"--secret=id=pip,src={secret}", *mounts]
    command = runtime.build_command("buildah", stack, image.revision(), more)
    timed(f"build {number}", [*buildah(), *command[1:]])
    asks = [*buildah(), "inspect", "--type", "image", "--format", "{{.FromImageDigest}}"]
    told = subprocess.run(
        [*asks, runtime.tag(stack)], check=True, stdout=subprocess.PIPE, text=True
    )
    return told.stdout.strip()


def run(stack: str, arguments: Sequence[str]) -> None:
    """miniverl in the image, as the user that the image names; ends the program where it fails."""
    made = subprocess.run(
        [*buildah(), "from", runtime.tag(stack)], check=True, stdout=subprocess.PIPE, text=True
    )
    container = made.stdout.strip()
    try:
        command = [*buildah(), "run", "--isolation", "chroot", container, "--", "miniverl"]
        timed(" ".join(arguments), [*command, *arguments])
    finally:
        subprocess.run([*buildah(), "rm", container], check=True, stdout=subprocess.DEVNULL)


def pip_settings() -> tuple[Path, list[str]]:
    """This machine's settings of pip for the build, and mounts of the local folders that they name."""
    asked = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    found = re.findall(r"^(?:global|:env:)\.([\w-]+)='(.*)'$", asked.stdout, re.MULTILINE)
    kept = {name: value for name, value in found if name not in ("constraint", "target", "user")}
    path = FOLDER / "pip.conf"
    path.write_text("\n".join(["[global]", *(f"{name} = {kept[name]}" for name in sorted(kept))]))
    places = [urlsplit(word) for value in kept.values() for word in value.split()]
    named = [Path(each.path) for each in places if not each.netloc and each.path.startswith("/")]
    # A file is seen with its folder, and an index with the files that lie beside it.
    folders = {path if path.is_dir() and path.name != "simple" else path.parent for path in named}
    return path, [f"--volume={folder}:{folder}:ro" for folder in sorted(folders) if folder.is_dir()]


def debian() -> str:
    """The release that the base's tag names last: 3.11-slim-bookworm."""
    return recipes.base().tag.rpartition("-")[2]


def buildah() -> list[str]:
    """With a store of its own, so that nothing else's images are touched."""
    return ["buildah", "--root", str(FOLDER / "store"), "--runroot", str(FOLDER / "runroot")]


def timed(what: str, command: Sequence[str], variables: dict[str, str] | None = None) -> None:
    began = time.monotonic()
    done = subprocess.run(command, check=False, env=variables, stdout=sys.stderr)
    print(f"{what}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    if done.returncode != 0:
        runtime.stop(f"{what} stopped with exit code {done.returncode}; its own words stand above.")


if __name__ == "__main__":
    main()
