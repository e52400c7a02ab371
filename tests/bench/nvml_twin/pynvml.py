"""NVIDIA's bindings with one card, in Python: what nvml_stub.c is, for machines without a C compiler.

NVML_STUB says how it behaves, as there; put this folder on PYTHONPATH and the suite imports it in their place.
"""

import os
import signal
from types import SimpleNamespace
from typing import Any, NoReturn

NVML_ERROR_NOT_SUPPORTED = 3
NVML_ERROR_NO_PERMISSION = 4
NVML_ERROR_DRIVER_NOT_LOADED = 9
NVML_ERROR_LIBRARY_NOT_FOUND = 12
NVML_ERROR_FUNCTION_NOT_FOUND = 13
NVML_ERROR_GPU_IS_LOST = 15
NVML_ERROR_RESET_REQUIRED = 16
NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25
NVML_CLOCK_SM, NVML_CLOCK_MEM = 1, 2
NVML_TEMPERATURE_GPU = 0
NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC = 1, 0
nvmlClocksEventReasonSwPowerCap = 0x4
nvmlClocksThrottleReasonHwSlowdown = 0x8
nvmlClocksEventReasonSwThermalSlowdown = 0x20
nvmlClocksThrottleReasonHwThermalSlowdown = 0x40
nvmlClocksThrottleReasonHwPowerBrakeSlowdown = 0x80
nvmlMemory_v2 = 0x2000028

_TEXTS = {NVML_ERROR_DRIVER_NOT_LOADED: "Driver Not Loaded"}
_looks = 0


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(_TEXTS.get(value, "stub"))
        self.value = value


def _behaves(*how: str) -> bool:
    return os.environ.get("NVML_STUB", "card") in how


def _refuse(code: int) -> NoReturn:
    raise NVMLError(code)


def _full() -> None:
    """A question that only a driver which knows everything answers."""
    if not _behaves("full", "hot", "lost", "crash", "wddm"):
        _refuse(NVML_ERROR_FUNCTION_NOT_FOUND)


def nvmlInit() -> None:
    if _behaves("none"):
        _refuse(NVML_ERROR_LIBRARY_NOT_FOUND)
    if _behaves("broken"):
        _refuse(NVML_ERROR_DRIVER_NOT_LOADED)


def nvmlShutdown() -> None: ...


def nvmlSystemGetDriverVersion() -> str:
    return os.environ.get("NVML_STUB_DRIVER", "596.49")


def nvmlSystemGetCudaDriverVersion_v2() -> int:
    return 13010


def nvmlDeviceGetCount() -> int:
    return 0 if _behaves("hidden") else 1


def nvmlDeviceGetHandleByIndex(index: int) -> object:
    """A card that gets lost answers twice: for what is here, and for the first sample."""
    global _looks
    _looks += 1
    if _behaves("lost") and _looks > 2:
        _refuse(NVML_ERROR_GPU_IS_LOST)
    return object()


def nvmlDeviceGetName(card: object) -> str:
    return os.environ.get("NVML_STUB_NAME", "NVIDIA GeForce RTX 4080")


def nvmlDeviceGetUUID(card: object) -> str:
    if _behaves("bare"):
        _refuse(NVML_ERROR_NO_PERMISSION)
    return "GPU-5af0c0de-0000-0000-0000-000000000001"


def nvmlDeviceGetMemoryInfo(card: object, version: int | None = None) -> Any:
    if _behaves("bare"):
        _refuse(NVML_ERROR_NOT_SUPPORTED)
    if version is not None:
        _full()
    total, used = 17171480576, 3 << 30
    return SimpleNamespace(total=total, used=used, free=total - used, reserved=300 << 20)


def nvmlDeviceGetComputeRunningProcesses(card: object) -> list[Any]:
    pid = os.environ.get("NVML_STUB_PID")
    if not pid:
        return []
    held = None if _behaves("bare", "wddm") else 2 << 30
    return [
        SimpleNamespace(pid=int(pid), usedGpuMemory=held),
        SimpleNamespace(pid=1, usedGpuMemory=1 << 30),
    ]


def nvmlDeviceGetPowerUsage(card: object) -> int:
    if _behaves("bare"):
        _refuse(NVML_ERROR_NO_PERMISSION)
    if _behaves("crash"):
        os.kill(os.getpid(), signal.SIGSEGV)
    return 212500


def nvmlDeviceGetEnforcedPowerLimit(card: object) -> int:
    if _behaves("bare"):
        _refuse(NVML_ERROR_NOT_SUPPORTED)
    return 320000


def nvmlDeviceGetClockInfo(card: object, which: int) -> int:
    return 2505 if which == NVML_CLOCK_SM else 11201


def nvmlDeviceGetTemperature(card: object, sensor: int) -> int:
    return 61


def nvmlDeviceGetEccMode(card: object) -> list[int]:
    _refuse(NVML_ERROR_NOT_SUPPORTED)


def nvmlDeviceGetTotalEnergyConsumption(card: object) -> int:
    """Grows by the power that is drawn."""
    _full()
    import time

    return int(time.monotonic() * 212500)


def nvmlDeviceGetCurrentClocksEventReasons(card: object) -> int:
    _full()
    return 0x24 if _behaves("hot") else 0


def nvmlDeviceGetCurrentClocksThrottleReasons(card: object) -> int:
    _refuse(NVML_ERROR_FUNCTION_NOT_FOUND)


def nvmlDeviceGetPerformanceState(card: object) -> int:
    _full()
    return 2


def nvmlDeviceGetCurrPcieLinkGeneration(card: object) -> int:
    _full()
    return 4


def nvmlDeviceGetCurrPcieLinkWidth(card: object) -> int:
    _full()
    return 16


def nvmlDeviceGetTotalEccErrors(card: object, kind: int, counter: int) -> int:
    _refuse(NVML_ERROR_NOT_SUPPORTED if _behaves("full", "hot") else NVML_ERROR_FUNCTION_NOT_FOUND)


def nvmlDeviceGetPersistenceMode(card: object) -> int:
    _full()
    return 1


def nvmlDeviceGetComputeMode(card: object) -> int:
    _full()
    return 0


def nvmlDeviceGetMaxPcieLinkGeneration(card: object) -> int:
    _full()
    return 4


def nvmlDeviceGetMaxPcieLinkWidth(card: object) -> int:
    _full()
    return 16


# MIG mode, VBIOS and the largest clocks are missing: such bindings are older than the question.
