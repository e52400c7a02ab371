"""The child of one launch: reads the run folder, runs the engine, and leaves the reason where it fails.

    python -P -m miniverl.bench.worker RUN_DIR --device cpu --threads 2 [--resume [--allow-changed NAME ...]]
    python -P -m miniverl.bench.worker FOLDER --device cpu --threads 2 --compare RUN_DIR

It prints nothing of its own: journal.jsonl tells how the run goes, worker.json when the interpreter was
ready, failure.json why it ended, and what libraries print goes where the parent sent the two streams.
SIGINT lets it end its step, save, and go (exit 130). It dies with its parent.
"""

import argparse
import ctypes
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import TracebackType

from miniverl.bench import failure
from miniverl.bench.exits import Exit
from miniverl.bench.failure import Failure
from miniverl.engine import recipe as recipes
from miniverl.engine.events import Event
from miniverl.engine.problem import Problems

_PR_SET_PDEATHSIG = 1  # include/uapi/linux/prctl.h


def main(arguments: Sequence[str]) -> int:
    interpreter_monotonic = time.monotonic()
    call = _call(arguments)
    _die_with(call.parent)
    sys.excepthook = partial(_leave_crash, call.folder)
    asked = threading.Event()
    signal.signal(
        signal.SIGINT, lambda number, frame: asked.set()
    )  # before worker.json tells whom to ask
    stamp = {"pid": os.getpid(), "interpreter_monotonic": interpreter_monotonic}
    failure.write_beside(call.folder / "worker.json", stamp)
    try:
        is_whole = _run(call, asked.is_set)
    except Problems as error:
        problems = tuple(failure.plain(error.problems))
        told = Failure(kind=type(error).__name__, problems=problems, traceback=None)
        failure.write(call.folder, told)
        return failure.EXITS[type(error)]
    return Exit.DONE if is_whole else Exit.INTERRUPTED


def _call(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="miniverl.bench.worker", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--allow-changed", action="append", default=[], metavar="NAME")
    parser.add_argument("--compare", type=Path, metavar="RUN_DIR", help="see engine/determinism.py")
    parser.add_argument("--pool-bytes", type=int, help="the most that CUDA's allocator may reserve")
    parser.add_argument("--parent", type=int, default=os.getppid(), help="die when it does")
    return parser.parse_args(arguments)


def _die_with(parent: int) -> None:
    """The kernel kills this process when its parent ends, however that happens."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the line above
        os.kill(os.getpid(), signal.SIGKILL)


def _run(call: argparse.Namespace, is_stopping: Callable[[], bool]) -> bool:
    """Whether the run came to its end."""
    # Only now: torch takes seconds to load, and where it cannot load, failure.json has to say so.
    from miniverl.compiler import upstream
    from miniverl.engine import determinism, loop
    from miniverl.engine.identity import make_deterministic

    if call.pool_bytes is not None:
        make_deterministic(call.device, call.threads)  # before the next line starts CUDA
        _cap_pool(call.device, call.pool_bytes)
    recipe_path: Path = call.folder / "recipe.json"
    bindings = json.loads((call.folder / "bindings.json").read_text("utf-8"))
    recipe = recipes.loads(recipe_path.read_text("utf-8"), str(recipe_path))
    inputs = loop.Inputs.of(
        recipe,
        {name: Path(bindings[name]) for name in recipe.inputs},
        upstream.cache_dir() / "quantised",
    )
    if call.compare is not None:
        found = determinism.compare(
            recipe, inputs, call.compare, call.folder, device=call.device, threads=call.threads
        )
        failure.write_beside(call.folder / "determinism.json", asdict(found))
        return True
    return loop.run(
        recipe,
        inputs,
        call.folder,
        device=call.device,
        threads=call.threads,
        resume=call.resume,
        listen=_ignore,
        allow_changed=call.allow_changed,
        is_stopping=is_stopping,
    )


def _cap_pool(device: str, pool_bytes: int) -> None:
    """Beyond it CUDA's allocator is out of memory, as on a card of that size."""
    import torch  # loaded by the engine already

    whole_bytes = torch.cuda.get_device_properties(device).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, pool_bytes / whole_bytes), device)


def _ignore(event: Event) -> None:
    """The journal has every event already."""


def _leave_crash(
    folder: Path, kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """What `sys.excepthook` calls for an exception that nobody handles; Python then exits with 1."""
    text = "".join(traceback.format_exception(kind, error, trace))
    sys.stderr.write(text)
    failure.write(folder, Failure(kind=kind.__name__, problems=(), traceback=text))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
