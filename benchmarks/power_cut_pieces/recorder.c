/* Records what programs do to the files below one folder: `LD_PRELOAD=recorder.so RECORD_BELOW=/folder RECORD_IN=/log`.

   Each call is done and noted under one lock of all processes, so that the order of the log is the order of the effects.
   A record is six words (kind, inode, time of change, offset, and the lengths of two byte strings) and the two strings,
   which are paths or what was written. Text that goes to standard output and error is noted, too: it says what is done. Not seen are
   writes to mapped memory, and those that the C library does inside of fwrite. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define PATH 4200
#define REAL(name) ((__typeof__(&name))real(#name))

static const char *below, *log_path;
static size_t below_size;
static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;

static void take(void) { pthread_mutex_lock(&turn); }
static void give(void) { pthread_mutex_unlock(&turn); }

__attribute__((constructor)) static void begin(void) {
    below = getenv("RECORD_BELOW");
    log_path = getenv("RECORD_IN");
    below_size = below ? strlen(below) : 0;
    pthread_atfork(take, give, give);
}

static void *real(const char *name) { return dlsym(RTLD_NEXT, name); }

static int is_below(const char *path) {
    return below && log_path && !strncmp(path, below, below_size) && (!path[below_size] || path[below_size] == '/');
}

static int path_of(int descriptor, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t size = readlink(link, path, PATH - 1);
    path[size < 0 ? 0 : size] = 0;
    return is_below(path);
}

static int resolve(int folder, const char *name, char *path) {
    if (!name || !below) return 0;
    if (name[0] == '/') snprintf(path, PATH, "%s", name);
    else {
        char base[PATH];
        if (folder == AT_FDCWD) { if (!getcwd(base, PATH)) return 0; }
        else path_of(folder, base);
        if (strlen(base) + strlen(name) + 2 > PATH) return 0;
        memcpy(path, base, strlen(base) + 1);
        strcat(strcat(path, "/"), name);
    }
    return is_below(path);
}

static struct stat status(int descriptor) {
    struct stat found;
    memset(&found, 0, sizeof found);
    fstat(descriptor, &found);
    return found;
}

static int locked(void) {
    pthread_mutex_lock(&turn);
    int file = syscall(SYS_openat, AT_FDCWD, log_path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    syscall(SYS_flock, file, LOCK_EX);
    return file;
}

static void unlocked(int file) {
    int kept = errno;
    syscall(SYS_close, file);
    pthread_mutex_unlock(&turn);
    errno = kept;
}

static void note(int file, char kind, struct stat of, uint64_t offset, const void *one, uint64_t size_one,
                 const void *other, uint64_t size_other) {
    int kept = errno;
    uint64_t time = of.st_mtim.tv_sec * 1000000000ull + of.st_mtim.tv_nsec;
    uint64_t head[6] = {(uint64_t)kind, of.st_ino, time, offset, size_one, size_other};
    struct iovec parts[3] = {{head, sizeof head}, {(void *)one, size_one}, {(void *)other, size_other}};
    syscall(SYS_writev, file, parts, 3);
    errno = kept;
}

static void note_paths(int file, char kind, struct stat of, const char *one, const char *other) {
    note(file, kind, of, 0, one, strlen(one), other, strlen(other));
}

/* Opening */

static int opened(int folder, const char *name, int flags, mode_t mode) {
    char path[PATH];
    if (!(flags & (O_CREAT | O_TRUNC)) || (flags & O_TMPFILE) == O_TMPFILE || !resolve(folder, name, path))
        return syscall(SYS_openat, folder, name, flags, mode);
    struct stat was;
    int file = locked(), is_new = stat(path, &was) != 0;
    int result = syscall(SYS_openat, folder, name, flags, mode);
    if (result >= 0 && is_new) note_paths(file, 'c', status(result), path, "");
    else if (result >= 0 && (flags & O_TRUNC)) note(file, 't', status(result), 0, "", 0, "", 0);
    unlocked(file);
    return result;
}

#define OPEN(name, first, folder)                                   \
    int name(first const char *path, int flags, ...) {              \
        va_list more;                                               \
        va_start(more, flags);                                      \
        mode_t mode = va_arg(more, mode_t);                         \
        va_end(more);                                               \
        return opened(folder, path, flags, mode);                   \
    }
#define NONE
#define FOLDER int folder,
OPEN(open, NONE, AT_FDCWD)
OPEN(open64, NONE, AT_FDCWD)
OPEN(openat, FOLDER, folder)
OPEN(openat64, FOLDER, folder)
int creat(const char *path, mode_t mode) { return opened(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }
int creat64(const char *path, mode_t mode) { return creat(path, mode); }

/* Writing */

static void note_written(int file, int descriptor, off_t end, ssize_t size) {
    char link[64], *data = malloc(size);
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    int again = syscall(SYS_openat, AT_FDCWD, link, O_RDONLY | O_CLOEXEC, 0);
    if (pread(again, data, size, end - size) == size)
        note(file, 'w', status(descriptor), end - size, data, size, "", 0);
    else note(file, '?', status(-1), 0, "", 0, "", 0);
    syscall(SYS_close, again);
    free(data);
}

#define WRITE(kind, declaration, call, end)                                             \
    kind declaration {                                                                  \
        char path[PATH];                                                                \
        if (!path_of(descriptor, path)) return call;                                    \
        int file = locked();                                                            \
        ssize_t size = call;                                                            \
        if (size > 0) note_written(file, descriptor, end, size);                        \
        unlocked(file);                                                                 \
        return size;                                                                    \
    }
#define HERE lseek(descriptor, 0, SEEK_CUR)

ssize_t write(int descriptor, const void *data, size_t count) {
    char path[PATH];
    if (!below || descriptor > 2) {
        if (!path_of(descriptor, path)) return syscall(SYS_write, descriptor, data, count);
        int file = locked();
        ssize_t size = syscall(SYS_write, descriptor, data, count);
        if (size > 0) note_written(file, descriptor, HERE, size);
        unlocked(file);
        return size;
    }
    int file = locked();
    ssize_t size = syscall(SYS_write, descriptor, data, count);
    if (size > 0) note(file, 'o', status(-1), 0, data, size, "", 0);
    unlocked(file);
    return size;
}

WRITE(ssize_t, writev(int descriptor, const struct iovec *parts, int count),
      syscall(SYS_writev, descriptor, parts, count), HERE)
WRITE(ssize_t, pwrite(int descriptor, const void *data, size_t count, off_t offset),
      syscall(SYS_pwrite64, descriptor, data, count, offset), offset + size)
WRITE(ssize_t, pwrite64(int descriptor, const void *data, size_t count, off_t offset),
      syscall(SYS_pwrite64, descriptor, data, count, offset), offset + size)
WRITE(ssize_t, pwritev(int descriptor, const struct iovec *parts, int count, off_t offset),
      REAL(pwritev)(descriptor, parts, count, offset), offset + size)
WRITE(ssize_t, pwritev64(int descriptor, const struct iovec *parts, int count, off_t offset),
      REAL(pwritev64)(descriptor, parts, count, offset), offset + size)
WRITE(ssize_t, sendfile(int descriptor, int source, off_t *offset, size_t count),
      syscall(SYS_sendfile, descriptor, source, offset, count), HERE)
WRITE(ssize_t, sendfile64(int descriptor, int source, off_t *offset, size_t count),
      syscall(SYS_sendfile, descriptor, source, offset, count), HERE)
WRITE(ssize_t, copy_file_range(int source, off_t *from, int descriptor, off_t *to, size_t count, unsigned flags),
      syscall(SYS_copy_file_range, source, from, descriptor, to, count, flags), to ? *to : HERE)

#define RESIZE(declaration, call, size)                                                 \
    int declaration {                                                                   \
        char path[PATH];                                                                \
        if (!path_of(descriptor, path)) return call;                                    \
        int file = locked(), result = call;                                             \
        if (!result) note(file, 't', status(descriptor), size, "", 0, "", 0);            \
        unlocked(file);                                                                 \
        return result;                                                                  \
    }

RESIZE(ftruncate(int descriptor, off_t size), syscall(SYS_ftruncate, descriptor, size), size)
RESIZE(ftruncate64(int descriptor, off_t size), syscall(SYS_ftruncate, descriptor, size), size)
RESIZE(fallocate(int descriptor, int mode, off_t offset, off_t count),
       syscall(SYS_fallocate, descriptor, mode, offset, count), status(descriptor).st_size)
RESIZE(posix_fallocate(int descriptor, off_t offset, off_t count),
       REAL(posix_fallocate)(descriptor, offset, count), status(descriptor).st_size)
RESIZE(posix_fallocate64(int descriptor, off_t offset, off_t count),
       REAL(posix_fallocate64)(descriptor, offset, count), status(descriptor).st_size)

/* Flushing */

#define SYNC(name, number)                                                              \
    int name(int descriptor) {                                                          \
        char path[PATH];                                                                \
        if (!path_of(descriptor, path)) return syscall(number, descriptor);             \
        int file = locked(), result = syscall(number, descriptor);                      \
        if (!result) note(file, 's', status(descriptor), 0, "", 0, "", 0);               \
        unlocked(file);                                                                 \
        return result;                                                                  \
    }
SYNC(fsync, SYS_fsync)
SYNC(fdatasync, SYS_fdatasync)

/* Names */

#define NAMES(declaration, one, two, call, kind, number)                                \
    int declaration {                                                                   \
        char path[PATH], path_two[PATH] = "";                                           \
        int is_ours = one, is_second = two;                                             \
        if (!is_ours && !is_second) return call;                                        \
        int file = locked(), result = call;                                             \
        if (!result) note_paths(file, kind, number, path, path_two);                    \
        unlocked(file);                                                                 \
        return result;                                                                  \
    }
#define AT(folder, name) resolve(folder, name, path)
#define TO(folder, name) resolve(folder, name, path_two)

static struct stat status_at(const char *path) {
    struct stat found = status(-1);
    lstat(path, &found);
    return found;
}

NAMES(rename(const char *old, const char *new), AT(AT_FDCWD, old), TO(AT_FDCWD, new), syscall(SYS_rename, old, new),
      'r', status(-1))
NAMES(renameat(int from, const char *old, int to, const char *new), AT(from, old), TO(to, new),
      syscall(SYS_renameat, from, old, to, new), 'r', status(-1))
NAMES(renameat2(int from, const char *old, int to, const char *new, unsigned flags), AT(from, old), TO(to, new),
      syscall(SYS_renameat2, from, old, to, new, flags), 'r', status(-1))
NAMES(link(const char *old, const char *new), AT(AT_FDCWD, old), TO(AT_FDCWD, new), syscall(SYS_link, old, new), 'l',
      status_at(path_two))
NAMES(linkat(int from, const char *old, int to, const char *new, int flags), AT(from, old), TO(to, new),
      syscall(SYS_linkat, from, old, to, new, flags), 'l', status_at(path_two))
NAMES(unlink(const char *name), AT(AT_FDCWD, name), 0, syscall(SYS_unlink, name), 'u', status(-1))
NAMES(remove(const char *name), AT(AT_FDCWD, name), 0, REAL(remove)(name), 'u', status(-1))
NAMES(unlinkat(int folder, const char *name, int flags), AT(folder, name), 0,
      syscall(SYS_unlinkat, folder, name, flags), 'u', status(-1))
NAMES(rmdir(const char *name), AT(AT_FDCWD, name), 0, syscall(SYS_rmdir, name), 'u', status(-1))
NAMES(mkdir(const char *name, mode_t mode), AT(AT_FDCWD, name), 0, syscall(SYS_mkdir, name, mode), 'm', status_at(path))
NAMES(mkdirat(int folder, const char *name, mode_t mode), AT(folder, name), 0,
      syscall(SYS_mkdirat, folder, name, mode), 'm', status_at(path))
