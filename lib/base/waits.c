#include "lib/base/waits.h"
#include "lib/base/file.h"
#include "lib/base/file_impl.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <unistd.h>

atomic_int kv_stop;
atomic_uint kv_waiting;

void kv_wait_begin(void)
{
    kv_waiting++;
}

void kv_wait_end(void)
{
    kv_waiting--;
}

int kv_interrupted(struct kv_err *e)
{
    return kv_stop ? kv_fail(e, "interrupted") : 0;
}

/* Whether to try a failed call on fd again.  Waits first if fd does not wait by
 * itself (O_NONBLOCK may be set by a process that shares fd). */
static bool try_again(int fd, short events)
{
    struct pollfd p = {.fd = fd, .events = events};

    if (errno == EAGAIN)
        return poll(&p, 1, -1) > 0;
    return errno == EINTR && !kv_interrupted(NULL);
}

ssize_t kv_wait_read(int fd, void *data, size_t n)
{
    ssize_t got;

    kv_wait_begin();
    do
        got = read(fd, data, n);
    while (got < 0 && try_again(fd, POLLIN));
    kv_wait_end();
    return got;
}

/* Writes all n bytes, or returns 0: the stream has failed. */
static ssize_t write_all(void *cookie, const char *data, size_t n)
{
    const int fd = (int)(intptr_t)cookie;
    size_t at = 0;

    kv_wait_begin();
    while (at < n) {
        const ssize_t put = write(fd, data + at, n - at);

        if (put < 0 && !try_again(fd, POLLOUT))
            break;
        at += put > 0 ? (size_t)put : 0;
    }
    kv_wait_end();
    return at < n ? 0 : (ssize_t)n;
}

static int close_it(void *cookie)
{
    return close((int)(intptr_t)cookie);
}

FILE *kv_wait_stream(int fd)
{
    return fopencookie(
        (void *)(intptr_t)fd, "w",
        (cookie_io_functions_t){.write = write_all, .close = close_it});
}
