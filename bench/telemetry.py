"""One look at what a process tree, the processor and a card hold and do now: pure sampling, nothing kept.

A reading is a number, or the status that stands in its place; a process that is gone has none. Names carry the unit.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pynvml

from miniverl.bench.nvml import Status, call, scaled

Reading = int | float | Status

_CPUS = Path("/sys/devices/system/cpu")
# What a card is asked in every sample.
CARD_READINGS = (
    "device_bytes",
    "device_reserved_bytes",
    "process_bytes",
    "foreign_processes",
    "power_watts",
    "energy_joules",
    "sm_clock_mhz",
    "memory_clock_mhz",
    "temperature_celsius",
    "clock_event_reasons",
    "performance_state",
    "pcie_generation",
    "pcie_width",
    "ecc_uncorrected_errors",
)


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


def cpu_readings() -> dict[str, Reading]:
    """Of the whole machine: how busy it is, how fast it runs, and whether it had to slow down."""
    return {
        "load_average": os.getloadavg()[0],
        "cpu_mhz": _cpu_mhz(),
        "cpu_throttles": _cpu_throttles(),
    }


def card_readings(index: int, pids: list[int]) -> dict[str, Reading]:
    """Memory, power, energy, clocks, temperature and reasons for slowing down of one card, now.

    Between `nvml.opened`. Every name of CARD_READINGS is there.
    """
    card = call("nvmlDeviceGetHandleByIndex", index)
    if isinstance(card, Status):
        return dict.fromkeys(CARD_READINGS, card)
    running = call("nvmlDeviceGetComputeRunningProcesses", card)
    memory = call("nvmlDeviceGetMemoryInfo", card)
    detailed = _detailed_memory(card)
    readings = {
        "device_bytes": memory if isinstance(memory, Status) else int(memory.used),
        "device_reserved_bytes": detailed,
        "process_bytes": _process_bytes(running, pids),
        "foreign_processes": _foreign_processes(running, pids),
        "power_watts": scaled(call("nvmlDeviceGetPowerUsage", card), 1e-3),
        "energy_joules": scaled(call("nvmlDeviceGetTotalEnergyConsumption", card), 1e-3),
        "sm_clock_mhz": call("nvmlDeviceGetClockInfo", card, pynvml.NVML_CLOCK_SM),
        "memory_clock_mhz": call("nvmlDeviceGetClockInfo", card, pynvml.NVML_CLOCK_MEM),
        "temperature_celsius": call("nvmlDeviceGetTemperature", card, pynvml.NVML_TEMPERATURE_GPU),
        "clock_event_reasons": _clock_event_reasons(card),
        "performance_state": call("nvmlDeviceGetPerformanceState", card),
        "pcie_generation": call("nvmlDeviceGetCurrPcieLinkGeneration", card),
        "pcie_width": call("nvmlDeviceGetCurrPcieLinkWidth", card),
        "ecc_uncorrected_errors": call(
            "nvmlDeviceGetTotalEccErrors",
            card,
            pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
            pynvml.NVML_VOLATILE_ECC,
        ),
    }
    assert tuple(readings) == CARD_READINGS
    return readings


def slowed(reasons: int) -> bool:
    """Whether a card's clock event reasons say heat or a fault; a power cap is how a card works at its limit."""
    slowdown = (
        pynvml.nvmlClocksThrottleReasonHwSlowdown
        | pynvml.nvmlClocksEventReasonSwThermalSlowdown
        | pynvml.nvmlClocksThrottleReasonHwThermalSlowdown
        | pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown
    )
    return bool(reasons & slowdown)


def power_capped(reasons: int) -> bool:
    return bool(reasons & pynvml.nvmlClocksEventReasonSwPowerCap)


def _process_bytes(running: Any, pids: list[int]) -> Reading:
    """Memory of the card that these processes hold: allocator, CUDA context and libraries.

    Not measured while the driver lists none of them: before their first use of the card, and in a
    container, where it lists the host's numbers.
    """
    if isinstance(running, Status):
        return running
    held = [one.usedGpuMemory for one in running if one.pid in pids]
    if not held:
        return Status.NOT_MEASURED
    return Status.NOT_SUPPORTED if None in held else sum(held)


def _foreign_processes(running: Any, pids: list[int]) -> Reading:
    """How many others compute on the card. In a container one of the host's numbers is ours."""
    if isinstance(running, Status):
        return running
    others = [one for one in running if one.pid not in pids]
    has_own_name = len(others) < len(running) or all(_is_alive(one.pid) for one in others)
    return len(others) if has_own_name else max(0, len(others) - 1)


def _is_alive(pid: int) -> bool:
    """Whether this process id means anything here."""
    return Path(f"/proc/{pid}").exists()


def _detailed_memory(card: Any) -> Reading:
    """What driver and firmware keep for themselves; only the second version of the question tells."""
    version = getattr(pynvml, "nvmlMemory_v2", None)
    if version is None:
        return Status.BINDING_MISSING
    memory = call("nvmlDeviceGetMemoryInfo", card, version)
    return memory if isinstance(memory, Status) else int(memory.reserved)


def _clock_event_reasons(card: Any) -> Reading:
    """A bit mask; drivers before 535 know it by its former name."""
    reasons = call("nvmlDeviceGetCurrentClocksEventReasons", card)
    if reasons in (Status.FUNCTION_NOT_FOUND, Status.BINDING_MISSING):
        reasons = call("nvmlDeviceGetCurrentClocksThrottleReasons", card)
    return reasons if isinstance(reasons, Status) else int(reasons)


def _cpu_mhz() -> Reading:
    """Mean over the cores that this process may use."""
    clocks = [
        int(path.read_text()) / 1000
        for core in os.sched_getaffinity(0)
        if (path := _CPUS / f"cpu{core}" / "cpufreq" / "scaling_cur_freq").exists()
    ]
    if not clocks:  # a virtual machine
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        clocks = [float(line.partition(":")[2]) for line in lines if line.startswith("cpu MHz")]
    return sum(clocks) / len(clocks) if clocks else Status.NOT_SUPPORTED


def _cpu_throttles() -> Reading:
    """How often the cores have been slowed down for heat since the machine started."""
    counts = [
        int(path.read_text())
        for path in _CPUS.glob("cpu[0-9]*/thermal_throttle/core_throttle_count")
    ]
    return sum(counts) if counts else Status.NOT_SUPPORTED


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


def readings(pid: int, card: int | None) -> Mapping[str, Reading] | None:
    """Everything about the process tree below `pid` and where it runs; None when it is gone.

    With a card: between `nvml.opened`.
    """
    held = rss_bytes(pid)
    if held is None:
        return None
    of_card = {} if card is None else card_readings(card, process_tree(pid))
    return {"rss_bytes": held, **cpu_readings(), **of_card}
