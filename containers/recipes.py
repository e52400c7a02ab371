"""Writes each stack's Containerfile and miniverl.def from base.toml, its stack.toml and its lock.

    python3 containers/recipes.py

`make lock` and `make pin-images` end with it. Both files start from the same digest, install the same
lock with containers/install.py, and hold the same settings, since both are filled from one place.
"""

import hashlib
import tomllib
from dataclasses import dataclass
from pathlib import Path

CONTAINERS = Path(__file__).resolve().parent

HOME = "/opt/miniverl"
CODE = ("bench", "compiler", "engine")
# Bytes of an image follow from its inputs: no time of day, no order of a hash table, no cache of pip.
# Compiled files are made at the end and never checked against the time of their source.
BUILD = (
    "SOURCE_DATE_EPOCH=315532800 PYTHONHASHSEED=0 PYTHONDONTWRITEBYTECODE=1 "
    "PIP_NO_COMPILE=1 PIP_NO_CACHE_DIR=1"
)
# Templates that no Python can compile lie among the packages: their errors do not count.
COMPILE = (
    ".venv/bin/python -m compileall -q -f --invalidation-mode unchecked-hash "
    '"$(python3 -c \'import sysconfig; print(sysconfig.get_path("stdlib"))\')" '
    f".venv {' '.join(CODE)} >/dev/null 2>&1 || true"
)


@dataclass(frozen=True)
class Base:
    image: str
    tag: str
    digest: str


@dataclass(frozen=True)
class Stack:
    name: str
    title: str
    cuda: str | None
    lock_sha256: str

    @property
    def settings(self) -> dict[str, str]:
        """What every process in the image is started with."""
        visible = {"NVIDIA_VISIBLE_DEVICES": "void"}  # no card, whatever the machine has
        if self.cuda:
            visible = {
                "NVIDIA_VISIBLE_DEVICES": "all",
                "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
                # Any driver of the same major CUDA will do: the runtime comes with the wheels.
                "NVIDIA_REQUIRE_CUDA": f"cuda>={self.cuda.partition('.')[0]}.0",
            }
        return visible | {
            "HOME": "/tmp",
            "USER": "miniverl",  # the number that it runs as has no name in the image
            "MINIVERL_CACHE": "/cache",
            "MINIVERL_IMAGE": f"miniverl:{self.name}",
            "PYTHONNOUSERSITE": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
        }


def main() -> None:
    for path in sorted(CONTAINERS.glob("*/stack.toml")):
        stack = stack_of(path.parent.name)
        (path.parent / "Containerfile").write_text(containerfile(base(), stack))
        (path.parent / "miniverl.def").write_text(definition(base(), stack))


def base() -> Base:
    return Base(**tomllib.loads((CONTAINERS / "base.toml").read_text()))


def stack_of(name: str) -> Stack:
    stated = tomllib.loads((CONTAINERS / name / "stack.toml").read_text())
    lock = (CONTAINERS / "locks" / f"{name}.txt").read_bytes()
    return Stack(name, stated["title"], stated.get("cuda"), hashlib.sha256(lock).hexdigest())


def containerfile(base: Base, stack: Stack) -> str:
    """For docker, podman and buildah. The stack comes before the code, which changes more often."""
    lock = f"containers/locks/{stack.name}.txt"
    settings = " \\\n    ".join(f'{name}="{each}"' for name, each in stack.settings.items())
    labels = " \\\n      ".join(f'{name}="{each}"' for name, each in _labels(base, stack).items())
    return f"""\
# Written by containers/recipes.py; do not edit. {stack.title}: make image STACK={stack.name}
FROM {base.image}:{base.tag}@{base.digest}
WORKDIR {HOME}

COPY pyproject.toml README.md LICENSE ./
COPY containers/install.py containers/locks.toml containers/
COPY containers/{stack.name}/stack.toml containers/{stack.name}/
COPY {lock} containers/locks/
# pip's own settings, where a machine has some, are a secret: they are in no layer.
# hadolint ignore=DL4006
RUN --mount=type=secret,id=pip,target=/etc/pip.conf set -eu; \\
    echo "{stack.lock_sha256}  {lock}" | sha256sum -c; \\
    export {BUILD} MINIVERL_STACK={stack.name}; \\
    python3 containers/install.py stack
{_copies()}
RUN set -eu; \\
    export {BUILD} MINIVERL_STACK={stack.name}; \\
    python3 containers/install.py run; \\
    {COMPILE}; \\
    install -d -m 1777 /cache build

ENV PATH="{HOME}/.venv/bin:$PATH" \\
    {settings}
ARG REVISION=unknown
ENV MINIVERL_REVISION="$REVISION"
LABEL {labels} \\
      org.opencontainers.image.revision="$REVISION"
USER 10001:10001
ENTRYPOINT ["miniverl"]
CMD ["doctor"]
"""


def definition(base: Base, stack: Stack) -> str:
    """For apptainer, which knows no tag beside a digest."""
    lock = f"containers/locks/{stack.name}.txt"
    files = ["pyproject.toml", "README.md", "LICENSE", "containers/install.py"]
    files += ["containers/locks.toml", f"containers/{stack.name}/stack.toml", lock, *CODE]
    copied = "\n".join(f"    {file} {HOME}/{file}" for file in files)
    settings = "\n".join(f'    export {name}="{each}"' for name, each in stack.settings.items())
    labels = "\n".join(f"    {name} {each}" for name, each in _labels(base, stack).items())
    return f"""\
# Written by containers/recipes.py; do not edit. {stack.title}: make image STACK={stack.name}
# {base.image}:{base.tag}
Bootstrap: docker
From: {base.image}@{base.digest}

%arguments
    REVISION=unknown

%files
{copied}

%post
    set -eu
    cd {HOME}
    echo "{stack.lock_sha256}  {lock}" | sha256sum -c
    export {BUILD} MINIVERL_STACK={stack.name}
    python3 containers/install.py run
    {COMPILE}
    install -d -m 1777 /cache build

%environment
    export PATH="{HOME}/.venv/bin:$PATH"
{settings}
    export MINIVERL_REVISION="{{{{ REVISION }}}}"

%labels
{labels}
    org.opencontainers.image.revision {{{{ REVISION }}}}

%test
    {HOME}/.venv/bin/miniverl --help >/dev/null

%runscript
    exec {HOME}/.venv/bin/miniverl "$@"
"""


def _labels(base: Base, stack: Stack) -> dict[str, str]:
    return {
        "org.opencontainers.image.title": f"miniverl {stack.name}",
        "org.opencontainers.image.licenses": "Apache-2.0",
        "org.opencontainers.image.base.name": f"{base.image}:{base.tag}",
        "org.opencontainers.image.base.digest": base.digest,
        "miniverl.stack": stack.name,
        "miniverl.lock.sha256": stack.lock_sha256,
    }


def _copies() -> str:
    return "\n".join(f"COPY {folder} {folder}/" for folder in CODE)


if __name__ == "__main__":
    main()
