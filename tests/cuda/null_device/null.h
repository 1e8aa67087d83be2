/* A CUDA runtime and driver for machines without a GPU: every call succeeds, and nothing is computed.
 *
 * The library is preloaded, so that its functions stand before those of libcudart, libcublas, libcublasLt, libcudnn and
 * libnccl, and it is libcuda.so.1 and libnvidia-ml.so.1. Device memory is address space that nobody touches, counted
 * against the memory of the GPU that is pretended; the host reads zeros from it. What a process asks is counted by name
 * and written as JSON when it ends.
 *
 * Settings, from the environment:
 *   NULL_CUDA_GPUS         how many GPUs there are (1)
 *   NULL_CUDA_MEMORY       bytes of each (79 GiB)
 *   NULL_CUDA_CAPABILITY   compute capability, as 90 for 9.0
 *   NULL_CUDA_NAME         the name of the GPU
 *   NULL_CUDA_REPORT       a file: each process writes this name, a dot and its number
 *   NULL_CUDA_QUIET        count nothing, to see how long the host takes by itself
 *   NULL_CUDA_ORDER        a file: each process writes this name, a dot and its number, and in it the order of what streams run
 *   NULL_CUDA_STUCK        after that many messages of NCCL nothing more on the GPU ends, as when another rank has died
 */
#pragma once
#define _GNU_SOURCE
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))
#define MOST_GPUS 64

/* ---- settings.c, report.c ---- */

struct Settings {
    int gpus, capability, is_quiet;
    size_t memory;
    long stuck_after;
    char name[128];
};
const struct Settings *settings(void);

/* Count one call `kind what`, with its bytes or operations. */
void count(const char *kind, const char *what, uint64_t size);
/* A line of the file that says in which order streams run and wait for what. */
void in_order(const char *format, ...);
/* An event worth a line of the report, with the thread it happened in. */
void note(const char *format, ...);
/* The GPU that this thread has chosen. */
extern __thread int current_device;
/* Note which call, by which thread, first needs a context on a GPU: it takes half a gigabyte there. */
void needs_context_on(int device, const char *call);
void needs_context(const char *call);
int has_context(int device);

/* ---- memory.c ---- */

enum Kind { DEVICE, PINNED };
/* Take memory of a GPU, or give it back. `take` returns 0 where there is not enough. */
int take(int device, size_t size);
void give_back(int device, size_t size);
size_t used_memory(int device);
size_t peak_memory(int device);
void reset_peaks(void);
/* Address space that is not backed by memory until it is touched. */
void *reserve(size_t size, enum Kind kind, int device);
/* Forget a block; with `unmap` its address space is given back, too. Returns its size, or 0 if there is none. */
size_t forget(void *pointer, int unmap, int *device);
/* A copy that the stream makes, or that the host waits for. */
cudaError_t copy(void *to, const void *from, size_t size, cudaStream_t stream, int is_async);

/* ---- streams.c ---- */

cudaError_t fail(cudaError_t error);
/* Put work on a stream: it is counted as `kind what`, or as captured where the stream captures a graph. */
void enqueue(cudaStream_t stream, const char *kind, const char *what, uint64_t size);
int is_captured(cudaStream_t stream);
/* True if CUDA forbids the call because a graph is being captured; the capture is then invalid. */
int is_forbidden(const char *call);
#define FORBIDDEN_IN_CAPTURE(call) do { if (is_forbidden(call)) return fail(cudaErrorStreamCaptureUnsupported); } while (0)
/* A message of NCCL was sent: from the last one on (NULL_CUDA_STUCK) the GPU ends nothing more, until `unstick`. */
void message_sent(void);
void unstick(void);
/* Counts that the host waits, and waits while the GPU is stuck. */
void host_waits(const char *call);

/* ---- kernels.c ---- */

int attribute(int which);
