"""What has to be equal, beside the recipe and its inputs, for two processes to compute equal bytes."""

import hashlib
import os
import platform
from importlib.metadata import version
from pathlib import Path

import torch

_PACKAGES = ("numpy", "safetensors", "tokenizers", "torch", "transformers")


def identity(device: str, threads: int) -> dict[str, str]:
    """Versions, device kind, thread count and the digest of the engine's code, each under its name."""
    packages = {f"package {name}": version(name) for name in _PACKAGES}
    return packages | {
        "python": platform.python_version(),
        "device": _device_kind(device),
        "threads": str(threads),
        "engine_sha256": engine_sha256(),
    }


def make_deterministic(device: str, threads: int) -> None:
    """The same kernels and the same split of work in every process. To be called before any work."""
    if device.startswith("cuda"):
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True)
    # Would write NaN into every new tensor, at the price of a pass over it.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def engine_sha256() -> str:
    """SHA-256 over the names and digests of the engine's modules."""
    lines = [
        f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n"
        for path in sorted(Path(__file__).parent.glob("*.py"))
    ]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _device_kind(device: str) -> str:
    """The instruction set of a CPU, the model of a GPU: each has kernels of its own."""
    if device == "cpu":
        return f"cpu {torch.backends.cpu.get_cpu_capability()}"
    return f"{torch.device(device).type} {torch.cuda.get_device_name(device)}"
