"""What each process of a plan is given: its inputs, environment, arguments and limits."""

from pathlib import Path

from miniverl.bench import runner
from miniverl.bench.facts import Plan
from miniverl.bench.gpu import Chosen
from miniverl.bench.runner import GIB, Limits
from miniverl.bench.sampling import Sampling
from miniverl.compiler.whole import write_json, write_text
from miniverl.engine import recipe as recipes

# CUDA's context, its libraries and graphs: what a process holds of a card beside the allocator's pool.
_BESIDE_THE_POOL_GIB = 2.0


def write_inputs(plan: Plan, folder: Path) -> None:
    """Into a new folder, what the worker reads of it."""
    folder.mkdir(parents=True)
    paths = {
        name: None if path is None else str(path) for name, path in plan.compiled.paths.items()
    }
    write_text(folder / "recipe.json", recipes.dumps(plan.recipe))
    write_json(folder / "bindings.json", paths)
    write_json(folder / "report.json", plan.compiled.report)


def environment(chosen: Chosen) -> dict[str, str]:
    """Only the chosen card is visible to the worker, by the number that the driver gives it."""
    variables = runner.worker_environment(chosen.profile.threads)
    if chosen.card is None:
        return variables
    return variables | {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": str(chosen.card.index),
    }


def limits(plan: Plan) -> Limits:
    """On a GPU the worker caps its own pool; the driver counts context and libraries of the process too."""
    contract = plan.workload.contract
    if plan.chosen.card is None:
        held = {"peak_rss_bytes": contract.peak_rss_gib}
    else:
        held = {"process_bytes": contract.peak_reserved_gib + _BESIDE_THE_POOL_GIB}
    return Limits(
        seconds=contract.device_hours * 3600,
        held_bytes={name: int(limit * GIB) for name, limit in held.items()},
        disk_bytes=int(contract.disk_gib * GIB),
    )


def arguments(plan: Plan, *more: str) -> list[str]:
    """Of the worker, behind its folder."""
    profile = plan.chosen.profile
    given = ["--device", profile.device, "--threads", str(profile.threads)]
    if plan.chosen.card is not None:
        pool_bytes = int(plan.workload.contract.peak_reserved_gib * GIB)
        given += ["--pool-bytes", str(pool_bytes)]
    return [*given, *more]


def sampled(plan: Plan) -> Sampling:
    card = None if plan.chosen.card is None else plan.chosen.card.index
    if plan.telemetry_hz is None:
        return Sampling(card=card)
    return Sampling(card=card, every_seconds=1 / plan.telemetry_hz)
