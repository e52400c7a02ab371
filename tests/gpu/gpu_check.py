"""Does the engine compute rightly on this card and this stack? One script, for a machine on which nothing of ours is installed.

    python tests/gpu/gpu_check.py --pack CARRY                       # in our environment: what has to be carried
    python tests/gpu/gpu_check.py --carry CARRY --out OUT --device cuda [PART ...]
    python tests/gpu/gpu_check.py --records OUT --carry CARRY        # in our environment: the records of what ran

The second line takes Python 3.11 or newer, torch 2.11 to 2.14, transformers, safetensors, numpy, this checkout and the carried
folder, and no network. Its parts, each a process of minutes and of a JSON file in OUT: decoder, nf4, graphs, resume, opd,
grpo, speed. On a processor the models of opd, grpo and speed are small ones. It ends with 0 where every part passed, 1 where one
failed, and 3 where there is no such device.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("decoder", "nf4", "graphs", "resume", "opd", "grpo", "speed")
_LONGEST_SECONDS = 600


def main(arguments: Sequence[str]) -> int:
    call = _call(arguments)
    if call.pack is not None:
        import carry

        carry.pack(call.pack)
        return 0
    if call.records is not None:
        import finished

        return finished.write_records(call.records, call.carry)
    if call.part is not None:
        return _part(call)
    call.out.mkdir(parents=True, exist_ok=True)
    return _all(call)


def _call(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gpu_check", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("parts", nargs="*", metavar="PART", help="unset: all")
    parser.add_argument("--pack", type=Path)
    parser.add_argument("--records", type=Path)
    parser.add_argument("--carry", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--device", choices=("cuda", "cpu"))
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    call = parser.parse_args(arguments)
    if call.pack is None and call.carry is None:
        parser.error("--pack, or --carry")
    if call.pack is None and call.records is None and (call.out is None or call.device is None):
        parser.error("--out and --device")
    if unknown := set(call.parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}; known: {', '.join(PARTS)}")
    return call


def _all(call: argparse.Namespace) -> int:
    """Each part in a process of its own, which finds this checkout as `miniverl`."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(_path(call.out, call.carry))}
    environment |= {"MINIVERL_CACHE": str((call.out / "cache").resolve())}
    command = [sys.executable, __file__, "--carry", str(call.carry), "--out", str(call.out)]
    told = []
    for part in call.parts or PARTS:
        result = call.out / f"{part}.json"
        result.unlink(missing_ok=True)
        started = time.monotonic()
        with (call.out / f"{part}.log").open("wb") as log:
            try:
                code = subprocess.run(
                    [*command, "--device", call.device, "--part", part],
                    env=environment,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    timeout=_LONGEST_SECONDS,
                    check=False,
                ).returncode
            except subprocess.TimeoutExpired:
                code = 124
        facts = json.loads(result.read_text("utf-8")) if result.exists() else {"passes": False}
        told.append(bool(facts["passes"]))
        said = facts.get("told") or _last_line(call.out / f"{part}.log")
        word = "pass" if facts["passes"] else "FAIL"
        print(f"{part:<8} {word}  {time.monotonic() - started:5.1f} s  {said}", flush=True)
        if code == 3:
            return 3
    print(f"{sum(told)} passed, {len(told) - sum(told)} failed")
    return 0 if all(told) else 1


def _path(out: Path, carry: Path) -> list[str]:
    """A folder in which the checkout's packages have the names that they are installed under, and what was carried."""
    names = out / "names" / "miniverl"
    names.mkdir(parents=True, exist_ok=True)
    for top in ("engine", "compiler", "bench"):
        link = names / top
        link.unlink(missing_ok=True)
        link.symlink_to(ROOT / top)
    return [str(names.parent.resolve()), str((carry / "packages").resolve())]


def _part(call: argparse.Namespace) -> int:
    """This process is one part's."""
    import torch

    if call.device == "cuda" and not torch.cuda.is_available():
        print(f"torch {torch.__version__} sees no CUDA device")
        return 3
    import checks
    import measured

    ways: dict[str, Callable[..., dict[str, object]]] = {
        "decoder": checks.decoder,
        "nf4": checks.quantised,
        "graphs": checks.graphs,
        "resume": measured.resume,
        "opd": measured.opd,
        "grpo": measured.grpo,
        "speed": measured.speed,
    }
    found = ways[call.part](carry=call.carry, out=call.out, device=call.device)
    text = json.dumps(found, indent=1, sort_keys=True, allow_nan=False) + "\n"
    (call.out / f"{call.part}.json").write_text(text, "utf-8")
    return 0 if found["passes"] else 1


def _last_line(log: Path) -> str:
    lines = log.read_text("utf-8", "replace").splitlines()
    return lines[-1] if lines else "it said nothing"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
