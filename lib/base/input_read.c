/* Inputs that are read whole. */
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/base/file_impl.h"
#include "lib/base/waits.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PIECE = 1 << 16 };

const char *kv_input_name(const char *path)
{
    return strcmp(path, "-") ? path : "standard input";
}

size_t kv_file_head(const char *path, void *head, size_t n)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat st;
    ssize_t got = 0;

    if (fd < 0)
        return 0;
    if (!fstat(fd, &st) && S_ISREG(st.st_mode))
        got = pread(fd, head, n, 0);
    close(fd);
    return got > 0 ? (size_t)got : 0;
}

static int fail_long(const char *name, size_t max, struct kv_err *e)
{
    return kv_fail(e, "%s is too long: expected at most %zu bytes", name, max);
}

/* The bytes read so far; there is always room for a final zero byte. */
struct reading {
    int fd;
    char *text;
    size_t n, capacity;
};

/* Starts reading fd.  expected: the number of bytes.  One byte more, and the
 * end of the file, can be seen without growing the buffer.
 */
static void start(struct reading *r, int fd, size_t expected)
{
    *r = (struct reading){.fd = fd, .capacity = expected + 2};
    r->text = kv_alloc(r->capacity, 1);
}

/* Reads some more bytes.  Returns their number, 0 at the end, or -1 with
 * errno. */
static ssize_t read_piece(struct reading *r)
{
    size_t room;
    ssize_t got;

    if (r->n + 1 == r->capacity)
        r->text = kv_realloc(r->text, r->capacity *= 2, 1);
    room = r->capacity - 1 - r->n;
    got = kv_wait_read(r->fd, r->text + r->n, room < PIECE ? room : PIECE);
    r->n += got > 0 ? (size_t)got : 0;
    return got;
}

/* Ends the reading of `in`, which is NULL for a pipe. */
static int finish(struct reading *r, const char *name, struct kv_input *in,
                  int why, size_t max, struct kv_err *e)
{
    int rc = -1;

    if (!kv_input_close(in))
        kv_input_fail_changed(name, e);
    else if (why)
        kv_fail(e, "cannot read %s: %s", name, strerror(why));
    else if (r->n > max)
        fail_long(name, max, e);
    else
        rc = 0;
    if (rc)
        free(r->text);
    else
        r->text[r->n] = 0;
    return rc;
}

int kv_file_read_most(const char *path, size_t max, char **text, size_t *bytes,
                      struct kv_err *e)
{
    struct kv_input *in;
    struct reading r;
    ssize_t got;

    if (kv_input_open(&in, path, e))
        return -1;
    if ((uintmax_t)in->was.st_size > max) {
        kv_input_close(in);
        return fail_long(path, max, e);
    }
    start(&r, in->fd, (size_t)in->was.st_size);
    do
        got = read_piece(&r);
    while (got > 0 && r.n <= max);
    if (finish(&r, path, in, got < 0 ? errno : 0, max, e))
        return -1;
    *text = r.text;
    *bytes = r.n;
    return 0;
}

int kv_file_read(const char *path, char **text, size_t *bytes, struct kv_err *e)
{
    return kv_file_read_most(path, KV_FILE_MAX, text, bytes, e);
}

/* Opens an input.  Waits for the writer of a FIFO, but never for a device. */
static int open_stream(const char *path)
{
    struct stat st;
    int fd;

    if (!strcmp(path, "-"))
        return fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0);
    if (!stat(path, &st) && S_ISFIFO(st.st_mode)) {
        kv_wait_begin();
        fd = open(path, O_RDONLY | O_CLOEXEC);
        kv_wait_end();
    } else {
        fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    }
    return fd;
}

/* Closes fd on failure.  *size: the size of a regular file, else 0. */
static int check_stream(const char *name, int fd, size_t *size,
                        struct kv_input **in, struct kv_err *e)
{
    struct stat st;
    int rc = -1;

    *in = NULL;
    *size = 0;
    if (fstat(fd, &st)) {
        kv_fail(e, "cannot read %s: %s", name, strerror(errno));
    } else if (S_ISREG(st.st_mode)) { /* no output can replace a pipe */
        *size = (size_t)st.st_size;
        return kv_input_add(in, name, fd, &st, e);
    } else if (S_ISDIR(st.st_mode)) {
        kv_fail(e, "cannot read %s: %s", name, strerror(EISDIR));
    } else if (!S_ISFIFO(st.st_mode) && !S_ISSOCK(st.st_mode) && !isatty(fd)) {
        kv_fail(e,
                "cannot read %s: it is not a regular file, a pipe or a "
                "terminal",
                name);
    } else {
        rc = 0;
    }
    if (rc)
        close(fd);
    return rc;
}

/* Reads until the end, a zero byte, or more than max bytes; returns 0 or an
 * errno. */
static int read_stream(struct reading *r, size_t max)
{
    ssize_t got;

    do
        got = read_piece(r);
    while (got > 0 && r->n <= max &&
           !memchr(r->text + r->n - got, 0, (size_t)got));
    return got < 0 ? errno : 0;
}

int kv_stream_read(const char *path, size_t max, char **text, size_t *bytes,
                   struct kv_err *e)
{
    const char *name = kv_input_name(path);
    const int fd = open_stream(path);
    struct kv_input *in;
    struct reading r;
    size_t size;
    int why;

    if (fd < 0)
        return kv_fail(e, "cannot open %s: %s", name, strerror(errno));
    if (check_stream(name, fd, &size, &in, e))
        return -1;
    if (size > max) {
        kv_input_close(in);
        return fail_long(name, max, e);
    }
    start(&r, fd, in ? size : PIECE);
    why = read_stream(&r, max);
    if (!in)
        close(fd);
    if (finish(&r, name, in, why, max, e))
        return -1;
    *text = r.text;
    *bytes = r.n;
    return 0;
}
