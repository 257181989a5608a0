#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/base/file_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct kv_input {
    struct kv_input *next;
    char *path; /* NULL: to be used again */
    struct stat was;
    int fd;                      /* while it is open, else -1 */
    bool changed;                /* while it was */
    const uint8_t *_Atomic data; /* [was.st_size] where it is mapped, or NULL */
};

/* All that the process reads: entries are only added, so that a signal handler
 * may walk them. */
static struct kv_input *_Atomic inputs;
static pthread_mutex_t adding = PTHREAD_MUTEX_INITIALIZER;
static bool guarded;

void kv_inputs_guard(void)
{
    guarded = true;
}

static bool same_file(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

static bool same_content(const struct stat *a, const struct stat *b)
{
    return a->st_size == b->st_size && a->st_mtim.tv_sec == b->st_mtim.tv_sec &&
           a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

static bool is_changed(const struct kv_input *in)
{
    struct stat now;

    return in->changed || (in->fd >= 0 && (fstat(in->fd, &now) ||
                                           !same_content(&in->was, &now)));
}

static int fail_changed(const char *path, struct kv_err *e)
{
    return kv_fail(e, "%s was changed while it was read", path);
}

/* An entry that is not open, this file's own where it was read before;
 * *other: an entry of this name that was another file, or this one before it
 * was changed. */
static struct kv_input *find_entry(const char *path, const struct stat *st,
                                   bool *other)
{
    struct kv_input *found = NULL;

    *other = false;
    for (struct kv_input *i = inputs; i; i = i->next) {
        const bool named = i->path && !strcmp(i->path, path);

        if (named && !(same_file(&i->was, st) && same_content(&i->was, st)))
            *other = guarded;
        if (i->fd < 0 && (named || (!i->path && !found)))
            found = i;
    }
    return found;
}

/* fd: becomes the entry's. */
static int add(struct kv_input **out, const char *path, int fd,
               const struct stat *st, struct kv_err *e)
{
    struct kv_input *in;
    bool other;

    pthread_mutex_lock(&adding);
    in = find_entry(path, st, &other);
    if (!other) {
        if (!in) {
            in = kv_alloc(1, sizeof(*in));
            in->next = inputs;
            inputs = in;
        }
        if (!in->path)
            in->path = kv_strdup(path);
        in->was = *st;
        in->fd = fd;
    }
    pthread_mutex_unlock(&adding);
    if (other) { /* its content differs from the first reading */
        close(fd);
        return fail_changed(path, e);
    }
    *out = in;
    return 0;
}

int kv_input_open(struct kv_input **in, const char *path, struct kv_err *e)
{
    /* a pipe without a writer is told, not waited for */
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat st;

    if (fd < 0)
        return kv_fail(e, "cannot open %s: %s", path, strerror(errno));
    if (fstat(fd, &st) || !S_ISREG(st.st_mode)) {
        close(fd);
        return kv_fail(e, "%s is not a regular file", path);
    }
    return add(in, path, fd, &st, e);
}

uint64_t kv_input_size(const struct kv_input *in)
{
    return (uint64_t)in->was.st_size;
}

int kv_input_read(const struct kv_input *in, uint64_t at, void *data, size_t n)
{
    for (size_t done = 0; done < n;) {
        const ssize_t got =
            pread(in->fd, (char *)data + done, n - done, (off_t)(at + done));

        if (got <= 0)
            return got ? errno : ENODATA;
        done += (size_t)got;
    }
    return 0;
}

bool kv_input_close(struct kv_input *in)
{
    bool changed;

    if (!in)
        return true;
    pthread_mutex_lock(&adding);
    changed = is_changed(in);
    close(in->fd);
    in->fd = -1;
    in->changed = changed && guarded;
    if (!guarded) {
        free(in->path);
        in->path = NULL;
    }
    pthread_mutex_unlock(&adding);
    return !changed;
}

int kv_inputs_unchanged(struct kv_err *e)
{
    const struct kv_input *i;

    pthread_mutex_lock(&adding);
    for (i = inputs; i && !is_changed(i);)
        i = i->next;
    pthread_mutex_unlock(&adding);
    return i ? fail_changed(i->path, e) : 0;
}

const char *kv_input_that_is(const struct stat *st)
{
    const struct kv_input *i;

    if (!guarded)
        return NULL;
    pthread_mutex_lock(&adding);
    for (i = inputs; i && !same_file(&i->was, st);)
        i = i->next;
    pthread_mutex_unlock(&adding);
    return i ? i->path : NULL;
}

const char *kv_input_at(const void *address, bool *shortened)
{
    const uint8_t *at = address;
    struct stat now;

    for (const struct kv_input *i = inputs; i; i = i->next) {
        const uint8_t *data = i->data;

        if (!data || at < data || at >= data + i->was.st_size)
            continue;
        *shortened = !fstat(i->fd, &now) && now.st_size < i->was.st_size;
        return i->path;
    }
    return NULL;
}

int kv_map_open(struct kv_map *m, const char *path, struct kv_err *e)
{
    struct kv_input *in;
    void *p = NULL;

    *m = (struct kv_map){0};
    if (kv_input_open(&in, path, e))
        return -1;
    if (in->was.st_size)
        p = mmap(NULL, (size_t)in->was.st_size, PROT_READ, MAP_SHARED, in->fd,
                 0);
    if (p == MAP_FAILED) {
        kv_fail(e, "cannot map %s: %s", path, strerror(errno));
        kv_input_close(in);
        return -1;
    }
    in->data = p;
    *m = (struct kv_map){p, (size_t)in->was.st_size, in};
    return 0;
}

void kv_map_close(struct kv_map *m)
{
    if (m->input)
        m->input->data = NULL;
    if (m->data)
        munmap((void *)(uintptr_t)m->data, m->bytes);
    kv_input_close(m->input);
    *m = (struct kv_map){0};
}

const char *kv_input_name(const char *path)
{
    return strcmp(path, "-") ? path : "standard input";
}

/* To its end; *text also when it fails. */
static int read_all(FILE *f, char **text, size_t *bytes)
{
    size_t capacity = 1 << 16, n = 0;
    char *p = kv_alloc(capacity, 1);

    errno = 0;
    for (size_t got; (got = fread(p + n, 1, capacity - n - 1, f)) > 0;) {
        n += got;
        if (capacity - n < 2)
            p = kv_realloc(p, capacity *= 2, 1);
    }
    p[n] = 0;
    *text = p;
    *bytes = n;
    return ferror(f) ? errno : 0;
}

/* A pipe is no input that an output could replace. */
static int add_stream(struct kv_input **in, const char *path, FILE *f,
                      struct kv_err *e)
{
    struct stat st;

    *in = NULL;
    if (fstat(fileno(f), &st) || !S_ISREG(st.st_mode))
        return 0;
    return add(in, path, dup(fileno(f)), &st, e);
}

int kv_file_read(const char *path, char **text, size_t *bytes, struct kv_err *e)
{
    const char *name = kv_input_name(path);
    const bool standard = name != path;
    FILE *f = standard ? stdin : fopen(path, "rb");
    struct kv_input *in;
    int why, rc = -1;

    if (!f)
        return kv_fail(e, "cannot open %s: %s", path, strerror(errno));
    if (add_stream(&in, name, f, e))
        goto out;
    why = read_all(f, text, bytes);
    if (!kv_input_close(in))
        rc = fail_changed(name, e);
    else if (why)
        rc = kv_fail(e, "cannot read %s: %s", name, strerror(why));
    else
        rc = 0;
    if (rc)
        free(*text);
out:
    if (!standard)
        fclose(f);
    return rc;
}
