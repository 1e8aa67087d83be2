/* Streams, events, graphs, and what the host may do while one is captured. */
#include "null.h"
#include <errno.h>

struct Stream {
    int is_capturing, is_invalid, nodes;
    enum cudaStreamCaptureMode mode;
    pthread_t owner;
    unsigned long long id;
};
struct Event { struct Stream *stream; int is_in_capture, is_stuck; };

static __thread cudaError_t last_error = cudaSuccess;
static __thread enum cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;
static struct Stream default_streams[3]; /* the handles 0, 1 and 2 */
static struct Stream *capture;           /* the stream that captures, of which there is one at a time */
static unsigned long long captures;

cudaError_t fail(cudaError_t error) { return last_error = error; }
API cudaError_t cudaGetLastError(void) {
    cudaError_t found = last_error;
    last_error = cudaSuccess;
    return found;
}
API cudaError_t cudaPeekAtLastError(void) { return last_error; }
API const char *cudaGetErrorName(cudaError_t error) { return "cudaErrorOfTheNullDevice"; }
API const char *cudaGetErrorString(cudaError_t error) {
    switch (error) {
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorStreamCaptureUnsupported: return "operation not permitted when stream is capturing";
    case cudaErrorStreamCaptureInvalidated: return "operation failed due to a previous error during capture";
    default: return "an error of the null device";
    }
}

static struct Stream *stream_of(cudaStream_t handle) {
    return (uintptr_t)handle <= 2 ? &default_streams[(uintptr_t)handle] : (struct Stream *)handle;
}

int is_captured(cudaStream_t stream) { return stream_of(stream)->is_capturing; }

void enqueue(cudaStream_t handle, const char *kind, const char *what, uint64_t size) {
    struct Stream *stream = stream_of(handle);
    if (stream->is_capturing) {
        stream->nodes++;
        kind = "captured";
    }
    count(kind, what, size);
    in_order("run %p %s %s\n", (void *)stream, kind, what);
}

int is_forbidden(const char *call) {
    struct Stream *stream = capture;
    if (!stream || thread_mode == cudaStreamCaptureModeRelaxed || stream->mode == cudaStreamCaptureModeRelaxed) return 0;
    if (stream->mode != cudaStreamCaptureModeGlobal && !pthread_equal(stream->owner, pthread_self())) return 0;
    note("%s is not permitted while a graph is captured: the capture is invalid", call);
    stream->is_invalid = 1;
    return 1;
}

/* ---- a GPU that ends nothing more ---- */

static pthread_mutex_t stuck_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t unstuck = PTHREAD_COND_INITIALIZER;
static long messages;
static int is_stuck;

void message_sent(void) {
    pthread_mutex_lock(&stuck_lock);
    if (settings()->stuck_after >= 0 && ++messages == settings()->stuck_after) {
        is_stuck = 1;
        note("the GPU is stuck in message %ld", messages);
    }
    pthread_mutex_unlock(&stuck_lock);
}

void unstick(void) {
    pthread_mutex_lock(&stuck_lock);
    is_stuck = 0;
    pthread_cond_broadcast(&unstuck);
    pthread_mutex_unlock(&stuck_lock);
}

static void wait_until_unstuck(void) {
    pthread_mutex_lock(&stuck_lock);
    while (is_stuck) pthread_cond_wait(&unstuck, &stuck_lock);
    pthread_mutex_unlock(&stuck_lock);
}

void host_waits(const char *call) {
    count("wait", call, 0);
    wait_until_unstuck();
}

/* ---- streams ---- */

API cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority) {
    needs_context("cudaStreamCreate");
    *stream = (cudaStream_t)calloc(1, sizeof(struct Stream));
    return cudaSuccess;
}
API cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
    return cudaStreamCreateWithPriority(stream, flags, 0);
}
API cudaError_t cudaStreamCreate(cudaStream_t *stream) { return cudaStreamCreateWithPriority(stream, 0, 0); }
API cudaError_t cudaStreamDestroy(cudaStream_t stream) { return cudaSuccess; }
API cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority) {
    *priority = 0;
    return cudaSuccess;
}
API cudaError_t cudaStreamQuery(cudaStream_t stream) {
    needs_context("cudaStreamQuery");
    FORBIDDEN_IN_CAPTURE("cudaStreamQuery");
    return is_stuck ? cudaErrorNotReady : cudaSuccess;
}
API cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    needs_context("cudaStreamSynchronize");
    FORBIDDEN_IN_CAPTURE("cudaStreamSynchronize");
    host_waits("cudaStreamSynchronize");
    return cudaSuccess;
}
API cudaError_t cudaDeviceSynchronize(void) {
    needs_context("cudaDeviceSynchronize");
    FORBIDDEN_IN_CAPTURE("cudaDeviceSynchronize");
    host_waits("cudaDeviceSynchronize");
    return cudaSuccess;
}
API cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t waited_for, unsigned flags) {
    struct Event *event = (struct Event *)waited_for;
    struct Stream *stream = stream_of(handle);
    in_order("wait %p %p\n", (void *)stream, (void *)event);
    /* A stream that waits for one that is captured joins its capture. */
    if (event->is_in_capture && event->stream->is_capturing && !stream->is_capturing) {
        stream->is_capturing = 1;
        stream->id = event->stream->id;
        stream->mode = event->stream->mode;
        stream->owner = event->stream->owner;
    }
    return cudaSuccess;
}
API cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data) {
    function(data);
    return cudaSuccess;
}
API cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t function, void *data, unsigned flags) {
    function(stream, cudaSuccess, data);
    return cudaSuccess;
}

/* ---- events ---- */

API cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
    needs_context("cudaEventCreate");
    *event = (cudaEvent_t)calloc(1, sizeof(struct Event));
    return cudaSuccess;
}
API cudaError_t cudaEventCreate(cudaEvent_t *event) { return cudaEventCreateWithFlags(event, 0); }
API cudaError_t cudaEventDestroy(cudaEvent_t event) {
    needs_context("cudaEventDestroy");
    free(event);
    return cudaSuccess;
}
API cudaError_t cudaEventRecordWithFlags(cudaEvent_t recorded, cudaStream_t handle, unsigned flags) {
    struct Stream *stream = stream_of(handle);
    needs_context("cudaEventRecord");
    *(struct Event *)recorded = (struct Event){stream, stream->is_capturing, is_stuck};
    in_order("record %p %p\n", (void *)stream, (void *)recorded);
    return cudaSuccess;
}
API cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) { return cudaEventRecordWithFlags(event, stream, 0); }
API cudaError_t cudaEventQuery(cudaEvent_t event) {
    needs_context("cudaEventQuery");
    FORBIDDEN_IN_CAPTURE("cudaEventQuery");
    count("query", "cudaEventQuery", 0);
    return is_stuck && ((struct Event *)event)->is_stuck ? cudaErrorNotReady : cudaSuccess;
}
API cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    needs_context("cudaEventSynchronize");
    FORBIDDEN_IN_CAPTURE("cudaEventSynchronize");
    count("wait", "cudaEventSynchronize", 0);
    if (((struct Event *)event)->is_stuck) wait_until_unstuck();
    return cudaSuccess;
}
API cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t from, cudaEvent_t to) {
    *milliseconds = 1;
    return cudaSuccess;
}

/* ---- capture and graphs; the handle of a graph points to its number of nodes ---- */

API cudaError_t cudaStreamBeginCapture(cudaStream_t handle, enum cudaStreamCaptureMode mode) {
    static const char *const names[] = {"global", "thread_local", "relaxed"};
    struct Stream *stream = stream_of(handle);
    if ((uintptr_t)handle <= 1) return fail(cudaErrorStreamCaptureUnsupported);
    *stream = (struct Stream){1, 0, 0, mode, pthread_self(), ++captures};
    capture = stream;
    note("a capture begins, mode %s", names[mode]);
    return cudaSuccess;
}
API cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t *graph) {
    struct Stream *stream = stream_of(handle);
    stream->is_capturing = 0;
    capture = NULL;
    note("a capture ends with %d nodes%s", stream->nodes, stream->is_invalid ? ", invalid" : "");
    *graph = NULL;
    if (stream->is_invalid) return fail(cudaErrorStreamCaptureInvalidated);
    int *nodes = malloc(sizeof *nodes);
    *nodes = stream->nodes;
    *graph = (cudaGraph_t)nodes;
    return cudaSuccess;
}
API cudaError_t cudaStreamIsCapturing(cudaStream_t handle, enum cudaStreamCaptureStatus *status) {
    struct Stream *stream = stream_of(handle);
    needs_context("cudaStreamIsCapturing");
    *status = !stream->is_capturing ? cudaStreamCaptureStatusNone
              : stream->is_invalid  ? cudaStreamCaptureStatusInvalidated
                                    : cudaStreamCaptureStatusActive;
    return cudaSuccess;
}
API cudaError_t cudaStreamGetCaptureInfo(cudaStream_t handle, enum cudaStreamCaptureStatus *status, unsigned long long *id,
                                         cudaGraph_t *graph, const cudaGraphNode_t **dependencies,
                                         const cudaGraphEdgeData **edges, size_t *number) {
    if (id) *id = stream_of(handle)->id;
    if (graph) *graph = (cudaGraph_t)stream_of(handle);
    if (dependencies) *dependencies = NULL;
    if (edges) *edges = NULL;
    if (number) *number = 0;
    return cudaStreamIsCapturing(handle, status);
}
API cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t stream, cudaGraphNode_t *nodes, const cudaGraphEdgeData *edges,
                                                    size_t number, unsigned flags) {
    return cudaSuccess;
}
API cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) {
    enum cudaStreamCaptureMode before = thread_mode;
    thread_mode = *mode;
    *mode = before;
    return cudaSuccess;
}
API cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *made, cudaGraph_t graph, unsigned long long flags) {
    *made = (cudaGraphExec_t)graph;
    return cudaSuccess;
}
API cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
    char what[64];
    snprintf(what, sizeof what, "graph of %d nodes", graph ? *(int *)graph : 0);
    enqueue(stream, "launch", what, 0);
    return cudaSuccess;
}
API cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *number) {
    *number = graph ? *(int *)graph : 0;
    return cudaSuccess;
}
API cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return cudaSuccess; }
API cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) { return cudaSuccess; }
