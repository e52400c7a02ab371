"""The beginning of a step, computed again and in other batches, in a process of its own when the launches are over."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from miniverl.bench import conditions, determinism, runner
from miniverl.bench.facts import Plan, Ran
from miniverl.bench.live import Live
from miniverl.bench.stop import Stop


def compare(
    plan: Plan, ran: Ran, asked: Stop, write: Callable[[str], None], worker: Sequence[str]
) -> None:
    """Keep in `ran` what was compared with the weights of the first straight run.

    Where it could not be, that is a warning: the launches are measured all the same. Where somebody asks
    for the end meanwhile, the record says so.
    """
    folder = plan.folder / "compared"
    write(f"the beginning of a step again, and in other batches: {folder}")
    conditions.write_inputs(plan, folder)
    seen = runner.launch(
        folder,
        "straight",
        arguments=conditions.arguments(plan, "--compare", str(plan.straight)),
        environment=plan.environment,
        limits=conditions.limits(plan),
        interruption=None,
        sampling=conditions.sampled(plan),
        listen=Live(write),
        stopped=asked.outcome,
        worker=worker,
    )
    if seen.outcome.status == "interrupted":
        ran.outcome = seen.outcome
    elif seen.outcome.status != "finished":
        ran.warnings.append(_warning("determinism_not_compared", seen.outcome.reason or ""))
    else:
        found: dict[str, Any] = json.loads((folder / "determinism.json").read_text("utf-8"))
        ran.compared = found | {"seconds": round(found["seconds"], 6)}
        ran.warnings += [_warning("bytes_differ", each) for each in determinism.doubts(found)]


def _warning(code: str, message: str) -> Mapping[str, str]:
    return {"code": code, "message": message}
