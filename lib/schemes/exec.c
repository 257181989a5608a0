/* exec: a codec that is another process (docs/exec.md, lib/exec.h). */
#include "kernels/vecops/vecops.h"
#include "lib/base/alloc.h"
#include "lib/base/end.h"
#include "lib/calib.h"
#include "lib/schemes/exec_pool.h"
#include "lib/schemes/exec_train.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The header before the tokens of an ENCODE request. */
struct where {
    uint64_t first, seed, n_blocks;
};

/* Encodes in the process; sets *answer [*n].  Checks the answer's size if that
 * is fixed. */
static int exec_ask_encode(const struct kv_codec *c, struct kv_where w,
                           const float *x, size_t n_blocks, void **answer,
                           size_t *n, struct kv_err *e)
{
    const struct where head = {w.first, w.seed, n_blocks};
    const size_t most = n_blocks * c->block_bytes;
    const struct kv_exec_request r = {
        .kind = KV_EXEC_ENCODE,
        .head = &head,
        .head_bytes = sizeof(head),
        .data = x,
        .bytes = n_blocks * kv_codec_block_values(c) * sizeof(*x),
        .at_most = most};

    if (kv_exec_ask(c->state, &r, answer, n, e))
        return -1;
    if (c->variable ? *n > 0 : *n == most)
        return 0;
    kv_exec_wrong(c->state, KV_EXEC_ENCODE, e,
                  "it answers %zu bytes for %zu blocks: expected %s%zu", *n,
                  n_blocks, c->variable ? "1 to " : "", most);
    free(*answer);
    return -1;
}

/* Fails with the place of the first value that is not finite. */
static int fail_value(const struct kv_codec *c, const float *x,
                      struct kv_err *e)
{
    const size_t dim = c->shape.head_dim, row = c->shape.n_kv_heads * dim;
    size_t i = 0;

    while (isfinite(x[i]))
        i++;
    return kv_exec_wrong(c->state, KV_EXEC_DECODE, e,
                         "it answers %s: token %zu of the message, head %zu, "
                         "channel %zu",
                         isnan(x[i]) ? "a NaN" : "an infinity", i / row,
                         i % row / dim, i % dim);
}

static int exec_ask_decode(const struct kv_codec *c, const uint8_t *bytes,
                           size_t n, size_t n_blocks, float *x,
                           struct kv_err *e)
{
    const uint64_t head = n_blocks;
    const size_t values = n_blocks * kv_codec_block_values(c);
    const struct kv_exec_request r = {.kind = KV_EXEC_DECODE,
                                      .head = &head,
                                      .head_bytes = sizeof(head),
                                      .data = bytes,
                                      .bytes = n,
                                      .at_most = values * sizeof(*x)};
    void *answer;
    size_t got;
    int rc = kv_exec_ask(c->state, &r, &answer, &got, e);

    if (rc)
        return rc;
    if (got != values * sizeof(*x)) {
        rc = kv_exec_wrong(c->state, KV_EXEC_DECODE, e,
                           "it answers %zu bytes for %zu blocks: expected %zu, "
                           "%zu values of f32",
                           got, n_blocks, values * sizeof(*x), values);
    } else {
        memcpy(x, answer, got);
        if (!kv_row_is_finite(x, values))
            rc = fail_value(c, x, e);
    }
    free(answer);
    return rc;
}

static void exec_encode(const struct kv_codec *c, struct kv_where w,
                        const float *x, size_t n_blocks, uint8_t *bytes)
{
    struct kv_err e;
    void *answer;
    size_t n;

    if (exec_ask_encode(c, w, x, n_blocks, &answer, &n, &e))
        kv_end("%s", e.msg);
    memcpy(bytes, answer, n);
    free(answer);
}

static void exec_decode(const struct kv_codec *c, const uint8_t *bytes,
                        size_t n_blocks, float *x)
{
    struct kv_err e;

    if (exec_ask_decode(c, bytes, n_blocks * c->block_bytes, n_blocks, x, &e))
        kv_end("%s", e.msg);
}

static size_t exec_encode_block(const struct kv_codec *c, struct kv_where w,
                                const float *x, uint8_t *bytes)
{
    struct kv_err e;
    void *answer;
    size_t n;

    if (exec_ask_encode(c, w, x, 1, &answer, &n, &e))
        kv_end("%s", e.msg);
    memcpy(bytes, answer, n);
    free(answer);
    return n;
}

static int exec_decode_block(const struct kv_codec *c, const uint8_t *bytes,
                             size_t n, float *x, struct kv_err *e)
{
    return exec_ask_decode(c, bytes, n, 1, x, e);
}

static const struct kv_variable variable = {exec_encode_block,
                                            exec_decode_block};

/* The tables from the codec's training, if the calibration has them. */
static const struct kv_table *exec_tables(const struct kv_codec *c,
                                          const struct kv_calib *calib)
{
    const struct kv_calib_set *set =
        calib ? kv_calib_find(calib, &c->spec) : NULL;

    return set ? kv_calib_table(set, KV_EXEC_TABLES, c->side, c->layer, 0)
               : NULL;
}

static int exec_open(struct kv_codec *c, const struct kv_calib *calib,
                     struct kv_err *e)
{
    const struct kv_table *t = exec_tables(c, calib);
    const struct kv_calib_set *set;
    const struct kv_exec_layout *l;
    struct kv_exec_place *p;

    if (kv_exec_place_new(&p, &c->spec, &c->shape, c->layer, c->side,
                          t ? t->data : NULL, t ? t->dims[0] : 0, e))
        return -1;
    c->state = p;
    l = kv_exec_layout(p);
    if (l->trains && !t)
        return kv_calib_want_set(&set, calib, &c->spec, e)
                   ? -1
                   : kv_fail(e,
                             "the calibration has no tables of layer %zu, "
                             "%c",
                             c->layer, kv_side_name(c->side));
    c->block = l->block;
    c->block_bytes = l->bytes;
    c->variable = l->varies ? &variable : NULL;
    c->pre_rope = l->pre_rope && c->side == KV_K;
    c->residual_rule = l->batched ? KV_BATCHED : KV_SLIDING;
    if (l->declared > 0)
        c->declared_bytes =
            (size_t)ceil(l->declared * (double)kv_codec_block_values(c) / 8);
    return 0;
}

static void exec_close(struct kv_codec *c)
{
    kv_exec_place_free(c->state);
}

const struct kv_scheme kv_scheme_exec = {
    .name = "exec",
    .brief = "a codec in another process, in any language (docs/exec.md)",
    .coarse = true,
    .residual_rule = {KV_SLIDING, KV_SLIDING},
    .training = &kv_exec_training,
    .open = exec_open,
    .close = exec_close,
    .encode = exec_encode,
    .decode = exec_decode,
};
