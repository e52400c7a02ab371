"""One look at what a process tree and a card hold and do now: pure sampling, nothing kept.

A card's reading is a number or the status that stands in its place; a process that is gone has none.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import pynvml

from miniverl.bench.nvml import Status, ask

Reading = int | float | Status


def process_tree(pid: int) -> list[int]:
    """`pid` and its living descendants; empty when it is gone."""
    tree: list[int] = []
    waiting = [pid]
    while waiting:
        current = waiting.pop()
        try:
            children = list(_children(current))
        except (FileNotFoundError, ProcessLookupError):  # it ended meanwhile
            continue
        tree.append(current)
        waiting += children
    return tree


def rss_bytes(pid: int) -> int | None:
    """Resident memory of the process tree now; pages that its processes share count in each. None: it is gone."""
    sizes = [_status_bytes(one, "VmRSS") for one in process_tree(pid)]
    known = [size for size in sizes if size is not None]
    return sum(known) if known else None


def peak_rss_bytes(pid: int) -> int | None:
    """The most that this one process ever held, as the kernel counted it. None: it is gone."""
    return _status_bytes(pid, "VmHWM")


def process_bytes(handle: object, pids: list[int]) -> Reading:
    """Memory of the card that these processes hold: allocator, CUDA context and libraries.

    Not measured while the driver lists none of them: before their first use of the card, and in a
    container, where it lists the host's numbers.
    """
    running = ask(partial(pynvml.nvmlDeviceGetComputeRunningProcesses, handle))
    if isinstance(running, Status):
        return running
    held = [one.usedGpuMemory for one in running if one.pid in pids]
    if not held:
        return Status.NOT_MEASURED
    return Status.NOT_SUPPORTED if None in held else sum(held)


def card_readings(index: int, pids: list[int]) -> Mapping[str, Reading]:
    """Memory, power, energy, clocks, temperature and reasons for slowing down of one card, now.

    Between `nvml.opened`. Names carry the unit.
    """
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    clock = partial(pynvml.nvmlDeviceGetClockInfo, handle)
    return {
        "device_bytes": ask(lambda: int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)),
        "process_bytes": process_bytes(handle, pids),
        "power_watts": ask(lambda: pynvml.nvmlDeviceGetPowerUsage(handle) / 1000),
        "energy_joules": ask(lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000),
        "sm_clock_mhz": ask(partial(clock, pynvml.NVML_CLOCK_SM)),
        "memory_clock_mhz": ask(partial(clock, pynvml.NVML_CLOCK_MEM)),
        "temperature_celsius": ask(
            partial(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU)
        ),
        "clock_event_reasons": ask(partial(pynvml.nvmlDeviceGetCurrentClocksEventReasons, handle)),
    }


def _children(pid: int) -> Iterator[int]:
    """Of all its threads: the kernel lists a child under the thread that started it."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            yield from map(int, (task / "children").read_text().split())
        except (FileNotFoundError, ProcessLookupError):  # that thread ended
            continue


def _status_bytes(pid: int, field: str) -> int | None:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return None
    for line in lines:
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    return None  # a zombie has no memory
