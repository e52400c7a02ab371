"""What a measurement ran on, in the fields of a record: machine, software, and the checkout it came from.

Only what decides numbers is recorded, and nothing that names a person, a host or a folder.
"""

import hashlib
import os
import platform
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from miniverl.bench.gpu import Card, Found
from miniverl.bench.gpu_profile import GIB
from miniverl.bench.measure import NOT_SUPPORTED
from miniverl.bench.nvml import Status
from miniverl.bench.stack import Stack, installed

# The packages that a run's arithmetic, data and compilation pass through; CUDA's own come on top.
PACKAGES = (
    "accelerate",
    "bitsandbytes",
    "gguf",
    "hydra-core",
    "miniverl",
    "numpy",
    "nvidia-ml-py",
    "omegaconf",
    "peft",
    "pyarrow",
    "safetensors",
    "tokenizers",
    "torch",
    "transformers",
    "triton",
)
_CUDA_PACKAGES = re.compile(r"nvidia-(?!ml-py)")

# Variables that can change numbers or speed. Nothing that may hold a secret comes through.
_ENVIRONMENT = re.compile(
    r"(CUDA|CUBLAS|CUDNN|NCCL|OMP|GOMP|KMP|MKL|OPENBLAS|ONEDNN|DNNL|PYTORCH|TORCH|TRITON|MALLOC|GLIBC)_\w+"
    r"|NVIDIA_(TF32_OVERRIDE|VISIBLE_DEVICES|DRIVER_CAPABILITIES|DISABLE_REQUIRE)|LD_(PRELOAD|LIBRARY_PATH)|PYTHONHASHSEED|TOKENIZERS_PARALLELISM"
)
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD")

_CONTAINER_MARKS = ("/.dockerenv", "/run/.containerenv", "/.singularity.d")
_CGROUP_LIMITS = (
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkout:
    """The git checkout that the code runs from; both None for an installed package."""

    commit: str | None
    is_dirty: bool | None


def environment(stack: Stack, threads: int, variables: Mapping[str, str]) -> dict[str, Any]:
    """The record's `environment`; `variables` are those that the worker starts with."""
    libc, libc_version = platform.libc_ver()
    return {
        "os": _os(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "packages": packages(),
        "stack": stack.name,
        "lock_sha256": stack.lock_sha256,
        "stack_matches_lock": stack.matches,
        "threads": threads,
        "env": allowed(variables),
        "container": container(variables),
        "details": {"libc": f"{libc} {libc_version}"},
    }


def hardware(device: str, card: Card | None, found: Found) -> dict[str, Any]:
    """The record's `hardware`, for a run on `device` ("cpu" or "cuda") that used `card`."""
    details: dict[str, int | float | str] = {"cpu_features_sha256": _cpu_features_sha256()}
    if card is not None:
        facts = {**card.facts, "uuid_sha256": card.uuid_sha256}
        details |= {
            name: str(fact) if isinstance(fact, Status) else fact for name, fact in facts.items()
        }
    return {
        "device": device,
        "gpu": card and card.name,
        "gpu_count": 0 if card is None else 1,
        "vram_gib": NOT_SUPPORTED if card is None else gib(card.memory_bytes),
        "driver": card and found.driver,
        "cuda_runtime": card and cuda_runtime(found),
        "cpu_model": cpu_model(),
        "cpu_count": len(os.sched_getaffinity(0)),
        "memory_gib": gib(memory_bytes()),
        "details": details,
    }


def fingerprint(stack: Stack, found: Found, variables: Mapping[str, str]) -> dict[str, Any]:
    """What a measurement depends on and what stays the same from one minute to the next."""
    cards = [hardware("cuda", card, found) for card in found.cards]
    software = environment(stack, threads=0, variables=variables)
    del software["threads"]
    machine = hardware("cpu", None, found)
    machine["memory_gib"] = round(machine["memory_gib"])
    return {
        "cards": [{**card, "memory_gib": machine["memory_gib"]} for card in cards],
        "environment": software,
        "hardware": machine,
    }


def packages() -> dict[str, str]:
    """Distribution -> version, of those that are installed."""
    return {
        name: version
        for name, version in sorted(installed().items())
        if name in PACKAGES or _CUDA_PACKAGES.match(name)
    }


def allowed(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables that may stand in a record. Of a path only the last part: the rest names a machine."""
    return {
        name: ":".join(part.rpartition("/")[2] for part in value.split(":"))
        for name, value in sorted(variables.items())
        if _ENVIRONMENT.fullmatch(name) and not _SECRET.search(name)
    }


def container(variables: Mapping[str, str]) -> dict[str, Any] | None:
    """The image this runs in; its launcher tells the digest, which cannot be seen from inside.

    Without a launcher an image of ours still knows its name.
    """
    image = variables.get("MINIVERL_IMAGE")
    digest = variables.get("MINIVERL_IMAGE_DIGEST")
    if image or digest:
        evidence = "launcher" if digest else "label"
        return {"image": image, "digest": digest, "evidence": evidence}
    if any(Path(mark).exists() for mark in _CONTAINER_MARKS):
        return {"image": None, "digest": None, "evidence": "unknown"}
    return None


def checkout() -> Checkout:
    """Of the code that runs."""
    return checkout_at(Path(str(files("miniverl.bench"))).resolve().parent)


def checkout_at(root: Path) -> Checkout:
    """Commit and state of the checkout, where git knows one at exactly `root`.

    What measuring itself writes does not make it dirty: results/, and DVC's lock. An image has no git: it was
    told at its making what its code was copied from.
    """
    top = _git(root, "rev-parse", "--show-toplevel")
    if top is None or Path(top) != root:
        copied = re.fullmatch(r"([0-9a-f]{40})(-dirty)?", os.environ.get("MINIVERL_REVISION", ""))
        if copied:
            return Checkout(commit=copied[1], is_dirty=bool(copied[2]))
        return Checkout(commit=None, is_dirty=None)
    status = _git(root, "status", "--porcelain", "--", ".", ":!results", ":!dvc.lock")
    return Checkout(commit=_git(root, "rev-parse", "HEAD"), is_dirty=bool(status))


def code_sha256() -> str:
    """Digest over the code that a measurement depends on: sorted lines "package/path sha256"."""
    digest = hashlib.sha256()
    for package in ("bench", "engine"):
        root = Path(str(files(f"miniverl.{package}")))
        for path in sorted(root.rglob("*.py")):
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            digest.update(f"{package}/{path.relative_to(root).as_posix()} {content}\n".encode())
    return digest.hexdigest()


def cpu_model() -> str:
    """As the kernel names it, else the architecture."""
    return _cpuinfo("model name") or platform.machine()


def memory_bytes() -> int:
    """Of the machine, or of the container where that is less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [Path(path).read_text().strip() for path in _CGROUP_LIMITS if Path(path).exists()]
    return min([total, *(int(limit) for limit in limits if limit.isdigit())])


def cuda_runtime(found: Found) -> str | None:
    """Version of the CUDA runtime that the installed torch brings."""
    build = re.search(r"\+cu(\d+)(\d)$", found.torch or "")
    if build:
        return f"{build[1]}.{build[2]}"
    for name, version in packages().items():
        if name.startswith("nvidia-cuda-runtime"):
            return ".".join(version.split(".")[:2])
    return None


def gib(size: int | Status) -> float | dict[str, str]:
    return {"status": str(size)} if isinstance(size, Status) else round(size / GIB, 3)


def _os() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except OSError:  # a system without that file
        return platform.system()


def _cpuinfo(field: str) -> str | None:
    found = re.search(rf"^{field}\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found and found[1].strip()


def _cpu_features_sha256() -> str:
    """Kernels are chosen by what the processor can; a cloud's model name often does not tell."""
    features = _cpuinfo("flags") or _cpuinfo("Features") or ""
    return hashlib.sha256(" ".join(sorted(features.split())).encode()).hexdigest()


def _git(root: Path, *arguments: str) -> str | None:
    """What git answers, or None where there is no git or no checkout."""
    try:
        answer = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None
