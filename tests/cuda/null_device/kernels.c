/* Devices, and kernels: the names under which libtorch registers its own, and their launches. */
#include "null.h"

#define MULTIPROCESSORS 132
#define SHARED_MEMORY 49152
#define SHARED_MEMORY_OPTIN 232448
#define REGISTERS 65536
#define CUDA_VERSION_FOUND 13000

/* ---- devices ---- */

API cudaError_t cudaGetDeviceCount(int *number) {
    *number = settings()->gpus;
    return *number ? cudaSuccess : cudaErrorNoDevice;
}
API cudaError_t cudaGetDevice(int *device) {
    *device = current_device;
    return cudaSuccess;
}
API cudaError_t cudaSetDevice(int device) {
    if (device < 0 || device >= settings()->gpus) return fail(cudaErrorInvalidDevice);
    current_device = device;
    needs_context("cudaSetDevice");
    return cudaSuccess;
}
API cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *found, int device) {
    memset(found, 0, sizeof *found);
    snprintf(found->name, sizeof found->name, "%s", settings()->name);
    found->totalGlobalMem = settings()->memory;
    found->major = settings()->capability / 10;
    found->minor = settings()->capability % 10;
    found->multiProcessorCount = MULTIPROCESSORS;
    found->warpSize = 32;
    found->regsPerBlock = found->regsPerMultiprocessor = REGISTERS;
    found->maxThreadsPerBlock = 1024;
    found->maxThreadsPerMultiProcessor = 2048;
    found->maxBlocksPerMultiProcessor = 32;
    found->sharedMemPerBlock = SHARED_MEMORY;
    found->sharedMemPerBlockOptin = SHARED_MEMORY_OPTIN;
    found->sharedMemPerMultiprocessor = SHARED_MEMORY_OPTIN + 1024;
    found->l2CacheSize = 50 << 20;
    found->maxGridSize[0] = 2147483647;
    found->maxGridSize[1] = found->maxGridSize[2] = 65535;
    found->maxThreadsDim[0] = found->maxThreadsDim[1] = 1024;
    found->maxThreadsDim[2] = 64;
    found->asyncEngineCount = 3;
    found->unifiedAddressing = found->concurrentKernels = found->cooperativeLaunch = found->canMapHostMemory = 1;
    found->memoryBusWidth = 5120;
    found->textureAlignment = 512;
    found->pciBusID = 16 + device;
    found->uuid.bytes[15] = (char)device;
    return cudaSuccess;
}

int attribute(int which) {
    switch (which) {
    case cudaDevAttrComputeCapabilityMajor: return settings()->capability / 10;
    case cudaDevAttrComputeCapabilityMinor: return settings()->capability % 10;
    case cudaDevAttrMultiProcessorCount: return MULTIPROCESSORS;
    case cudaDevAttrWarpSize: return 32;
    case cudaDevAttrMaxThreadsPerBlock: case cudaDevAttrMaxBlockDimX: case cudaDevAttrMaxBlockDimY: return 1024;
    case cudaDevAttrMaxBlockDimZ: return 64;
    case cudaDevAttrMaxThreadsPerMultiProcessor: return 2048;
    case cudaDevAttrMaxSharedMemoryPerBlock: return SHARED_MEMORY;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: return SHARED_MEMORY_OPTIN;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: return SHARED_MEMORY_OPTIN + 1024;
    case cudaDevAttrMaxRegistersPerBlock: case cudaDevAttrMaxRegistersPerMultiprocessor: return REGISTERS;
    case cudaDevAttrL2CacheSize: return 50 << 20;
    case cudaDevAttrMaxGridDimX: return 2147483647;
    case cudaDevAttrMaxGridDimY: case cudaDevAttrMaxGridDimZ: return 65535;
    case cudaDevAttrUnifiedAddressing: case cudaDevAttrCanMapHostMemory: case cudaDevAttrCooperativeLaunch: return 1;
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED: return 1;
    case cudaDevAttrClockRate: return 1980000;
    case cudaDevAttrGlobalMemoryBusWidth: return 5120;
    default: return 0;
    }
}
API cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr which, int device) {
    *value = attribute((int)which);
    return cudaSuccess;
}
API cudaError_t cudaDeviceGetPCIBusId(char *id, int room, int device) {
    snprintf(id, (size_t)room, "0000:%02x:00.0", 16 + device);
    return cudaSuccess;
}
API cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    needs_context("cudaDeviceGetStreamPriorityRange");
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return cudaSuccess;
}
API cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) {
    *can = 1;
    return cudaSuccess;
}
API cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) { return cudaSuccess; }
API cudaError_t cudaDriverGetVersion(int *version) {
    *version = CUDA_VERSION_FOUND;
    return cudaSuccess;
}
API cudaError_t cudaRuntimeGetVersion(int *version) { return cudaDriverGetVersion(version); }
API cudaError_t cudaProfilerStart(void) { return cudaSuccess; }
API cudaError_t cudaProfilerStop(void) { return cudaSuccess; }

/* ---- the kernels that libtorch registers when it is loaded: by address, in a hash table ---- */

#define SLOTS (1 << 19)
static struct { const void *function; const char *name; } registered[SLOTS];
static void *binary;

API void **__cudaRegisterFatBinary(void *fat_binary) { return &binary; }
API void __cudaRegisterFatBinaryEnd(void **handle) {}
API void __cudaUnregisterFatBinary(void **handle) {}
API char __cudaInitModule(void **handle) { return 1; }
API void __cudaRegisterVar(void **handle, char *variable, char *address, const char *name, int is_extern, size_t size,
                           int is_constant, int is_global) {}

/* The slot of a function, or the free one where it belongs. */
static size_t slot_of(const void *function) {
    size_t at = ((uintptr_t)function >> 4) % SLOTS;
    while (registered[at].function && registered[at].function != function) at = (at + 1) % SLOTS;
    return at;
}
API void __cudaRegisterFunction(void **handle, const char *function, char *device_function, const char *name, int limit,
                                void *thread, void *block, void *block_size, void *grid_size, int *warp_size) {
    size_t at = slot_of(function);
    registered[at].function = function;
    registered[at].name = name;
}

/* What `kernel<<<grid, block, shared, stream>>>` pushes for the stub that launches it. */
static __thread struct { dim3 grid, block; size_t shared; void *stream; } pushed;
API unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, struct CUstream_st *stream) {
    pushed.grid = grid;
    pushed.block = block;
    pushed.shared = shared;
    pushed.stream = stream;
    return 0;
}
API cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
    *grid = pushed.grid;
    *block = pushed.block;
    *shared = pushed.shared;
    *(void **)stream = pushed.stream;
    return cudaSuccess;
}

static cudaError_t launch(const void *function, cudaStream_t stream) {
    const char *name = registered[slot_of(function)].name;
    needs_context("a kernel");
    enqueue(stream, "launch", name ? name : "a kernel without a name", 0);
    return cudaSuccess;
}
API cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *function) {
    *kernel = (cudaKernel_t)function;
    return cudaSuccess;
}
API cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream) {
    return launch((const void *)kernel, stream);
}
API cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream) {
    return launch(function, stream);
}
API cudaError_t cudaLaunchCooperativeKernel(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared,
                                            cudaStream_t stream) {
    return launch(function, stream);
}
API cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *function, void **arguments) {
    return launch(function, config->stream);
}
API cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *found, const void *function) {
    memset(found, 0, sizeof *found);
    found->maxThreadsPerBlock = 1024;
    found->numRegs = 64;
    found->ptxVersion = found->binaryVersion = settings()->capability;
    found->maxDynamicSharedSizeBytes = SHARED_MEMORY;
    return cudaSuccess;
}
API cudaError_t cudaFuncSetAttribute(const void *function, enum cudaFuncAttribute which, int value) { return cudaSuccess; }
API cudaError_t cudaKernelSetAttributeForDevice(cudaKernel_t kernel, enum cudaFuncAttribute which, int value, int device) {
    return cudaSuccess;
}
API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *function, int block, size_t shared) {
    *blocks = 2;
    return cudaSuccess;
}
API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *function, int block,
                                                                       size_t shared, unsigned flags) {
    *blocks = 2;
    return cudaSuccess;
}
