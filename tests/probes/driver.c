/* A stand-in for the NVIDIA driver library with one card, after the declarations of nvml.h. PROCESSES is defined as the
   name of its newest process list function. */
#include <stddef.h>
#include <string.h>

typedef struct nvmlDevice_st *nvmlDevice_t;
typedef struct { unsigned long long total, free, used; } nvmlMemory_t;
#ifdef OLD
typedef struct { unsigned int pid; unsigned long long usedGpuMemory; } nvmlProcessInfo_t;
#else
typedef struct { unsigned int pid; unsigned long long usedGpuMemory; unsigned int gpuInstanceId, computeInstanceId; } nvmlProcessInfo_t;
#endif
enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };
#define GIB (1ULL << 30)

/* An address that does not fit into 32 bits. */
static nvmlDevice_t const CARD = (nvmlDevice_t)0x7f0012345678ULL;

static int fill(char *text, unsigned int length, const char *value)
{
    if (length < strlen(value) + 1)
        return INSUFFICIENT_SIZE;
    strcpy(text, value);
    return SUCCESS;
}

int nvmlInit_v2(void) { return SUCCESS; }
int nvmlSystemGetDriverVersion(char *text, unsigned int length) { return fill(text, length, "570.86.10"); }
int nvmlDeviceGetCount_v2(unsigned int *count) { *count = 1; return SUCCESS; }

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    if (index != 0)
        return INVALID_ARGUMENT;
    *device = CARD;
    return SUCCESS;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    if (strcmp(uuid, "GPU-8932f937") != 0)
        return NOT_FOUND;
    *device = CARD;
    return SUCCESS;
}

int nvmlDeviceGetName(nvmlDevice_t device, char *text, unsigned int length)
{
    return device == CARD ? fill(text, length, "NVIDIA H100 80GB HBM3") : INVALID_ARGUMENT;
}

int nvmlDeviceGetUUID(nvmlDevice_t device, char *text, unsigned int length)
{
    return device == CARD ? fill(text, length, "GPU-8932f937") : INVALID_ARGUMENT;
}

int nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    if (device != CARD)
        return INVALID_ARGUMENT;
    *memory = (nvmlMemory_t){80 * GIB, 77 * GIB, 3 * GIB};
    return SUCCESS;
}

int PROCESSES(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *found)
{
    unsigned int room = *count;
    if (device != CARD)
        return INVALID_ARGUMENT;
    *count = 2;
    if (room < 2)
        return INSUFFICIENT_SIZE;
    found[0] = (nvmlProcessInfo_t){.pid = 4321, .usedGpuMemory = 2 * GIB};
    found[1] = (nvmlProcessInfo_t){.pid = 4322, .usedGpuMemory = ~0ULL};
    return SUCCESS;
}
