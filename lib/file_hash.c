#include "lib/file_hash.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* SPAN leaves (256 MiB) are read between two checks for Ctrl-C. */
enum { LEAF = 256 << 10, SPAN = 1024, FEW = 4 };

/* Computes the code of the leaf that begins at `at`.  buffer: [LEAF].  Returns
 * 0 or an errno. */
static int read_leaf(const struct kv_input *in, uint64_t at, uint8_t *buffer,
                     uint8_t *code)
{
    const uint64_t left = kv_input_size(in) - at;
    const size_t n = left < LEAF ? (size_t)left : LEAF;
    const int why = kv_input_read(in, at, buffer, n);

    if (!why)
        kv_hash_leaf(buffer, n, code);
    return why;
}

/* Computes the codes of n leaves from `first` on.  Returns 0 or an errno. */
static int read_leaves(const struct kv_input *in, uint64_t first, size_t n,
                       uint8_t (*code)[KV_LEAF_CODE])
{
    int why = 0;

#pragma omp parallel if (n > FEW) reduction(max : why)
    {
        uint8_t *buffer = kv_alloc(LEAF, 1);

#pragma omp for schedule(dynamic)
        for (size_t i = 0; i < n; i++) {
            const int failed =
                read_leaf(in, (first + i) * LEAF, buffer, code[i]);

            why = failed > why ? failed : why;
        }
        free(buffer);
    }
    return why;
}

static int add_content(struct kv_hash *h, const struct kv_input *in,
                       const char *path, struct kv_err *e)
{
    const uint64_t size = kv_input_size(in);
    const uint64_t n_leaves = (size + LEAF - 1) / LEAF;
    uint8_t code[SPAN][KV_LEAF_CODE];

    kv_hash_add(h, &size, sizeof(size));
    for (uint64_t first = 0; first < n_leaves; first += SPAN) {
        const uint64_t left = n_leaves - first;
        const size_t n = left < SPAN ? (size_t)left : SPAN;
        const int why = read_leaves(in, first, n, code);

        if (why)
            return kv_fail(e, "cannot read %s: %s", path, strerror(why));
        if (kv_interrupted(e))
            return -1;
        kv_hash_add(h, code, n * sizeof(*code));
    }
    return 0;
}

int kv_hash_add_file(struct kv_hash *h, const char *path, uint64_t max,
                     struct kv_err *e)
{
    struct kv_input *in;
    int rc;

    if (kv_input_open(&in, path, e))
        return -1;
    rc = kv_input_size(in) > max
             ? kv_fail(e, "%s is too long: expected at most %llu bytes", path,
                       (unsigned long long)max)
             : add_content(h, in, path, e);
    if (!kv_input_close(in))
        rc = kv_fail(e, "%s was changed while it was read", path);
    return rc;
}
