/* Put before a program with LD_PRELOAD: its writes to its database fail as a control file says.
 *
 * MOONSWARM_FAULT_FILE names the control file, MOONSWARM_FAULT_PATH a text that the names of the
 * files concerned have in them, or end with if it ends with a dollar sign. The control file has one line, or is not there for "no fault":
 *
 *   full N     the N-th write from now on and every later one find no room
 *   sync N     the N-th sync from now on fails with an I/O error, once
 *   readonly   no file can be created or opened for writing
 *
 * MOONSWARM_FAULT_CLOCK names a file with the seconds by which the wall clock is ahead.
 *
 * Each fault that happened is noted in MOONSWARM_FAULT_FILE.log, a line each, and so is each sync, by
 * its call: fsync or fdatasync.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>
#include <pthread.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char last[64];
static long count;

static void *real(const char *name) { return dlsym(RTLD_NEXT, name); }

static void note(const char *text) {
    const char *control = getenv("MOONSWARM_FAULT_FILE");
    char path[4096];
    snprintf(path, sizeof path, "%s.log", control);
    int (*open_)(const char *, int, ...) = real("open");
    ssize_t (*write_)(int, const void *, size_t) = real("write");
    int fd = open_(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (fd < 0) return;
    (void)!write_(fd, text, strlen(text));
    (void)!write_(fd, "\n", 1);
    close(fd);
}

/* The line of the control file; counting begins anew with every change of it. */
static int rule(char *into, size_t size) {
    const char *control = getenv("MOONSWARM_FAULT_FILE");
    if (!control) return 0;
    int (*open_)(const char *, int, ...) = real("open");
    int fd = open_(control, O_RDONLY | O_CLOEXEC);
    into[0] = 0;
    if (fd >= 0) {
        ssize_t got = read(fd, into, size - 1);
        into[got > 0 ? got : 0] = 0;
        close(fd);
        into[strcspn(into, "\n")] = 0;
    }
    if (strncmp(last, into, sizeof last) != 0) {
        strncpy(last, into, sizeof last - 1);
        count = 0;
    }
    return into[0] != 0;
}

static int concerns_name(const char *name) {
    const char *part = getenv("MOONSWARM_FAULT_PATH");
    if (!part || !name) return 0;
    size_t wanted = strlen(part), length = strlen(name);
    if (wanted > 0 && part[wanted - 1] == '$') {
        wanted--;
        return length >= wanted && strncmp(name + length - wanted, part, wanted) == 0;
    }
    return strstr(name, part) != NULL;
}

static int concerns(int fd) {
    char link[64], name[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t got = readlink(link, name, sizeof name - 1);
    if (got <= 0) return 0;
    name[got] = 0;
    return concerns_name(name);
}

/* Whether this write, or this sync, is one that fails. A sync is noted by its call. */
static int fails(int fd, const char *kind, int forever, const char *call) {
    char line[64];
    if (!concerns(fd)) return 0;
    pthread_mutex_lock(&lock);
    int hit = 0;
    if (call) note(call);
    if (rule(line, sizeof line) && strncmp(line, kind, strlen(kind)) == 0) {
        long n = atol(line + strlen(kind));
        count++;
        hit = forever ? count >= n : count == n;
        if (hit) note(line);
    }
    pthread_mutex_unlock(&lock);
    return hit;
}

#define NO_ROOM(fd) do { if (fails(fd, "full", 1, NULL)) { errno = ENOSPC; return -1; } } while (0)

ssize_t write(int fd, const void *data, size_t size) {
    ssize_t (*next)(int, const void *, size_t) = real("write");
    NO_ROOM(fd);
    return next(fd, data, size);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    ssize_t (*next)(int, const void *, size_t, off_t) = real("pwrite");
    NO_ROOM(fd);
    return next(fd, data, size, at);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    ssize_t (*next)(int, const void *, size_t, off64_t) = real("pwrite64");
    NO_ROOM(fd);
    return next(fd, data, size, at);
}

int fsync(int fd) {
    int (*next)(int) = real("fsync");
    if (fails(fd, "sync", 0, "fsync")) { errno = EIO; return -1; }
    return next(fd);
}

int fdatasync(int fd) {
    int (*next)(int) = real("fdatasync");
    if (fails(fd, "sync", 0, "fdatasync")) { errno = EIO; return -1; }
    return next(fd);
}

static int refused(const char *name, int flags) {
    char line[64];
    if ((flags & (O_CREAT | O_WRONLY | O_RDWR)) == 0 || !concerns_name(name)) return 0;
    pthread_mutex_lock(&lock);
    int hit = rule(line, sizeof line) && strcmp(line, "readonly") == 0;
    pthread_mutex_unlock(&lock);
    return hit;
}

#define OPEN(name_)                                                          \
    int name_(const char *name, int flags, ...) {                            \
        int (*next)(const char *, int, ...) = real(#name_);                  \
        va_list more;                                                        \
        va_start(more, flags);                                               \
        mode_t mode = va_arg(more, mode_t);                                  \
        va_end(more);                                                        \
        if (refused(name, flags)) { errno = EROFS; return -1; }              \
        return next(name, flags, mode);                                      \
    }
OPEN(open)
OPEN(open64)

/* The wall clock is ahead by as many seconds as the file MOONSWARM_FAULT_CLOCK says; a file that
 * is not there says none. */
static long ahead(void) {
    const char *path = getenv("MOONSWARM_FAULT_CLOCK");
    if (!path) return 0;
    int (*open_)(const char *, int, ...) = real("open");
    int fd = open_(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    char text[32];
    ssize_t got = read(fd, text, sizeof text - 1);
    close(fd);
    text[got > 0 ? got : 0] = 0;
    return atol(text);
}

int clock_gettime(clockid_t id, struct timespec *at) {
    int (*next)(clockid_t, struct timespec *) = real("clock_gettime");
    int result = next(id, at);
    if (result == 0 && id == CLOCK_REALTIME) at->tv_sec += ahead();
    return result;
}
