"""Kill runs at every kind of moment, resume them, and compare every byte with the run that nothing happened to.

    make chaos [CHAOS="--grpo 200 --ppo 200 --distillation 50 --fresh 20 --seed 1 --jobs 2"]
    make chaos CHAOS="--case grpo operation:31:torn second:0.4:kill"        # one case alone, all fresh with --fresh 1

tests/chaos/faults.py says what a fault is. Processes are forked from one that has loaded everything (each has a
PID of its own); in `--fresh` cases of each run every process is a new interpreter. The last line is the figures;
the exit code is 1 where a run differs, whose folder then stays.
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

import cases
import runs
import torch
from cases import Case, Outcome, Straight
from faults import Fault

_TOLD_EVERY = 50


def main(arguments: Sequence[str]) -> int:
    call = _call(arguments)
    started = time.monotonic()
    torch.set_num_threads(1)
    scratch = Path(tempfile.mkdtemp(prefix="chaos-"))
    runs.write(scratch)
    ends: list[Outcome] = []
    for name in runs.NAMES if call.case is None else call.case[:1]:
        if call.case is not None or getattr(call, name) > 0:
            base = cases.straight(scratch / name, with_fresh=call.fresh > 0)
            found = _outcomes(_cases(name, base, call), scratch, base, call.jobs)
            ends += found
            print(_figures_of(name, base, found), flush=True)
    is_right = all(each.wrong is None for each in ends)
    if is_right:
        shutil.rmtree(scratch)
    else:
        print(f"what differs is in {scratch}")
    print(_figures(ends, time.monotonic() - started, call.seed))
    return 0 if is_right else 1


def _call(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    for name, count in zip(runs.NAMES, (200, 200, 50), strict=True):
        parser.add_argument(f"--{name}", type=int, default=count, help="cases of this run")
    parser.add_argument("--fresh", type=int, default=20, help="of each run, without a fork")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument(
        "--case", nargs="+", help="a run and its faults, one process after the other"
    )
    return parser.parse_args(arguments)


def _cases(name: str, base: Straight, call: argparse.Namespace) -> list[Case]:
    if call.case is None:
        return cases.drawn(name, getattr(call, name), call.fresh, base, call.seed)
    faults = tuple(map(Fault.parse, call.case[1:]))
    return [Case(run=name, number=0, faults=faults, is_fresh=call.fresh == 1)]


def _outcomes(chosen: Sequence[Case], scratch: Path, base: Straight, jobs: int) -> list[Outcome]:
    found: list[Outcome] = []
    with ProcessPoolExecutor(jobs, mp_context=get_context("fork")) as pool:
        started = [
            pool.submit(cases.outcome, case, scratch / case.run, base, scratch) for case in chosen
        ]
        for each in as_completed(started):
            end = each.result()
            found.append(end)
            if end.wrong is not None:
                print(f"DIFFERS: {end.wrong}\n  again: --case {end.case}", flush=True)
            if len(found) % _TOLD_EVERY == 0:
                print(f"{end.case.run}: {len(found)} of {len(chosen)}", file=sys.stderr, flush=True)
    return found


def _figures_of(name: str, base: Straight, found: Sequence[Outcome]) -> str:
    """How much of what a run does was met."""
    faults = [fault for each in found for fault in each.met[:1] if fault.place == "operation"]
    hit = {int(fault.number) for fault in faults}
    lines = {number for number, name in enumerate(base.operations, 1) if name == "append"}
    others = set(range(1, len(base.operations) + 1)) - lines
    met = Counter(f"{fault.place} {fault.what}" for each in found for fault in each.met)
    told = ", ".join(f"{kind} {count}" for kind, count in sorted(met.items()))
    return (
        f"{name}: first faults at {len(hit & lines)} of {len(lines)} lines of logs and at "
        f"{len(hit & others)} of {len(others)} other operations on the disk; {told}"
    )


def _figures(ends: Sequence[Outcome], seconds: float, seed: int) -> str:
    parts = []
    for name in dict.fromkeys(each.case.run for each in ends):
        own = [each for each in ends if each.case.run == name]
        num_right = sum(each.wrong is None for each in own)
        num_fresh = sum(each.case.is_fresh for each in own)
        parts.append(f"{name} {num_right} of {len(own)} byte-identical ({num_fresh} fresh)")
    num_met = sum(len(each.met) for each in ends)
    return f"chaos: {', '.join(parts)}; {num_met} faults, seed {seed}, {seconds:.0f} s"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
