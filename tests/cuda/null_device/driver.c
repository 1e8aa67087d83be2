/* The driver, libcuda.so.1: contexts, modules and kernels of Triton, and memory in pieces (expandable segments). */
#include "null.h"

struct Function { char name[160]; };
struct Piece { size_t size; int device; };
static __thread CUcontext chosen_context;

static CUcontext context_of(int device) { return (CUcontext)(uintptr_t)(device + 1); }

API CUresult cuInit(unsigned flags) { return settings()->gpus ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE; }
API CUresult cuDriverGetVersion(int *version) { return (CUresult)cudaDriverGetVersion(version); }
API CUresult cuGetErrorString(CUresult error, const char **text) {
    *text = error == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory" : "an error of the null device";
    return CUDA_SUCCESS;
}
API CUresult cuGetErrorName(CUresult error, const char **text) {
    *text = error == CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_OF_THE_NULL_DEVICE";
    return CUDA_SUCCESS;
}

/* ---- devices and contexts: each device has its primary context only ---- */

API CUresult cuDeviceGet(CUdevice *device, int number) {
    *device = number;
    return CUDA_SUCCESS;
}
API CUresult cuDeviceGetCount(int *number) {
    *number = settings()->gpus;
    return CUDA_SUCCESS;
}
API CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute which, CUdevice device) {
    int is_missing = which == CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED || which == CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED;
    *value = is_missing ? 0 : attribute((int)which);
    return CUDA_SUCCESS;
}
API CUresult cuDeviceGetName(char *name, int room, CUdevice device) {
    snprintf(name, (size_t)room, "%s", settings()->name);
    return CUDA_SUCCESS;
}
API CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    *bytes = settings()->memory;
    return CUDA_SUCCESS;
}
API CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device) {
    memset(uuid, 0, sizeof *uuid);
    uuid->bytes[15] = (char)device;
    return CUDA_SUCCESS;
}
API CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *is_active) {
    if (flags) *flags = 0;
    *is_active = has_context(device);
    return CUDA_SUCCESS;
}
API CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    needs_context_on(device, "cuDevicePrimaryCtxRetain");
    *context = context_of(device);
    return CUDA_SUCCESS;
}
API CUresult cuCtxGetCurrent(CUcontext *context) {
    *context = chosen_context ? chosen_context : has_context(current_device) ? context_of(current_device) : NULL;
    return CUDA_SUCCESS;
}
API CUresult cuCtxSetCurrent(CUcontext context) {
    chosen_context = context;
    return CUDA_SUCCESS;
}
API CUresult cuCtxPushCurrent_v2(CUcontext context) { return CUDA_SUCCESS; }
API CUresult cuCtxPopCurrent_v2(CUcontext *context) { return CUDA_SUCCESS; }
API CUresult cuCtxGetDevice(CUdevice *device) {
    *device = current_device;
    return CUDA_SUCCESS;
}
API CUresult cuCtxGetLimit(size_t *value, CUlimit limit) {
    *value = 1024;
    return CUDA_SUCCESS;
}
API CUresult cuCtxSetLimit(CUlimit limit, size_t value) { return CUDA_SUCCESS; }
API CUresult cuPointerGetAttribute(void *found, CUpointer_attribute which, CUdeviceptr pointer) {
    *(CUdeviceptr *)found = pointer;
    return CUDA_SUCCESS;
}
API CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr pointer) { return CUDA_ERROR_INVALID_VALUE; }

/* ---- modules: what Triton has compiled ---- */

API CUresult cuModuleLoadData(CUmodule *module, const void *image) {
    needs_context("cuModuleLoadData");
    count("module", "loaded", 0);
    *module = (CUmodule)calloc(1, 8);
    return CUDA_SUCCESS;
}
API CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned number, CUjit_option *options, void **values) {
    return cuModuleLoadData(module, image);
}
API CUresult cuModuleLoad(CUmodule *module, const char *path) { return cuModuleLoadData(module, path); }
API CUresult cuModuleUnload(CUmodule module) { return CUDA_SUCCESS; }
API CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    struct Function *made = calloc(1, sizeof *made);
    snprintf(made->name, sizeof made->name, "%s", name);
    *function = (CUfunction)made;
    return CUDA_SUCCESS;
}
API CUresult cuFuncGetAttribute(int *value, CUfunction_attribute which, CUfunction function) {
    *value = which == CU_FUNC_ATTRIBUTE_NUM_REGS ? 32 : which == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : 0;
    return CUDA_SUCCESS;
}
API CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute which, int value) { return CUDA_SUCCESS; }
API CUresult cuFuncSetCacheConfig(CUfunction function, CUfunc_cache config) { return CUDA_SUCCESS; }
API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int block, size_t shared) {
    *blocks = 2;
    return CUDA_SUCCESS;
}
API CUresult cuOccupancyMaxActiveClusters(int *clusters, CUfunction function, const CUlaunchConfig *config) {
    *clusters = 2;
    return CUDA_SUCCESS;
}

static CUresult launch(CUfunction function, CUstream stream) {
    needs_context("a kernel");
    enqueue((cudaStream_t)stream, "launch", ((struct Function *)function)->name, 0);
    return CUDA_SUCCESS;
}
API CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned x, unsigned y,
                            unsigned z, unsigned shared, CUstream stream, void **arguments, void **extra) {
    return launch(function, stream);
}
API CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **arguments, void **extra) {
    return launch(function, config->hStream);
}
API CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned x,
                                       unsigned y, unsigned z, unsigned shared, CUstream stream, void **arguments) {
    return launch(function, stream);
}
API CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address,
                                    const cuuint64_t *dims, const cuuint64_t *strides, const cuuint32_t *box,
                                    const cuuint32_t *steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                    CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
    return CUDA_SUCCESS;
}

/* ---- memory in pieces that are mapped into reserved addresses ---- */

API CUresult cuMemGetAllocationGranularity(size_t *size, const CUmemAllocationProp *wanted, CUmemAllocationGranularity_flags flags) {
    *size = (size_t)2 << 20;
    return CUDA_SUCCESS;
}
API CUresult cuMemAddressReserve(CUdeviceptr *pointer, size_t size, size_t alignment, CUdeviceptr address, unsigned long long flags) {
    *pointer = (CUdeviceptr)reserve(size, DEVICE, current_device);
    return *pointer ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
API CUresult cuMemAddressFree(CUdeviceptr pointer, size_t size) {
    forget((void *)pointer, 1, NULL);
    return CUDA_SUCCESS;
}
API CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *wanted, unsigned long long flags) {
    int device = wanted->location.id;
    needs_context_on(device, "cuMemCreate");
    int has = take(device, size);
    count("memory", has ? "cuMemCreate" : "cuMemCreate, out of memory", size);
    if (!has) return CUDA_ERROR_OUT_OF_MEMORY;
    struct Piece *piece = malloc(sizeof *piece);
    *piece = (struct Piece){size, device};
    *handle = (CUmemGenericAllocationHandle)(uintptr_t)piece;
    return CUDA_SUCCESS;
}
API CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    struct Piece *piece = (struct Piece *)(uintptr_t)handle;
    count("memory", "cuMemRelease", piece->size);
    give_back(piece->device, piece->size);
    free(piece);
    return CUDA_SUCCESS;
}
API CUresult cuMemMap(CUdeviceptr pointer, size_t size, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags) {
    return CUDA_SUCCESS;
}
API CUresult cuMemUnmap(CUdeviceptr pointer, size_t size) { return CUDA_SUCCESS; }
API CUresult cuMemSetAccess(CUdeviceptr pointer, size_t size, const CUmemAccessDesc *access, size_t number) { return CUDA_SUCCESS; }

/* ---- by name: what is not there says that it is not supported ---- */

API CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t size, CUstream stream) {
    return copy((void *)to, from, size, (cudaStream_t)stream, 1) ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}
API CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags) { return CUDA_SUCCESS; }
API CUresult cuMemsetD32Async(CUdeviceptr pointer, unsigned value, size_t number, CUstream stream) { return CUDA_SUCCESS; }

static CUresult not_supported(void) { return CUDA_ERROR_NOT_SUPPORTED; }
API cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version, unsigned long long flags,
                                                 enum cudaDriverEntryPointQueryResult *status) {
    static void *self;
    char newer[160];
    if (!self) self = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    snprintf(newer, sizeof newer, "%s_v2", symbol);
    *function = self ? dlsym(self, newer) : NULL;
    if (!*function && self) *function = dlsym(self, symbol);
    if (!*function) *function = (void *)not_supported;
    if (status) *status = cudaDriverEntryPointSuccess;
    return cudaSuccess;
}
