/* NVIDIA's management library with one card, for machines without: NVML_STUB says how it behaves.
 *   card     every question has an answer
 *   bare     an old driver: few functions, the others answer "not supported" or are refused
 *   hidden   the driver is there and lists no card
 *   broken   the driver does not answer
 */
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, NOT_SUPPORTED = 3, NO_PERMISSION = 4, DRIVER_NOT_LOADED = 9 };

typedef void *device;
struct memory {
    unsigned long long total, available, used;
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

static int tell(char *to, unsigned size, const char *text) {
    strncpy(to, text, size);
    return SUCCESS;
}

const char *nvmlErrorString(int code) { return code == DRIVER_NOT_LOADED ? "Driver Not Loaded" : "stub"; }
int nvmlInitWithFlags(unsigned flags) { return behaves("broken") ? DRIVER_NOT_LOADED : SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }
int nvmlSystemGetDriverVersion(char *to, unsigned size) { return tell(to, size, "596.49"); }
int nvmlSystemGetCudaDriverVersion_v2(int *version) {
    *version = 13010;
    return SUCCESS;
}
int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = behaves("hidden") ? 0 : 1;
    return SUCCESS;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, device *card) {
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
        if (behaves("bare")) processes[0].used = ~0ull; /* "not available", as under Windows' display driver */
    }
    return SUCCESS;
}
int nvmlDeviceGetPowerUsage(device card, unsigned *milliwatts) {
    if (behaves("bare")) return NO_PERMISSION;
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
/* The energy counter, MIG mode, VBIOS and reasons for slower clocks are functions that this driver lacks. */
