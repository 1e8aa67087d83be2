/* cuBLAS, cuBLASLt, cuDNN, NCCL and NVML, as far as torch calls them for GPT-2. Their headers are not in the wheels that
 * torch brings, or need more than a C compiler: what is used of them is declared here. */
#include "null.h"

/* ---- cuBLAS: products, counted by shape, with their floating-point operations ---- */

enum { TF32_MATH = 3, MATRIX_TYPE = 0, MATRIX_ROWS = 2, MATRIX_COLUMNS = 3, TRANSPOSE_A = 3 };
struct Blas { cudaStream_t stream; int math, pointers; };
typedef int (*Getter)(void *, int, void *, size_t, size_t *);

static int product(const char *what, long m, long n, long k, long batch, int type, cudaStream_t stream) {
    char shape[120];
    snprintf(shape, sizeof shape, "%s %ldx%ldx%ld%s type %d", what, m, n, k, batch > 1 ? " batched" : "", type);
    enqueue(stream, "product", shape, (uint64_t)(2.0 * (double)m * (double)n * (double)k * (double)(batch > 0 ? batch : 1)));
    return 0;
}
static cudaStream_t stream_of(void *handle) { return ((struct Blas *)handle)->stream; }
static const char *single(void *handle) { return ((struct Blas *)handle)->math == TF32_MATH ? "sgemm tf32" : "sgemm"; }

API int cublasCreate_v2(void **handle) {
    needs_context("cublasCreate");
    *handle = calloc(1, sizeof(struct Blas));
    return 0;
}
API int cublasDestroy_v2(void *handle) { return 0; }
API int cublasSetStream_v2(void *handle, cudaStream_t stream) {
    ((struct Blas *)handle)->stream = stream;
    return 0;
}
API int cublasSetWorkspace_v2(void *handle, void *workspace, size_t size) { return 0; }
API int cublasSetMathMode(void *handle, int mode) {
    ((struct Blas *)handle)->math = mode;
    return 0;
}
API int cublasGetMathMode(void *handle, int *mode) {
    *mode = ((struct Blas *)handle)->math;
    return 0;
}
API int cublasSetPointerMode_v2(void *handle, int mode) {
    ((struct Blas *)handle)->pointers = mode;
    return 0;
}
API int cublasGetPointerMode_v2(void *handle, int *mode) {
    *mode = ((struct Blas *)handle)->pointers;
    return 0;
}
API int cublasSetSmCountTarget(void *handle, int number) { return 0; }
API int cublasGemmEx(void *handle, int ta, int tb, int m, int n, int k, const void *alpha, const void *a, int type) {
    return product("gemm", m, n, k, 1, type, stream_of(handle));
}
API int cublasGemmStridedBatchedEx(void *handle, int ta, int tb, int m, int n, int k, const void *alpha, const void *a,
                                   int type, int lda, long long step_a, const void *b, int type_b, int ldb, long long step_b,
                                   const void *beta, void *c, int type_c, int ldc, long long step_c, int batch) {
    return product("gemm", m, n, k, batch, type, stream_of(handle));
}
API int cublasSgemm_v2(void *handle, int ta, int tb, int m, int n, int k) {
    return product(single(handle), m, n, k, 1, 0, stream_of(handle));
}
API int cublasSgemmStridedBatched(void *handle, int ta, int tb, int m, int n, int k, const float *alpha, const float *a, int lda,
                                  long long step_a, const float *b, int ldb, long long step_b, const float *beta, float *c,
                                  int ldc, long long step_c, int batch) {
    return product(single(handle), m, n, k, batch, 0, stream_of(handle));
}
API int cublasSgemmEx(void *handle, int ta, int tb, int m, int n, int k) { return product("sgemmEx", m, n, k, 1, 0, stream_of(handle)); }
API int cublasDgemm_v2(void *handle, int ta, int tb, int m, int n, int k) { return product("dgemm", m, n, k, 1, 1, stream_of(handle)); }
API int cublasSgemv_v2(void *handle, int ta, int m, int n) { return product("sgemv", m, n, 1, 1, 0, stream_of(handle)); }
API int cublasDgemv_v2(void *handle, int ta, int m, int n) { return product("dgemv", m, n, 1, 1, 1, stream_of(handle)); }
API int cublasDotEx(void *handle, int n) { return product("dot", n, 1, 1, 1, 0, stream_of(handle)); }
API int cublasSdot_v2(void *handle, int n) { return cublasDotEx(handle, n); }
API int cublasDdot_v2(void *handle, int n) { return cublasDotEx(handle, n); }

/* Descriptions of products are made by the real library, which needs no GPU for that. */
static uint64_t described(const char *getter, void *description, int which, size_t size) {
    static void *real;
    uint64_t value = 0;
    size_t written;
    if (!real) real = dlopen("libcublasLt.so.13", RTLD_LAZY | RTLD_NOLOAD);
    ((Getter)dlsym(real, getter))(description, which, &value, size, &written);
    return value;
}
API int cublasLtMatmulAlgoGetHeuristic(void *handle, void *product, void *a, void *b, void *c, void *d, void *preference,
                                       int asked, void *found, int *number) {
    memset(found, 0, 96); /* an algorithm, its workspace, its state, waves, reserved */
    *number = 1;
    return 0;
}
API int cublasLtMatmul(void *handle, void *description, const void *alpha, const void *a, void *layout_a, const void *b,
                       void *layout_b, const void *beta, const void *c, void *layout_c, void *d, void *layout_d,
                       const void *algorithm, void *workspace, size_t workspace_size, cudaStream_t stream) {
    static const char *const of = "cublasLtMatrixLayoutGetAttribute";
    long m = (long)described(of, layout_d, MATRIX_ROWS, 8), n = (long)described(of, layout_d, MATRIX_COLUMNS, 8);
    int is_transposed = (int)described("cublasLtMatmulDescGetAttribute", description, TRANSPOSE_A, 4) != 0;
    long k = (long)described(of, layout_a, is_transposed ? MATRIX_ROWS : MATRIX_COLUMNS, 8);
    return product("Lt", m, n, k, 1, (int)described(of, layout_a, MATRIX_TYPE, 4), stream);
}

/* ---- NCCL: messages are counted with their bytes, and go nowhere ---- */

static const int bytes_of[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1}; /* by ncclDataType_t */

static int message(const char *what, size_t number, int type, cudaStream_t stream) {
    enqueue(stream, "nccl", what, number * (size_t)bytes_of[type]);
    message_sent();
    return 0;
}
static int communicator(void **made, const char *what) {
    needs_context("ncclCommInit");
    count("nccl", what, 0);
    *made = calloc(1, sizeof(int));
    return 0;
}
API int ncclGetVersion(int *version) {
    *version = 22907;
    return 0;
}
API int ncclGetUniqueId(void *id) {
    memset(id, 7, 128);
    return 0;
}
API const char *ncclGetErrorString(int error) { return "an error of the null device"; }
API const char *ncclGetLastError(void *comm) { return "none"; }
API int ncclCommInitRank(void **comm, int size) { return communicator(comm, "communicator"); }
API int ncclCommInitRankConfig(void **comm, int size) { return communicator(comm, "communicator"); }
API int ncclCommInitRankScalable(void **comm, int size) { return communicator(comm, "communicator"); }
API int ncclCommSplit(void *comm, int color, int key, void **made, void *config) {
    *made = NULL;
    return color < 0 ? 0 : communicator(made, "split");
}
API int ncclCommDestroy(void *comm) { return 0; }
API int ncclCommFinalize(void *comm) { return 0; }
API int ncclCommAbort(void *comm) {
    count("nccl", "abort", 0);
    unstick();
    return 0;
}
API int ncclCommGetAsyncError(void *comm, int *error) {
    *error = 0;
    return 0;
}
API int ncclCommRegister(void *comm, void *buffer, size_t size, void **handle) {
    *handle = (void *)1;
    return 0;
}
API int ncclCommDeregister(void *comm, void *handle) { return 0; }
API int ncclCommUserRank(void *comm, int *rank) {
    *rank = 0;
    return 0;
}
API int ncclCommCount(void *comm, int *number) {
    *number = 1;
    return 0;
}
API int ncclGroupStart(void) { return 0; }
API int ncclGroupEnd(void) { return 0; }
API int ncclAllReduce(const void *from, void *to, size_t number, int type, int op, void *comm, cudaStream_t stream) {
    return message("all_reduce", number, type, stream);
}
API int ncclReduce(const void *from, void *to, size_t number, int type, int op, int root, void *comm, cudaStream_t stream) {
    return message("reduce", number, type, stream);
}
API int ncclBroadcast(const void *from, void *to, size_t number, int type, int root, void *comm, cudaStream_t stream) {
    return message("broadcast", number, type, stream);
}
API int ncclBcast(void *buffer, size_t number, int type, int root, void *comm, cudaStream_t stream) {
    return message("broadcast", number, type, stream);
}
API int ncclAllGather(const void *from, void *to, size_t number, int type, void *comm, cudaStream_t stream) {
    return message("all_gather (bytes of one)", number, type, stream);
}
API int ncclReduceScatter(const void *from, void *to, size_t number, int type, int op, void *comm, cudaStream_t stream) {
    return message("reduce_scatter (bytes of one)", number, type, stream);
}
API int ncclSend(const void *from, size_t number, int type, int peer, void *comm, cudaStream_t stream) {
    return message("send", number, type, stream);
}
API int ncclRecv(void *to, size_t number, int type, int peer, void *comm, cudaStream_t stream) {
    return message("recv", number, type, stream);
}
API int ncclRedOpCreatePreMulSum(int *op, void *scalar, int type, int residence, void *comm) {
    *op = 5;
    return 0;
}
API int ncclRedOpDestroy(int op, void *comm) { return 0; }

/* ---- cuDNN: one engine that does everything, which is attention ---- */

enum { HEURISTIC_RESULTS = 202, ENGINE_CONFIG_ENGINE = 300, SHARED_MEMORY_USED = 304, WORKSPACE_SIZE = 402, ENGINE_INDEX = 1301 };
static __thread cudaStream_t cudnn_stream;

API int cudnnCreate(void **handle) {
    needs_context("cudnnCreate");
    *handle = calloc(1, 64);
    return 0;
}
API int cudnnDestroy(void *handle) { return 0; }
API int cudnnSetStream(void *handle, cudaStream_t stream) {
    cudnn_stream = stream;
    return 0;
}
API int cudnnGetStream(void *handle, cudaStream_t *stream) {
    *stream = cudnn_stream;
    return 0;
}
API int cudnnBackendCreateDescriptor(int kind, void **made) {
    *made = calloc(1, 256);
    return 0;
}
API int cudnnBackendDestroyDescriptor(void *descriptor) { return 0; }
API int cudnnBackendInitialize(void *descriptor) { return 0; }
API int cudnnBackendFinalize(void *descriptor) { return 0; }
API int cudnnBackendSetAttribute(void *descriptor, int which, int type, int64_t number, const void *values) { return 0; }
API int cudnnBackendGetAttribute(void *descriptor, int which, int type, int64_t room, int64_t *number, void *values) {
    int is_there = 1;
    if (which == WORKSPACE_SIZE || which == ENGINE_INDEX) {
        if (values && room) *(int64_t *)values = 0;
    } else if (which == SHARED_MEMORY_USED) {
        if (values && room) *(int32_t *)values = 1024;
    } else {
        is_there = which == HEURISTIC_RESULTS || which == ENGINE_CONFIG_ENGINE;
    }
    if (number) *number = is_there;
    return 0;
}
API int cudnnBackendExecute(void *handle, void *plan, void *pack) {
    enqueue(cudnn_stream, "launch", "cudnn plan", 0);
    return 0;
}

/* ---- NVML ---- */

API int nvmlInit(void) { return 0; }
API int nvmlInit_v2(void) { return 0; }
API int nvmlShutdown(void) { return 0; }
API int nvmlDeviceGetCount_v2(unsigned *number) {
    *number = (unsigned)settings()->gpus;
    return 0;
}
API int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    *device = (void *)(uintptr_t)(index + 1);
    return 0;
}
API int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **device) {
    *device = (void *)1;
    return 0;
}
API int nvmlDeviceGetGpuFabricInfoV(void *device, void *info) { return 0; } /* its state stays 0: no fabric */
API int nvmlDeviceGetComputeRunningProcesses(void *device, unsigned *number, void *processes) {
    *number = 0;
    return 0;
}
API int nvmlSystemGetCudaDriverVersion_v2(int *version) { return (int)cudaDriverGetVersion(version); }
API int nvmlDeviceGetNvLinkRemoteDeviceType(void *device, unsigned link, unsigned *type) { return 3; }
API int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *device, unsigned link, void *info) { return 3; }
