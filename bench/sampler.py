"""The third process of a launch: looks at the worker once a second, and writes a JSON line a look.

    python -P -m miniverl.bench.sampler --pid WORKER --out telemetry.jsonl --every 1 [--card 0]

The driver's library has been seen to crash. Here that ends this process, and neither the run nor the parent that
keeps the contract. It ends when the worker is gone, on SIGTERM, or with its parent.
"""

import argparse
import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import TextIO

from miniverl.bench import nvml, telemetry

_PR_SET_PDEATHSIG = 1  # include/uapi/linux/prctl.h


def main(arguments: Sequence[str]) -> int:
    call = _call(arguments)
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's
    signal.signal(signal.SIGTERM, _leave)
    with call.out.open("a", encoding="utf-8") as out:
        if call.card is None:
            _sample(call.pid, None, call.every, out)
        else:
            with nvml.opened():
                _sample(call.pid, call.card, call.every, out)
    return 0


def _call(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="miniverl.bench.sampler", description=__doc__)
    parser.add_argument("--pid", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--every", type=float, required=True, help="seconds")
    parser.add_argument("--card", type=int, help="the driver's number of it")
    return parser.parse_args(arguments)


def _sample(pid: int, card: int | None, every_seconds: float, out: TextIO) -> None:
    """Until the process is gone. Looks are due on a grid, so that one that takes long shifts no other."""
    due = time.monotonic()
    while True:
        now = time.monotonic()
        seen = telemetry.readings(pid, card)
        if seen is None:
            return
        out.write(json.dumps({"monotonic_seconds": now, **seen}) + "\n")
        out.flush()
        due = max(due + every_seconds, time.monotonic())
        time.sleep(max(0.0, due - time.monotonic()))


def _leave(number: int, frame: FrameType | None) -> None:
    """A line is written whole or not at all: what stops in its middle is no line (no newline)."""
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
