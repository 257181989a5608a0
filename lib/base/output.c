#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/base/file_impl.h"
#include "lib/base/leftovers.h"
#include "lib/base/progress.h"
#include "lib/base/waits.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

/* ---- names to remove when the program ends ----------------------------- */

/* A fixed array, because a signal handler may read it at any time. */
enum { MAX = 16 };
static struct {
    atomic_bool taken; /* path is complete */
    char path[PATH_MAX];
} temporary[MAX];

/* making: a file is being created and its name is not listed yet, so removal
 * waits.  ending: removal has begun, so no new file is created. */
static atomic_bool making, ending;

void kv_temporaries_hold(void)
{
    making = true;
    while (ending) /* the handler runs on another thread */
        pause();
}

void kv_temporaries_release(void)
{
    making = false;
}

void kv_temporaries_remove(void)
{
    const struct timespec ms = {.tv_nsec = 1000000};

    ending = true;
    for (int i = 0; making && i < 1000; i++)
        nanosleep(&ms, NULL);
    for (size_t i = 0; i < MAX; i++)
        if (temporary[i].taken)
            unlink(temporary[i].path);
    for (size_t i = 0; i < MAX; i++) /* folders, empty by now */
        if (temporary[i].taken)
            rmdir(temporary[i].path);
}

/* A free slot for a name, or MAX. */
static size_t find_slot(const char *path, struct kv_err *e)
{
    static bool registered;
    size_t i = 0;

    if (!registered)
        atexit(kv_temporaries_remove);
    registered = true;
    while (i < MAX && temporary[i].taken)
        i++;
    if (i == MAX)
        kv_fail(e, "cannot write %s: too many open outputs", path);
    if (strlen(path) < sizeof(temporary->path))
        return i;
    kv_fail(e, "cannot write %s: %s", path, strerror(ENAMETOOLONG));
    return MAX;
}

static void take_slot(size_t i, const char *path)
{
    strcpy(temporary[i].path, path);
    temporary[i].taken = true;
}

int kv_temporary_add(const char *path, struct kv_err *e)
{
    const size_t i = find_slot(path, e);

    if (i == MAX)
        return -1;
    take_slot(i, path);
    return 0;
}

/* Creates a temporary file, or a folder if fd is NULL.  path ends in XXXXXX,
 * which is replaced.  Returns 0, -1 with the sentence, or an errno. */
static int make(char *path, int *fd, struct kv_err *e)
{
    const size_t i = find_slot(path, e);
    sigset_t all, before;
    int why = 0;

    if (i == MAX)
        return -1;
    sigfillset(&all); /* a handler on this thread would wait for itself */
    pthread_sigmask(SIG_BLOCK, &all, &before);
    kv_temporaries_hold();
    if (fd ? (*fd = mkostemp(path, O_CLOEXEC)) < 0 : !mkdtemp(path))
        why = errno;
    else
        take_slot(i, path);
    kv_temporaries_release();
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return why;
}

int kv_temporary_folder(char *path, struct kv_err *e)
{
    const int why = make(path, NULL, e);

    return why > 0 ? kv_fail(e, "cannot make a temporary folder %s: %s", path,
                             strerror(why))
                   : why;
}

void kv_temporary_forget(const char *path)
{
    for (size_t i = 0; i < MAX; i++)
        if (temporary[i].taken && !strcmp(temporary[i].path, path))
            temporary[i].taken = false;
}

/* ---- where an output goes ---------------------------------------------- */

/* Whether path is a link to a descriptor: a number in /proc.  Its target may
 * have no name, whatever readlink() returns. */
static bool is_descriptor(const char *path)
{
    const char *name;
    char *folder = kv_path_folder(path, &name);
    struct statfs fs;
    const bool is = *name && name[strspn(name, "0123456789")] == 0 &&
                    !statfs(folder, &fs) && fs.f_type == PROC_SUPER_MAGIC;

    free(folder);
    return is;
}

/* The target of a link, relative to the same folder as the link. */
static char *next_link(char *at, char *link)
{
    const char *name;
    char *folder, *next;

    if (*link == '/') {
        next = kv_strdup(link);
    } else {
        folder = kv_path_folder(at, &name);
        next = kv_path_join(folder, link);
        free(folder);
    }
    free(at);
    return next;
}

char *kv_out_target(const char *path)
{
    enum { MAX_LINKS = 40 };
    char *at = kv_strdup(path), link[PATH_MAX];

    for (int i = 0; i < MAX_LINKS; i++) {
        const ssize_t n = readlink(at, link, sizeof(link) - 1);

        if (n < 0 || is_descriptor(at))
            return at;
        link[n] = 0;
        at = next_link(at, link);
    }
    free(at);
    errno = ELOOP;
    return NULL;
}

/* ---- outputs ----------------------------------------------------------- */

static int fail_why(const char *path, int why, struct kv_err *e)
{
    return kv_fail(e, "cannot write %s: %s", path, strerror(why));
}

int kv_out_check(const char *path, struct kv_err *e)
{
    char *target = kv_out_target(path);
    struct stat st;
    const bool bad = !target || (is_descriptor(target) && stat(target, &st));
    const int why = errno;

    free(target);
    return bad ? fail_why(path, why, e) : 0;
}

static void forget(struct kv_out *o)
{
    if (o->temp) {
        kv_temporary_forget(o->temp);
        close(o->held);
    }
    free(o->temp);
    free(o->target);
    free(o->path);
    *o = (struct kv_out){0};
}

static int check_input(const char *path, const struct stat *st,
                       struct kv_err *e)
{
    const char *input = S_ISREG(st->st_mode) ? kv_input_that_is(st) : NULL;

    return input ? kv_fail(e, "the output %s would replace the input %s", path,
                           input)
                 : 0;
}

/* Duplicates a descriptor of this process instead of opening its file again, so
 * that writing continues at its position. */
static int open_target(const char *target)
{
    const char *name;
    char *folder = kv_path_folder(target, &name);
    const bool ours =
        is_descriptor(target) && kv_same_file(folder, "/proc/self/fd");

    free(folder);
    return ours ? fcntl(atoi(name), F_DUPFD_CLOEXEC, 0)
                : open(target, O_WRONLY | O_CLOEXEC);
}

/* Opens a pipe, a device or a descriptor, which no file can replace. */
static int open_in_place(struct kv_out *o, const char *path, const char *target,
                         bool as_stream, struct kv_err *e)
{
    struct stat st;
    int fd;

    if (!as_stream)
        return kv_fail(e, "cannot write %s: it is not a regular file", path);
    kv_wait_begin(); /* waits for a FIFO's reader */
    fd = open_target(target);
    kv_wait_end();
    if (fd < 0)
        return fail_why(path, errno, e);
    if (fstat(fd, &st))
        fail_why(path, errno, e);
    else if ((fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDONLY)
        kv_fail(e, "cannot write %s: it is open for reading alone", path);
    else if (!check_input(path, &st, e) && !(o->file = kv_wait_stream(fd)))
        fail_why(path, errno, e);
    if (!o->file) {
        close(fd);
        return -1;
    }
    o->path = kv_strdup(path);
    o->terminal = isatty(fd);
    return 0;
}

/* Sets the mode of the replaced file, or the umask's mode for a new file. */
static void set_mode(int fd, const struct stat *old)
{
    const mode_t mask = umask(0);

    umask(mask);
    if (!old) {
        fchmod(fd, 0666 & ~mask);
        return;
    }
    if (fchown(fd, old->st_uid, old->st_gid) &&
        fchown(fd, (uid_t)-1, old->st_gid))
        errno = 0; /* this user may not give files away */
    fchmod(fd, old->st_mode & 07777);
}

/* Makes new temporary files until this run holds one; *fd: its descriptor.
 * Returns 0, -1 with the sentence, or an errno. */
static int make_held(char *temp, const char *target, int *fd, struct kv_err *e)
{
    const size_t capacity = strlen(target) + sizeof(KV_TEMPORARY);

    for (;;) {
        int why;

        snprintf(temp, capacity, "%s" KV_TEMPORARY, target);
        why = make(temp, fd, e);
        if (why || !kv_leftover_hold(*fd))
            return why;
        kv_temporary_forget(temp);
        close(*fd);
    }
}

static int open_temporary(struct kv_out *o, const struct stat *old,
                          bool as_stream, struct kv_err *e)
{
    char *temp = kv_alloc(strlen(o->target) + sizeof(KV_TEMPORARY), 1);
    int fd, why;

    kv_leftovers_remove(o->target);
    why = make_held(temp, o->target, &fd, e);
    if (why) {
        free(temp);
        return why > 0 ? fail_why(o->path, why, e) : -1;
    }
    set_mode(fd, old);
    o->temp = temp;
    o->held = fd;
    if (!as_stream)
        return 0;
    fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    o->file = fd < 0 ? NULL : fdopen(fd, "w");
    return o->file ? 0 : fail_why(o->path, errno, e);
}

/* Refuses to replace a file that may not be written. */
static int check_old(const char *path, const char *target,
                     const struct stat *old, struct kv_err *e)
{
    if (S_ISDIR(old->st_mode))
        return kv_fail(e, "cannot write %s: it is a folder", path);
    if (faccessat(AT_FDCWD, target, W_OK, AT_EACCESS))
        return fail_why(path, errno, e);
    return check_input(path, old, e);
}

int kv_out_open(struct kv_out *o, const char *path, bool as_stream,
                struct kv_err *e)
{
    char *target = kv_out_target(path);
    struct stat old;
    bool exists;
    int rc = -1;

    *o = (struct kv_out){0};
    if (!target)
        return fail_why(path, errno, e);
    exists = !stat(target, &old);
    if (is_descriptor(target)) {
        rc = open_in_place(o, path, target, as_stream, e);
        goto out;
    }
    if (exists && check_old(path, target, &old, e))
        goto out;
    if (exists && !S_ISREG(old.st_mode)) {
        rc = open_in_place(o, path, target, as_stream, e);
        goto out;
    }
    o->path = kv_strdup(path);
    o->target = kv_strdup(target);
    rc = open_temporary(o, exists ? &old : NULL, as_stream, e);
    if (rc)
        kv_out_discard(o);
out:
    free(target);
    return rc;
}

/* Makes sure that everything written is on the disk.  Returns 0 or an errno. */
static int finish(struct kv_out *o)
{
    int why = 0;

    errno = 0;
    if (o->file && (fflush(o->file) || ferror(o->file)))
        why = errno ? errno : EIO;
    if (!why && o->temp && fsync(o->held))
        why = errno;
    if (o->file && fclose(o->file) && !why)
        why = errno;
    o->file = NULL;
    return why;
}

static void say_replaced(const char *path, const struct stat *old)
{
    char day[32] = "";
    struct tm t;

    if (!old->st_size || !localtime_r(&old->st_mtim.tv_sec, &t))
        return;
    strftime(day, sizeof(day), "%Y-%m-%d %H:%M", &t);
    kv_note("%s: replaced, it held %lld bytes of %s", path,
            (long long)old->st_size, day);
}

/* Renames the output to its target.  Checks the old file again, since another
 * file may have that name by now. */
static int put_in_place(const struct kv_out *o, struct kv_err *e)
{
    struct stat old;
    const bool exists = !stat(o->target, &old);

    if (exists && check_input(o->path, &old, e))
        return -1;
    if (rename(o->temp, o->target))
        return fail_why(o->path, errno, e);
    if (exists && !o->adds)
        say_replaced(o->path, &old);
    return 0;
}

int kv_out_commit(struct kv_out *o, struct kv_err *e)
{
    int why;

    if (!o->path)
        return 0;
    why = finish(o);
    if (why)
        fail_why(o->path, why, e);
    if (why || kv_inputs_unchanged(e) || (o->temp && put_in_place(o, e))) {
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
