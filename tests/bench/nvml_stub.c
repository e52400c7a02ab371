/* NVIDIA's management library with one card, for machines without: NVML_STUB says how it behaves.
 *   card     a card whose driver knows few questions
 *   full     a driver that knows all that is asked
 *   hot      the same, slowed down for heat and at its power limit
 *   lost     the same, until the card falls off the bus
 *   crash    the same, until the library crashes
 *   wddm     a driver under Windows, which tells all but what one process holds
 *   bare     an old driver: few functions, the others answer "not supported" or are refused
 *   hidden   the driver is there and lists no card
 *   broken   the driver does not answer
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SUCCESS = 0, NOT_SUPPORTED = 3, NO_PERMISSION = 4, DRIVER_NOT_LOADED = 9, FUNCTION_NOT_FOUND = 13, GPU_IS_LOST = 15 };

typedef void *device;
struct memory {
    unsigned long long total, available, used;
};
struct memory_v2 {
    unsigned version;
    unsigned long long total, reserved, available, used;
};
struct process {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
};

static int behaves(const char *how) {
    const char *set = getenv("NVML_STUB");
    return strcmp(set ? set : "card", how) == 0;
}

static int is_full(void) { return behaves("full") || behaves("hot") || behaves("lost") || behaves("crash") || behaves("wddm"); }

static int answer(unsigned *to, unsigned value) {
    if (!is_full()) return FUNCTION_NOT_FOUND;
    *to = value;
    return SUCCESS;
}

static int tell(char *to, unsigned size, const char *text) {
    strncpy(to, text, size);
    return SUCCESS;
}

const char *nvmlErrorString(int code) { return code == DRIVER_NOT_LOADED ? "Driver Not Loaded" : "stub"; }
int nvmlInitWithFlags(unsigned flags) { return behaves("broken") ? DRIVER_NOT_LOADED : SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }
int nvmlSystemGetDriverVersion(char *to, unsigned size) {
    const char *version = getenv("NVML_STUB_DRIVER");
    return tell(to, size, version ? version : "596.49");
}
int nvmlSystemGetCudaDriverVersion_v2(int *version) {
    *version = 13010;
    return SUCCESS;
}
int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = behaves("hidden") ? 0 : 1;
    return SUCCESS;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, device *card) {
    static int looks = 0; /* a card that gets lost answers twice: for what is here, and for the first sample */
    if (behaves("lost") && ++looks > 2) return GPU_IS_LOST;
    *card = (device)1;
    return SUCCESS;
}
int nvmlDeviceGetName(device card, char *to, unsigned size) {
    const char *name = getenv("NVML_STUB_NAME");
    return tell(to, size, name ? name : "NVIDIA GeForce RTX 4080");
}
int nvmlDeviceGetUUID(device card, char *to, unsigned size) {
    return behaves("bare") ? NO_PERMISSION : tell(to, size, "GPU-5af0c0de-0000-0000-0000-000000000001");
}
int nvmlDeviceGetMemoryInfo(device card, struct memory *memory) {
    if (behaves("bare")) return NOT_SUPPORTED; /* memory shared with the processor */
    memory->total = 17171480576ull; /* 15.992 GiB, as the published record of that card */
    memory->used = 3ull << 30;
    memory->available = memory->total - memory->used;
    return SUCCESS;
}
int nvmlDeviceGetMemoryInfo_v2(device card, struct memory_v2 *memory) {
    if (behaves("bare")) return NOT_SUPPORTED;
    if (!is_full()) return FUNCTION_NOT_FOUND;
    memory->reserved = 300ull << 20;
    return SUCCESS;
}
int nvmlDeviceGetComputeRunningProcesses_v3(device card, unsigned *count, struct process *processes) {
    const char *pid = getenv("NVML_STUB_PID");
    unsigned there = pid ? 2 : 0;
    if (*count < there) {
        *count = there;
        return 7; /* the caller's buffer is too small */
    }
    *count = there;
    if (there) {
        processes[0] = (struct process){(unsigned)atoi(pid), 2ull << 30, 0, 0};
        processes[1] = (struct process){1, 1ull << 30, 0, 0};
        if (behaves("bare") || behaves("wddm")) processes[0].used = ~0ull; /* "not available", as under Windows' display driver */
    }
    return SUCCESS;
}
int nvmlDeviceGetPowerUsage(device card, unsigned *milliwatts) {
    if (behaves("bare")) return NO_PERMISSION;
    if (behaves("crash")) raise(SIGSEGV);
    *milliwatts = 212500;
    return SUCCESS;
}
int nvmlDeviceGetEnforcedPowerLimit(device card, unsigned *milliwatts) {
    if (behaves("bare")) return NOT_SUPPORTED;
    *milliwatts = 320000;
    return SUCCESS;
}
int nvmlDeviceGetClockInfo(device card, int which, unsigned *mhz) {
    *mhz = which == 1 ? 2505 : 11201;
    return SUCCESS;
}
int nvmlDeviceGetTemperature(device card, int sensor, unsigned *celsius) {
    *celsius = 61;
    return SUCCESS;
}
int nvmlDeviceGetEccMode(device card, int *now, int *pending) { return NOT_SUPPORTED; }
int nvmlDeviceGetTotalEnergyConsumption(device card, unsigned long long *millijoules) {
    struct timespec now;
    if (!is_full()) return FUNCTION_NOT_FOUND;
    clock_gettime(CLOCK_MONOTONIC, &now);
    *millijoules = (unsigned long long)((now.tv_sec + 1e-9 * now.tv_nsec) * 212500); /* grows by the power that is drawn */
    return SUCCESS;
}
int nvmlDeviceGetCurrentClocksEventReasons(device card, unsigned long long *reasons) {
    if (!is_full()) return FUNCTION_NOT_FOUND;
    *reasons = behaves("hot") ? 0x24 : 0; /* heat, and the power limit */
    return SUCCESS;
}
int nvmlDeviceGetPerformanceState(device card, unsigned *state) { return answer(state, 2); }
int nvmlDeviceGetCurrPcieLinkGeneration(device card, unsigned *generation) { return answer(generation, 4); }
int nvmlDeviceGetCurrPcieLinkWidth(device card, unsigned *width) { return answer(width, 16); }
int nvmlDeviceGetMaxPcieLinkGeneration(device card, unsigned *generation) { return answer(generation, 4); }
int nvmlDeviceGetMaxPcieLinkWidth(device card, unsigned *width) { return answer(width, 16); }
int nvmlDeviceGetPersistenceMode(device card, unsigned *mode) { return answer(mode, 1); }
int nvmlDeviceGetComputeMode(device card, unsigned *mode) { return answer(mode, 0); }
int nvmlDeviceGetTotalEccErrors(device card, int kind, int counter, unsigned long long *count) {
    return is_full() ? NOT_SUPPORTED : FUNCTION_NOT_FOUND;
}
/* MIG mode, VBIOS, the largest clocks and the former name of the event reasons are functions that this driver lacks. */
