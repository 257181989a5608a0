#include "lib/base/file.h"
#include "lib/base/alloc.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

int kv_map_open(struct kv_map *m, const char *path, struct kv_err *e)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat st;
    void *p = NULL;

    *m = (struct kv_map){0};
    if (fd < 0)
        return kv_fail(e, "cannot open %s: %s", path, strerror(errno));
    if (fstat(fd, &st) || !S_ISREG(st.st_mode)) {
        close(fd);
        return kv_fail(e, "%s is not a regular file", path);
    }
    if (st.st_size)
        p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (p == MAP_FAILED)
        return kv_fail(e, "cannot map %s: %s", path, strerror(errno));
    m->data = p;
    m->bytes = (size_t)st.st_size;
    return 0;
}

void kv_map_close(struct kv_map *m)
{
    if (m->data)
        munmap((void *)(uintptr_t)m->data, m->bytes);
    *m = (struct kv_map){0};
}

int kv_file_read(const char *path, char **text, size_t *bytes, struct kv_err *e)
{
    const bool standard = !strcmp(path, "-");
    FILE *f = standard ? stdin : fopen(path, "rb");
    size_t room = 1 << 16, n = 0;
    char *p;

    if (!f)
        return kv_fail(e, "cannot open %s: %s", path, strerror(errno));
    p = kv_alloc(room, 1);
    for (size_t got; (got = fread(p + n, 1, room - n - 1, f)) > 0;) {
        n += got;
        if (room - n < 2)
            p = kv_realloc(p, room *= 2, 1);
    }

    const bool bad = ferror(f) != 0;
    const int why = errno;

    if (!standard)
        fclose(f);
    if (bad) {
        free(p);
        return kv_fail(e, "cannot read %s: %s", path, strerror(why));
    }
    p[n] = 0;
    *text = p;
    *bytes = n;
    return 0;
}

bool kv_file_exists(const char *path)
{
    struct stat st;

    return !stat(path, &st);
}

bool kv_is_dir(const char *path)
{
    struct stat st;

    return !stat(path, &st) && S_ISDIR(st.st_mode);
}

bool kv_same_file(const char *a, const char *b)
{
    struct stat x, y;

    return !stat(a, &x) && !stat(b, &y) && x.st_dev == y.st_dev &&
           x.st_ino == y.st_ino;
}

char *kv_path_join(const char *dir, const char *name)
{
    const size_t n = strlen(dir), room = n + strlen(name) + 2;
    char *p = kv_alloc(room, 1);

    snprintf(p, room, "%s%s%s", dir, n && dir[n - 1] == '/' ? "" : "/", name);
    return p;
}

/* Temporary names to remove at exit.  A slot is taken by storing the name. */
enum { MAX_OPEN = 16 };
static char *volatile open_temp[MAX_OPEN];

static void remove_open(void)
{
    for (size_t i = 0; i < MAX_OPEN; i++)
        if (open_temp[i])
            unlink(open_temp[i]);
}

static void forget(struct kv_out *o)
{
    for (size_t i = 0; i < MAX_OPEN; i++)
        if (open_temp[i] == o->temp)
            open_temp[i] = NULL;
    free(o->temp);
    free(o->path);
    *o = (struct kv_out){0};
}

/* A pipe or a device cannot be replaced by a file of its name. */
static int open_in_place(struct kv_out *o, const char *path, bool as_stream,
                         struct kv_err *e)
{
    if (!as_stream)
        return kv_fail(e, "cannot write %s: it is not a regular file", path);
    o->file = fopen(path, "w");
    if (!o->file)
        return kv_fail(e, "cannot write %s: %s", path, strerror(errno));
    o->path = kv_strdup(path);
    return 0;
}

int kv_out_open(struct kv_out *o, const char *path, bool as_stream,
                struct kv_err *e)
{
    static bool registered;
    const size_t room = strlen(path) + 8;
    struct stat st;
    size_t slot = 0;
    int fd;

    *o = (struct kv_out){0};
    if (kv_is_dir(path))
        return kv_fail(e, "cannot write %s: it is a folder", path);
    if (!stat(path, &st) && !S_ISREG(st.st_mode))
        return open_in_place(o, path, as_stream, e);
    while (slot < MAX_OPEN && open_temp[slot])
        slot++;
    if (slot == MAX_OPEN)
        return kv_fail(e, "cannot write %s: too many open outputs", path);
    o->path = kv_strdup(path);
    o->temp = kv_alloc(room, 1);
    snprintf(o->temp, room, "%s.XXXXXX", path);
    fd = mkstemp(o->temp);
    if (fd < 0) {
        kv_fail(e, "cannot write %s: %s", path, strerror(errno));
        forget(o);
        return -1;
    }

    const mode_t mask = umask(0);

    umask(mask);
    fchmod(fd, 0666 & ~mask);
    open_temp[slot] = o->temp;
    if (!registered)
        atexit(remove_open);
    registered = true;
    if (as_stream)
        o->file = fdopen(fd, "w");
    else
        close(fd);
    return 0;
}

static int sync_file(int fd)
{
    const bool failed = fd < 0 || fsync(fd);

    return failed ? errno : 0;
}

/* Makes sure that everything written is on the disk: 0 or an errno. */
static int finish(struct kv_out *o)
{
    int why = 0;

    errno = 0;
    if (o->file) {
        if (fflush(o->file) || ferror(o->file))
            why = errno ? errno : EIO;
        if (!why && o->temp)
            why = sync_file(fileno(o->file));
        if (fclose(o->file) && !why)
            why = errno;
        o->file = NULL;
    } else {
        const int fd = open(o->temp, O_RDONLY | O_CLOEXEC);

        why = sync_file(fd);
        if (fd >= 0)
            close(fd);
    }
    if (!why && o->temp && rename(o->temp, o->path))
        why = errno;
    return why;
}

int kv_out_commit(struct kv_out *o, struct kv_err *e)
{
    int why;

    if (!o->path)
        return 0;
    why = finish(o);
    if (why) {
        kv_fail(e, "cannot write %s: %s", o->path, strerror(why));
        kv_out_discard(o);
        return -1;
    }
    forget(o);
    return 0;
}

void kv_out_discard(struct kv_out *o)
{
    if (!o->path)
        return;
    if (o->file)
        fclose(o->file);
    if (o->temp)
        unlink(o->temp);
    forget(o);
}

static const char *scratch_folder(void)
{
    const char *set = getenv("TMPDIR");

    return set && *set ? set : "/tmp";
}

FILE *kv_scratch_open(struct kv_err *e)
{
    char *path = kv_path_join(scratch_folder(), "kvtools-XXXXXX");
    const int fd = mkstemp(path);
    FILE *f = NULL;

    if (fd >= 0) {
        unlink(path);
        f = fdopen(fd, "w+");
    }
    if (!f)
        kv_fail(e, "cannot make a temporary file in %s: %s", scratch_folder(),
                strerror(errno));
    free(path);
    return f;
}

int kv_scratch_write(FILE *f, size_t at, const void *data, size_t n,
                     struct kv_err *e)
{
    errno = 0;
    if (fseeko(f, (off_t)at, SEEK_SET) || fwrite(data, 1, n, f) != n ||
        fflush(f))
        return kv_fail(e, "cannot write a temporary file in %s: %s",
                       scratch_folder(), strerror(errno));
    return 0;
}

int kv_scratch_read(FILE *f, size_t at, void *data, size_t n, struct kv_err *e)
{
    errno = 0;
    if (fseeko(f, (off_t)at, SEEK_SET) || fread(data, 1, n, f) != n)
        return kv_fail(e, "cannot read a temporary file in %s: %s",
                       scratch_folder(),
                       errno ? strerror(errno) : "it is cut short");
    return 0;
}

static atomic_int signalled;

static void on_signal(int number)
{
    if (signalled) {
        remove_open(); /* unlink is safe here */
        _exit(128 + number);
    }
    signalled = 1;
}

static void *wait_for_signals(void *stopping)
{
    pthread_sigmask(SIG_UNBLOCK, stopping, NULL);
    for (;;)
        pause();
    return NULL;
}

/* The handler runs on a thread of its own: BLAS libraries work with the stack
 * pointer amid other memory, which a handler there would write over. */
void kv_catch_signals(void)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    static sigset_t stopping;
    struct sigaction a = {.sa_handler = on_signal}, was;
    pthread_t waiting;

    sigemptyset(&a.sa_mask);
    sigemptyset(&stopping);
    for (size_t i = 0; i < sizeof(numbers) / sizeof(*numbers); i++) {
        sigaction(numbers[i], NULL, &was);
        if (numbers[i] == SIGHUP && was.sa_handler == SIG_IGN)
            continue; /* nohup */
        sigaction(numbers[i], &a, NULL);
        sigaddset(&stopping, numbers[i]);
    }
    signal(SIGXFSZ, SIG_IGN); /* a file-size limit is a failed write */

    /* threads started later block them too */
    pthread_sigmask(SIG_BLOCK, &stopping, NULL);
    if (pthread_create(&waiting, NULL, wait_for_signals, &stopping))
        pthread_sigmask(SIG_UNBLOCK, &stopping, NULL);
    else
        pthread_detach(waiting);
}

int kv_interrupted(struct kv_err *e)
{
    return signalled ? kv_fail(e, "interrupted") : 0;
}
