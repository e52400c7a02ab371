"""What a machine can do at its best: bytes read a second, and operations of a matrix product, by type.

    python -P -m miniverl.bench.probe --device cpu --threads 2

Measured once a machine, device and torch, in a process of its own, and kept in the cache; `miniverl doctor --probe`
measures again. The best of several repetitions counts: other programs only make it worse.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from miniverl.bench import environment
from miniverl.bench.comparability import sha256_of
from miniverl.bench.gpu import Chosen, Found
from miniverl.compiler.upstream import cache_dir, cache_writes
from miniverl.compiler.whole import write_json

if TYPE_CHECKING:
    import torch

_SECONDS = 0.6  # that each measurement may take
_READ_BYTES = {"cpu": 256 << 20, "cuda": 2 << 30}  # beyond any cache
_SIDE = {"cpu": 1536, "cuda": 8192}  # of the matrices
_DTYPES = ("float32", "bfloat16")


def machine(chosen: Chosen, found: Found, *, again: bool = False) -> dict[str, Any]:
    """The measured limits of the chosen device: from the cache, or `again`."""
    kept = _kept(chosen, found)
    if again or not kept.exists():
        measured = _measured(chosen)
        with cache_writes():
            kept.parent.mkdir(parents=True, exist_ok=True)
            write_json(kept, measured)
    limits: dict[str, Any] = json.loads(kept.read_text("utf-8"))
    return limits


def text(limits: Mapping[str, Any]) -> str:
    """The limits for a person."""
    peaks = ", ".join(
        f"{name} {flops / 1e9:.0f} GFLOP/s"
        for name, flops in sorted(limits["matmul_flops_per_second"].items())
    )
    bandwidth = limits["memory_bytes_per_second"] / 1e9
    return f"probe     {limits['device']}: memory {bandwidth:.1f} GB/s, matrix products {peaks}"


def _kept(chosen: Chosen, found: Found) -> Path:
    hardware = environment.hardware(chosen.profile.device, chosen.card, found)
    del hardware["memory_gib"]  # of a container, it changes
    machine = {"hardware": hardware, "torch": found.torch, "threads": chosen.profile.threads}
    return cache_dir() / "machines" / f"{sha256_of(machine)[:16]}.json"


def _measured(chosen: Chosen) -> dict[str, Any]:
    profile = chosen.profile
    command = [sys.executable, "-P", "-m", "miniverl.bench.probe", "--device", profile.device]
    command += ["--threads", str(profile.threads)]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    measured: dict[str, Any] = json.loads(answer.stdout)
    return measured


def main(arguments: Sequence[str]) -> None:
    import torch

    parser = argparse.ArgumentParser(prog="miniverl.bench.probe")
    parser.add_argument("--device", required=True)
    parser.add_argument("--threads", type=int, required=True)
    call = parser.parse_args(arguments)
    torch.set_num_threads(call.threads)
    limits = {
        "device": call.device,
        "threads": call.threads,
        "torch": str(torch.__version__),
        "measured_at": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "memory_bytes_per_second": _memory(call.device),
        "matmul_flops_per_second": {name: _matmul(call.device, name) for name in _DTYPES},
    }
    sys.stdout.write(json.dumps(limits))


def _memory(device: str) -> float:
    """Of the better of two: a matrix times a vector, which reads as decoding does, and a copy."""
    import torch

    side = int((_READ_BYTES[device] / 4) ** 0.5)
    matrix, vector = torch.ones(side, side, device=device), torch.ones(side, device=device)
    copy = torch.empty_like(matrix)
    size = matrix.numel() * 4
    return max(
        size / _best(lambda: torch.mv(matrix, vector), device),
        2 * size / _best(lambda: copy.copy_(matrix), device),
    )


def _matmul(device: str, name: str) -> float:
    import torch

    side = _SIDE[device]
    matrix = torch.ones(side, side, device=device, dtype=getattr(torch, name))
    return 2 * side**3 / _best(lambda: matrix @ matrix, device)


def _best(work: "Callable[[], torch.Tensor]", device: str) -> float:
    """Seconds of the fastest of the repetitions that fit into the time; the first warms up."""
    import torch

    best, until = float("inf"), time.perf_counter() + _SECONDS
    work()
    while best == float("inf") or time.perf_counter() < until:
        if device == "cuda":
            torch.cuda.synchronize()
        started = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - started)
    return best


if __name__ == "__main__":
    main(sys.argv[1:])
