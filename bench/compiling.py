"""A workload's launch compiled for a device: with the inputs that it pins, and what is decided there and told."""

from collections.abc import Iterator, Sequence

from miniverl.bench import fetch, gpu, precision, stand_in
from miniverl.bench.gpu_profile import profiles
from miniverl.bench.workload import Workload, compile_arguments, workload
from miniverl.compiler.lower import Compiled, compile_launch
from miniverl.compiler.source import numbered
from miniverl.compiler.upstream import Progress
from miniverl.engine.recipe import Dtype


def compile_named(
    name: str, overrides: Sequence[str], profile: str | None, progress: Progress
) -> tuple[Compiled, list[str]]:
    """The workload as it would be measured on the GPU profile, else on this machine; and what to tell of it."""
    chosen, replaced = stand_in.available(workload(name), progress)
    of = profiles().get(profile or "")
    if of is None:
        here = gpu.choose(None, False, gpu.detect())
        device, capability = here.profile.device, here.compute_capability
    else:
        device, capability = of.device, of.compute_capability
    types = precision.precision(device, capability)
    compiled = compile_workload(chosen, None, overrides, types.compute, progress)
    return compiled, [text for _, text in notes(chosen, device, replaced, types)]


def compile_workload(
    chosen: Workload,
    seed: int | None,
    overrides: Sequence[str],
    auto_dtype: Dtype,
    progress: Progress,
) -> Compiled:
    """The workload's launch with `overrides` on top, bound to the inputs that it pins.

    `auto_dtype` is what is computed in where the workload leaves it to the device.
    """
    folders = fetch.fetch(chosen.pins, progress)
    arguments = compile_arguments(chosen, seed, folders, auto_dtype)
    return compile_launch(
        arguments.source,
        [*arguments.overrides, *numbered(overrides)],
        profile=arguments.profile,
        bindings=arguments.bindings,
        progress=progress,
    )


def notes(
    chosen: Workload, device: str, replaced: str | None, types: precision.Precision
) -> Iterator[tuple[str, str]]:
    """What was decided for this machine, and why: a finding's code and its sentence."""
    if replaced is not None:
        yield "stand_in", replaced
    if chosen.bindings.compute_dtype == "auto":
        yield "precision", types.sentence
    if device == "cuda":
        yield "attention", precision.ATTENTION
