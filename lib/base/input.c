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

/* All files that the process reads.  Entries are only added, so that a signal
 * handler may walk the list. */
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

int kv_input_fail_changed(const char *path, struct kv_err *e)
{
    return kv_fail(e, "%s was changed while it was read", path);
}

/* Finds an entry that is not open: this file's own entry if it was read before,
 * else any free entry.  *other: whether an entry of this name is for another
 * file, or for this file before a change. */
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

int kv_input_add(struct kv_input **out, const char *path, int fd,
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
    if (other) { /* the file differs from when it was first read */
        close(fd);
        return kv_input_fail_changed(path, e);
    }
    *out = in;
    return 0;
}

int kv_input_open(struct kv_input **in, const char *path, struct kv_err *e)
{
    /* O_NONBLOCK: do not wait for a pipe's writer */
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat st;

    if (fd < 0)
        return kv_fail(e, "cannot open %s: %s", path, strerror(errno));
    if (fstat(fd, &st) || !S_ISREG(st.st_mode)) {
        close(fd);
        return kv_fail(e, "%s is not a regular file", path);
    }
    return kv_input_add(in, path, fd, &st, e);
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
    return i ? kv_input_fail_changed(i->path, e) : 0;
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
