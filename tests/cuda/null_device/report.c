/* Settings, counts, and the report that each process writes when it ends. */
#include "null.h"
#include <sys/syscall.h>

#define MOST_NOTES 200
#define CONTEXT_BYTES ((size_t)500 << 20)

__thread int current_device = 0;

static struct Settings chosen = {-1, 90, 0, (size_t)79 << 30, -1, "NVIDIA H100 80GB HBM3"};
static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static struct Row { char name[200]; uint64_t calls, total, largest; } *rows;
static int row_count, row_room;
static char notes[MOST_NOTES][256];
static int note_count;
static char context_by[MOST_GPUS][96];

const struct Settings *settings(void) {
    if (chosen.gpus >= 0) return &chosen;
    const char *value;
    if ((value = getenv("NULL_CUDA_CAPABILITY"))) chosen.capability = atoi(value);
    if ((value = getenv("NULL_CUDA_MEMORY"))) chosen.memory = strtoull(value, NULL, 10);
    if ((value = getenv("NULL_CUDA_NAME"))) snprintf(chosen.name, sizeof chosen.name, "%s", value);
    if ((value = getenv("NULL_CUDA_STUCK"))) chosen.stuck_after = atol(value);
    chosen.is_quiet = getenv("NULL_CUDA_QUIET") != NULL;
    chosen.gpus = (value = getenv("NULL_CUDA_GPUS")) ? atoi(value) : 1;
    return &chosen;
}

void count(const char *kind, const char *what, uint64_t size) {
    char name[200];
    if (settings()->is_quiet) return;
    snprintf(name, sizeof name, "%s %s", kind, what);
    pthread_mutex_lock(&lock);
    int at = 0;
    while (at < row_count && strcmp(rows[at].name, name)) at++;
    if (at == row_count) {
        if (row_count == row_room) rows = realloc(rows, sizeof *rows * (row_room += 256));
        rows[at] = (struct Row){{0}, 0, 0, 0};
        memcpy(rows[row_count++].name, name, sizeof name);
    }
    rows[at].calls++;
    rows[at].total += size;
    if (size > rows[at].largest) rows[at].largest = size;
    pthread_mutex_unlock(&lock);
}

void in_order(const char *format, ...) {
    static FILE *file;
    static pid_t owner;
    const char *path = getenv("NULL_CUDA_ORDER");
    if (!path) return;
    pthread_mutex_lock(&lock);
    if (owner != getpid()) {
        char own[4096];
        snprintf(own, sizeof own, "%s.%d", path, owner = getpid());
        file = fopen(own, "a");
    }
    va_list rest;
    va_start(rest, format);
    if (file) vfprintf(file, format, rest);
    va_end(rest);
    if (file) fflush(file);
    pthread_mutex_unlock(&lock);
}

static void thread_name(char *to, size_t room) {
    char name[32] = "?";
    pthread_getname_np(pthread_self(), name, sizeof name);
    snprintf(to, room, "%s%s", name, getpid() == (pid_t)syscall(SYS_gettid) ? " (main)" : "");
}

void note(const char *format, ...) {
    char said[160], thread[64];
    va_list rest;
    va_start(rest, format);
    vsnprintf(said, sizeof said, format, rest);
    va_end(rest);
    thread_name(thread, sizeof thread);
    pthread_mutex_lock(&lock);
    if (note_count < MOST_NOTES) snprintf(notes[note_count++], sizeof notes[0], "%s [thread %s]", said, thread);
    pthread_mutex_unlock(&lock);
}

void needs_context_on(int device, const char *call) {
    settings();
    if (device < 0 || device >= MOST_GPUS || context_by[device][0]) return;
    pthread_mutex_lock(&lock);
    if (!context_by[device][0]) {
        char thread[64];
        thread_name(thread, sizeof thread);
        snprintf(context_by[device], sizeof context_by[device], "%.40s in thread %.40s", call, thread);
        take(device, CONTEXT_BYTES);
    }
    pthread_mutex_unlock(&lock);
}

void needs_context(const char *call) { needs_context_on(current_device, call); }

int has_context(int device) { return context_by[device][0] != 0; }

/* ---- the report ---- */

static void write_string(FILE *file, const char *text) {
    fputc('"', file);
    for (; *text; text++) {
        if (*text == '"' || *text == '\\') fputc('\\', file);
        fputc((unsigned char)*text < 32 ? ' ' : *text, file);
    }
    fputc('"', file);
}

/* Begin to count anew; memory that is held stays counted. Called by tests through ctypes, as `null_cuda_report` is. */
API void null_cuda_reset(void) {
    pthread_mutex_lock(&lock);
    row_count = 0;
    reset_peaks();
    pthread_mutex_unlock(&lock);
}

API void null_cuda_report(const char *path) {
    FILE *file = fopen(path, "w");
    if (!file) return;
    pthread_mutex_lock(&lock);
    fprintf(file, "{\"process\": %d, \"contexts\": {", getpid());
    const char *comma = "";
    for (int device = 0; device < MOST_GPUS; device++) {
        if (!has_context(device)) continue;
        fprintf(file, "%s\"%d\": ", comma, device);
        write_string(file, context_by[device]);
        comma = ", ";
    }
    fprintf(file, "}, \"peak_bytes\": [");
    for (int device = 0; device < settings()->gpus; device++) fprintf(file, "%s%zu", device ? ", " : "", peak_memory(device));
    fprintf(file, "], \"notes\": [");
    for (int at = 0; at < note_count; at++) {
        fprintf(file, at ? ", " : "");
        write_string(file, notes[at]);
    }
    fprintf(file, "], \"counts\": {");
    for (int at = 0; at < row_count; at++) {
        fprintf(file, at ? ",\n" : "\n");
        write_string(file, rows[at].name);
        fprintf(file, ": [%llu, %llu, %llu]", (unsigned long long)rows[at].calls, (unsigned long long)rows[at].total,
                (unsigned long long)rows[at].largest);
    }
    fprintf(file, "\n}}\n");
    pthread_mutex_unlock(&lock);
    fclose(file);
}

__attribute__((destructor)) static void at_exit(void) {
    const char *path = getenv("NULL_CUDA_REPORT");
    char own[4096];
    if (!path || !row_count) return;
    snprintf(own, sizeof own, "%s.%d", path, getpid());
    null_cuda_report(own);
}

/* Processes of a run end without destructors. */
API void _exit(int status) {
    at_exit();
    syscall(SYS_exit_group, status);
    __builtin_unreachable();
}
