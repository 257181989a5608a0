#include "lib/base/hash.h"
#include "lib/base/alloc.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct kv_hash {
    EVP_MD_CTX *md;
};

struct kv_hash *kv_hash_new(void)
{
    struct kv_hash *h = kv_alloc(1, sizeof(*h));

    h->md = EVP_MD_CTX_new();
    if (!h->md || !EVP_DigestInit_ex(h->md, EVP_sha256(), NULL))
        abort();
    return h;
}

void kv_hash_add(struct kv_hash *h, const void *data, size_t n)
{
    if (n && !EVP_DigestUpdate(h->md, data, n))
        abort();
}

void kv_hash_end(struct kv_hash *h, char hex[KV_HASH_CHARS])
{
    unsigned char sum[EVP_MAX_MD_SIZE];

    if (!EVP_DigestFinal_ex(h->md, sum, NULL))
        abort();
    EVP_MD_CTX_free(h->md);
    free(h);
    for (size_t i = 0; i < 8; i++)
        snprintf(hex + 2 * i, 3, "%02x", sum[i]);
}

void kv_hash_bytes(const void *data, size_t n, char hex[KV_HASH_CHARS])
{
    struct kv_hash *h = kv_hash_new();

    kv_hash_add(h, data, n);
    kv_hash_end(h, hex);
}

enum { PIECE = 1 << 16, PIECES = 1 << 10, WHOLE = 1 << 30 };

/* At most PIECE bytes from `at` on; *n: how many, 0 at the end. */
static int add_piece(struct kv_hash *h, int fd, uint64_t at, size_t *n)
{
    char piece[PIECE];
    const ssize_t got = pread(fd, piece, sizeof(piece), (off_t)at);

    if (got < 0)
        return -1;
    kv_hash_add(h, piece, (size_t)got);
    *n = (size_t)got;
    return 0;
}

static int add_whole(struct kv_hash *h, int fd)
{
    uint64_t at = 0;
    size_t n;

    do {
        if (add_piece(h, fd, at, &n))
            return -1;
        at += n;
    } while (n);
    return 0;
}

static int add_sampled(struct kv_hash *h, int fd, const struct stat *st)
{
    const uint64_t size = (uint64_t)st->st_size;
    const uint64_t facts[] = {size, (uint64_t)st->st_ino,
                              (uint64_t)st->st_mtim.tv_sec,
                              (uint64_t)st->st_mtim.tv_nsec};
    size_t n;

    kv_hash_add(h, facts, sizeof(facts));
    for (uint64_t i = 0; i < PIECES; i++)
        if (add_piece(h, fd, (size - PIECE) / (PIECES - 1) * i, &n))
            return -1;
    return add_piece(h, fd, size - PIECE, &n);
}

int kv_hash_add_file(struct kv_hash *h, const char *path, struct kv_err *e)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat st;
    int rc = -1;

    if (fd >= 0 && !fstat(fd, &st))
        rc = st.st_size > WHOLE ? add_sampled(h, fd, &st) : add_whole(h, fd);
    if (rc)
        kv_fail(e, "cannot read %s: %s", path, strerror(errno));
    if (fd >= 0)
        close(fd);
    return rc;
}
