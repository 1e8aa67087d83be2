/* Memory of GPUs, page-locked memory of the host, and copies between them. */
#include "null.h"
#include <sys/mman.h>

#define COPIED_BYTES ((size_t)4 << 20)
/* Larger copies are counted, and not made. */
#define GRANULARITY ((size_t)2 << 20)

static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static size_t used[MOST_GPUS], peak[MOST_GPUS];
/* All blocks, by their first address. */
static struct Block { char *begin; size_t size; enum Kind kind; int device; } *blocks;
static int block_count, block_room;

int take(int device, size_t size) {
    pthread_mutex_lock(&lock);
    int has = used[device] + size <= settings()->memory;
    if (has && (used[device] += size) > peak[device]) peak[device] = used[device];
    pthread_mutex_unlock(&lock);
    return has;
}

void give_back(int device, size_t size) {
    pthread_mutex_lock(&lock);
    used[device] -= size;
    pthread_mutex_unlock(&lock);
}

size_t used_memory(int device) { return used[device]; }
size_t peak_memory(int device) { return peak[device]; }
void reset_peaks(void) { memcpy(peak, used, sizeof peak); }

/* The position of the block that holds an address, or -1. */
static int find(const void *pointer) {
    int low = 0, high = block_count - 1;
    while (low <= high) {
        int middle = (low + high) / 2;
        const struct Block *block = &blocks[middle];
        if ((const char *)pointer < block->begin) high = middle - 1;
        else if ((const char *)pointer >= block->begin + block->size) low = middle + 1;
        else return middle;
    }
    return -1;
}

static void add(void *begin, size_t size, enum Kind kind, int device) {
    if (block_count == block_room) blocks = realloc(blocks, sizeof *blocks * (block_room += 1024));
    int at = block_count++;
    for (; at > 0 && blocks[at - 1].begin > (char *)begin; at--) blocks[at] = blocks[at - 1];
    blocks[at] = (struct Block){begin, size ? size : 1, kind, device};
}

void *reserve(size_t size, enum Kind kind, int device) {
    size_t room = (size ? size : 1) + GRANULARITY;
    char *found = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (found == MAP_FAILED) return NULL;
    found = (char *)(((uintptr_t)found + GRANULARITY - 1) / GRANULARITY * GRANULARITY);
    pthread_mutex_lock(&lock);
    add(found, size, kind, device);
    pthread_mutex_unlock(&lock);
    return found;
}

size_t forget(void *pointer, int unmap, int *device) {
    size_t size = 0;
    pthread_mutex_lock(&lock);
    int at = find(pointer);
    if (at >= 0) {
        size = blocks[at].size;
        if (device) *device = blocks[at].device;
        if (unmap) munmap(blocks[at].begin, size);
        memmove(blocks + at, blocks + at + 1, sizeof *blocks * (--block_count - at));
    }
    pthread_mutex_unlock(&lock);
    return size;
}

static const char *place(const void *pointer) {
    pthread_mutex_lock(&lock);
    int at = find(pointer);
    const char *found = at < 0 ? "pageable" : blocks[at].kind == PINNED ? "pinned" : "device";
    pthread_mutex_unlock(&lock);
    return found;
}

cudaError_t copy(void *to, const void *from, size_t size, cudaStream_t stream, int is_async) {
    char what[96];
    const char *source = place(from), *target = place(to);
    int crosses = strcmp(source, "device") || strcmp(target, "device");
    int waits = crosses && (!is_async || !strcmp(source, "pageable") || !strcmp(target, "pageable"));
    if (waits) FORBIDDEN_IN_CAPTURE("a copy that the host waits for");
    snprintf(what, sizeof what, "%s to %s%s", source, target, waits ? ", host waits" : "");
    enqueue(stream, "copy", what, size);
    if (crosses && size <= COPIED_BYTES && !is_captured(stream)) {
        /* Nobody knows what a GPU would have computed: the host reads zeros. */
        if (!strcmp(source, "device")) memset(to, 0, size);
        else memmove(to, from, size);
    }
    return cudaSuccess;
}

/* ---- the runtime's functions ---- */

API cudaError_t cudaMalloc(void **pointer, size_t size) {
    needs_context("cudaMalloc");
    FORBIDDEN_IN_CAPTURE("cudaMalloc");
    int has = take(current_device, size);
    count("memory", has ? "cudaMalloc" : "cudaMalloc, out of memory", size);
    if (!has) return fail(cudaErrorMemoryAllocation);
    *pointer = reserve(size, DEVICE, current_device);
    return cudaSuccess;
}

API cudaError_t cudaFree(void *pointer) {
    int device;
    needs_context("cudaFree");
    if (!pointer) return cudaSuccess;
    FORBIDDEN_IN_CAPTURE("cudaFree");
    size_t size = forget(pointer, 1, &device);
    if (size) give_back(device, size);
    count("memory", "cudaFree", size);
    return cudaSuccess;
}

API cudaError_t cudaMemGetInfo(size_t *available, size_t *total) {
    needs_context("cudaMemGetInfo");
    *total = settings()->memory;
    *available = *total - used[current_device];
    return cudaSuccess;
}

API cudaError_t cudaHostAlloc(void **pointer, size_t size, unsigned flags) {
    needs_context("cudaHostAlloc");
    FORBIDDEN_IN_CAPTURE("cudaHostAlloc");
    count("memory", "cudaHostAlloc", size);
    *pointer = reserve(size, PINNED, current_device);
    return cudaSuccess;
}

API cudaError_t cudaFreeHost(void *pointer) {
    FORBIDDEN_IN_CAPTURE("cudaFreeHost");
    count("memory", "cudaFreeHost", forget(pointer, 1, NULL));
    return cudaSuccess;
}

API cudaError_t cudaHostRegister(void *pointer, size_t size, unsigned flags) {
    needs_context("cudaHostRegister");
    FORBIDDEN_IN_CAPTURE("cudaHostRegister");
    pthread_mutex_lock(&lock);
    int is_taken = find(pointer) >= 0 || find((char *)pointer + size - 1) >= 0;
    if (!is_taken) add(pointer, size, PINNED, current_device);
    pthread_mutex_unlock(&lock);
    count("memory", is_taken ? "cudaHostRegister, refused" : "cudaHostRegister", size);
    if (!is_taken) return cudaSuccess;
    note("cudaHostRegister of memory that is registered already");
    return fail(cudaErrorHostMemoryAlreadyRegistered);
}

API cudaError_t cudaHostUnregister(void *pointer) {
    size_t size = forget(pointer, 0, NULL);
    count("memory", "cudaHostUnregister", size);
    return size ? cudaSuccess : fail(cudaErrorHostMemoryNotRegistered);
}

API cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *found, const void *pointer) {
    memset(found, 0, sizeof *found);
    pthread_mutex_lock(&lock);
    int at = find(pointer);
    if (at >= 0) {
        found->type = blocks[at].kind == PINNED ? cudaMemoryTypeHost : cudaMemoryTypeDevice;
        found->device = blocks[at].device;
        found->hostPointer = found->devicePointer = (void *)pointer;
    }
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

API cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, enum cudaMemcpyKind kind, cudaStream_t stream) {
    needs_context("cudaMemcpyAsync");
    return copy(to, from, size, stream, 1);
}

API cudaError_t cudaMemcpy(void *to, const void *from, size_t size, enum cudaMemcpyKind kind) {
    needs_context("cudaMemcpy");
    return copy(to, from, size, 0, 0);
}

API cudaError_t cudaMemcpyPeerAsync(void *to, int target, const void *from, int source, size_t size, cudaStream_t stream) {
    return copy(to, from, size, stream, 1);
}

API cudaError_t cudaMemcpyToSymbol(const void *symbol, const void *from, size_t size, size_t offset, enum cudaMemcpyKind kind) {
    return cudaSuccess;
}

API cudaError_t cudaMemsetAsync(void *to, int value, size_t size, cudaStream_t stream) {
    needs_context("cudaMemsetAsync");
    enqueue(stream, "launch", "memset", size);
    return cudaSuccess;
}

API cudaError_t cudaMemset(void *to, int value, size_t size) { return cudaMemsetAsync(to, value, size, 0); }

API cudaError_t cudaGetSymbolAddress(void **pointer, const void *symbol) {
    *pointer = (void *)symbol;
    return cudaSuccess;
}
