#include "eval/random_dump.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/base/rng.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { WINDOWS = KV_RANDOM_WINDOWS, CTX = KV_RANDOM_CTX };

static int put_tensors(struct kv_dump_writer *w, const struct kv_shape *shape,
                       uint64_t seed, struct kv_err *e)
{
    const size_t row = shape->n_heads * shape->head_dim;
    float *x = kv_alloc(CTX, row * sizeof(*x));
    int rc = 0;

    for (int i = 0; i < KV_TENSORS * WINDOWS && !rc; i++) {
        const enum kv_tensor t = (enum kv_tensor)(i / WINDOWS);
        const uint64_t key = kv_mix(seed, (uint64_t)i);

#pragma omp parallel for schedule(static)
        for (size_t j = 0; j < CTX * row; j++)
            x[j] = (float)kv_random_normal(key, j);
        rc = kv_dump_put(w, 0, t, (size_t)(i % WINDOWS), 1, x, e);
    }
    free(x);
    return rc;
}

/* Writes identity matrices: the second moments of normal vectors. */
static int put_gram(struct kv_dump_writer *w, const struct kv_shape *shape,
                    struct kv_err *e)
{
    const size_t d = shape->head_dim, n = shape->n_kv_heads * d * d;
    float *gram = kv_alloc(n, sizeof(*gram));
    int rc;

    for (size_t i = 0; i < n; i++)
        gram[i] = i / d % d == i % d;
    rc = kv_dump_put_gram(w, 0, gram, e);
    free(gram);
    return rc;
}

static int write_dump(const char *path, const struct kv_shape *shape,
                      uint64_t seed, struct kv_err *e)
{
    const struct kv_dump_info info = {
        .model = "random",
        .text = "random",
        .shape = *shape,
        .n_windows = WINDOWS,
        .ctx = CTX,
        .have = {true, true, true, true, true, true}};
    static const int32_t tokens[WINDOWS * CTX];
    struct kv_dump_writer *w;

    if (kv_dump_create(&w, path, &info, e))
        return -1;
    if (kv_dump_put_tokens(w, 0, WINDOWS, tokens, e) ||
        put_tensors(w, shape, seed, e) || put_gram(w, shape, e)) {
        kv_dump_discard(w);
        return -1;
    }
    return kv_dump_commit(w, e);
}

int kv_random_dump(struct kv_dump **dump, const struct kv_shape *shape,
                   uint64_t seed, struct kv_err *e)
{
    const char *tmp = getenv("TMPDIR");
    char folder[512], path[528];
    int rc;

    snprintf(folder, sizeof(folder), "%s/kvtools-XXXXXX", tmp ? tmp : "/tmp");
    if (kv_temporary_folder(folder, e))
        return -1;
    snprintf(path, sizeof(path), "%s/random.h5", folder);
    rc = kv_temporary_add(path, e) || write_dump(path, shape, seed, e) ||
         kv_dump_open(dump, path, e);
    unlink(path); /* the file lives on only while it is open */
    rmdir(folder);
    kv_temporary_forget(path);
    kv_temporary_forget(folder);
    return rc ? -1 : 0;
}
