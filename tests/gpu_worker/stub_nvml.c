/* A libnvidia-ml for tests on machines without a GPU.
 *
 *     gcc -shared -fPIC -o libnvidia-ml.so.1 stub_nvml.c
 *
 * STUB_NVML_GPUS says how many GPUs it lists (default 2, at most 16). STUB_NVML_HANGS=1 makes every measurement hang,
 * as a sick driver does. GPU n is GPU-00000000-0000-0000-0000-00000000000n (n in hexadecimal) and has 80 GB of memory.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SUCCESS 0
#define INVALID_ARGUMENT 2
#define NOT_FOUND 6

typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned int gpu, memory; } utilization_t;

static char gpus[16];

static unsigned int number_of_gpus(void)
{
    const char *text = getenv("STUB_NVML_GPUS");
    int number = text ? atoi(text) : 2;
    return number < 0 ? 0 : number > 16 ? 16 : (unsigned int)number;
}

static unsigned int place(void *gpu) { return (unsigned int)((char *)gpu - gpus); }

static void maybe_hang(void)
{
    const char *text = getenv("STUB_NVML_HANGS");
    while (text && text[0] == '1')
        pause();
}

int nvmlInit_v2(void) { return SUCCESS; }
int nvmlInitWithFlags(unsigned int flags) { (void)flags; return SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }

const char *nvmlErrorString(int code)
{
    return code == SUCCESS ? "Success" : code == NOT_FOUND ? "Not Found" : "Invalid Argument";
}

int nvmlDeviceGetCount_v2(unsigned int *count)
{
    *count = number_of_gpus();
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **gpu)
{
    if (index >= number_of_gpus())
        return INVALID_ARGUMENT;
    *gpu = &gpus[index];
    return SUCCESS;
}

int nvmlDeviceGetUUID(void *gpu, char *text, unsigned int length)
{
    snprintf(text, length, "GPU-00000000-0000-0000-0000-00000000000%x", place(gpu));
    return SUCCESS;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **gpu)
{
    char name[64];
    for (unsigned int index = 0; index < number_of_gpus(); index++) {
        nvmlDeviceGetUUID(&gpus[index], name, sizeof name);
        if (!strcmp(name, uuid)) {
            *gpu = &gpus[index];
            return SUCCESS;
        }
    }
    return NOT_FOUND;
}

int nvmlDeviceGetName(void *gpu, char *text, unsigned int length)
{
    (void)gpu;
    snprintf(text, length, "Stub GPU");
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(void *gpu, memory_t *memory)
{
    maybe_hang();
    memory->total = 80000000000ULL;
    memory->used = 1000000000ULL * (place(gpu) + 1);
    memory->free = memory->total - memory->used;
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(void *gpu, utilization_t *rates)
{
    (void)gpu;
    rates->gpu = 75;
    rates->memory = 40;
    return SUCCESS;
}

int nvmlDeviceGetPowerUsage(void *gpu, unsigned int *milliwatts)
{
    *milliwatts = 400000 + 1000 * place(gpu);
    return SUCCESS;
}

int nvmlDeviceGetTemperature(void *gpu, int sensor, unsigned int *celsius)
{
    (void)sensor;
    *celsius = 50 + place(gpu);
    return SUCCESS;
}
