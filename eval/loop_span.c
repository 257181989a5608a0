/* Codes that hold all layers of a token: a pass at full precision makes them,
 * and the next pass reads them layer by layer. */
#include "eval/loop_impl.h"
#include "eval/loop_jitter.h"
#include "lib/base/alloc.h"
#include "lib/mixed.h"
#include "lib/rope_table.h"

#include <stdlib.h>
#include <string.h>

/* The windows of a group.  rows: [n_windows][n][n_layers][row], keys before
 * RoPE where the codec stores them so.  The pass at full precision writes rows;
 * decoded rows then replace them. */
struct kv_loop_span {
    float *rows[KV_SIDES];
    size_t n_windows, n;
};

/* ---- the pass at full precision ------------------------------------------ */

static void begin(struct kv_loop *l, const struct kv_qkv *x)
{
    const size_t values =
        x->n_windows * x->n * kv_shape_kv_most(&l->shape) * l->shape.n_layers;

    kv_loop_span_free(l->span);
    l->span = kv_alloc(1, sizeof(*l->span));
    l->span->n_windows = x->n_windows;
    l->span->n = x->n;
    for (int side = 0; side < KV_SIDES; side++)
        l->span->rows[side] = kv_alloc(values, sizeof(float));
}

/* Copies n rows [row] from one stride to another. */
static void copy_rows(const float *from, size_t from_stride, size_t n,
                      size_t row, float *to, size_t to_stride)
{
    for (size_t i = 0; i < n; i++)
        memcpy(to + i * to_stride, from + i * from_stride, row * sizeof(*to));
}

/* The first row of a layer of a window. */
static float *rows_of(const struct kv_loop *l, enum kv_side side, size_t window,
                      size_t layer)
{
    const struct kv_loop_span *s = l->span;

    return s->rows[side] + (window * s->n * l->shape.n_layers + layer) *
                               kv_shape_kv_most(&l->shape);
}

/* Replaces a window's rows by their decoded codes, and adds the bits. */
static int code_window(struct kv_loop *l, size_t window, struct kv_err *e)
{
    struct kv_codec *const *codec = kv_codecs_at(l->codecs, 0);
    const float *k = rows_of(l, KV_K, window, 0);
    struct kv_tokens t = {.n = l->span->n, .v = rows_of(l, KV_V, window, 0)};
    struct kv_cache *cache;
    int rc = -1;

    *(codec[KV_K]->pre_rope ? &t.k_pre : &t.k) = k;
    if (kv_cache_new(&cache, codec[KV_K], codec[KV_V], l->seed, e))
        return -1;
    if (!kv_cache_append(cache, &t, e))
        rc = 0;
    for (int side = 0; side < KV_SIDES && !rc; side++) {
        const struct kv_bits held = kv_bits_of_cache(cache, (enum kv_side)side);

        kv_bits_add(&l->bits, &held);
        kv_cache_decode(cache, (enum kv_side)side,
                        rows_of(l, (enum kv_side)side, window, 0));
    }
    kv_cache_free(cache);
    return rc ? kv_fail_in(e, "window %zu", l->first_window + window) : 0;
}

static int gather(void *arg, const struct kv_qkv *x, struct kv_err *e)
{
    struct kv_loop *l = arg;
    const size_t row = kv_loop_row(x);
    struct kv_jittered moved;
    struct kv_qkv host;
    int rc = 0;

    if (!x->layer)
        begin(l, x);
    if (kv_qkv_to_host(x, &host, e) || kv_attend_exact(NULL, x, e))
        return -1;
    if (l->jitter) {
        kv_jittered_new(&moved, &host, l->first_window, l->seed, l->jitter);
        host = moved.x;
    }
    for (size_t i = 0; i < x->n_windows * KV_SIDES; i++) {
        const enum kv_side side = (enum kv_side)(i % KV_SIDES);
        const size_t window = i / KV_SIDES;

        copy_rows(kv_loop_input(l, &host, side, window), row, x->n, row,
                  rows_of(l, side, window, x->layer), row * l->shape.n_layers);
    }
    if (l->jitter)
        kv_jittered_clear(&moved);
    for (size_t w = 0;
         w < x->n_windows && x->layer + 1 == l->shape.n_layers && !rc; w++)
        rc = code_window(l, w, e);
    return rc;
}

struct kv_attention kv_loop_gather(struct kv_loop *l, size_t first_window,
                                   size_t length)
{
    l->first_window = first_window;
    l->length = length;
    return (struct kv_attention){.run = gather, .arg = l};
}

/* ---- the next one -------------------------------------------------------- */

void kv_loop_span_read(const struct kv_loop *l, const struct kv_qkv *x,
                       size_t window, enum kv_side side, float *const *form)
{
    const size_t row = kv_loop_row(x);
    struct kv_codec one = *kv_codecs_at(l->codecs, 0)[side];

    one.shape = kv_shape_layer(&l->shape, x->layer);
    copy_rows(rows_of(l, side, window, x->layer), row * l->shape.n_layers, x->n,
              row, form[QUANTIZED], row);
    if (form[UNQUANTIZED])
        kv_codec_unquantized(&one, 0, kv_loop_input(l, x, side, window), x->n,
                             form[UNQUANTIZED]);
}

void kv_loop_span_free(struct kv_loop_span *s)
{
    if (!s)
        return;
    free(s->rows[KV_K]);
    free(s->rows[KV_V]);
    free(s);
}

/* Only tokens that pass all layers at full precision can be coded. */
int kv_loop_span_takes(const struct kv_loop *l, size_t n, struct kv_err *e)
{
    const struct kv_protocol *p = &l->protocol;

    if (p->kind == KV_STREAM)
        return kv_fail(e,
                       "%s codes a prompt that all layers have seen: protocols "
                       "all, llama.cpp and prefill:P, not %s",
                       l->spec.text, p->text);
    for (int side = 0; side < KV_SIDES && p->kind == KV_PREFILL; side++) {
        const struct kv_codec *c = kv_codecs_at(l->codecs, 0)[side];
        const size_t coded = kv_loop_sinks(c) + kv_quantized(c, n);

        if (coded > p->prefill)
            return kv_fail(e,
                           "%s, %s: %zu of %zu tokens are coded in the end, "
                           "and only the prompt's can be: a larger P or r",
                           p->text, l->spec.text, coded, n);
    }
    return 0;
}
