/* Layers whose codecs have kernels on the backend are encoded and decoded
 * there.
 */
#include "eval/loop_impl.h"
#include "kernels/device_code.h"
#include "lib/base/alloc.h"
#include "lib/seq/bits.h"

#include <stdlib.h>

static struct kv_loop_met *met_at(const struct kv_loop *l, size_t n_windows,
                                  size_t layer, size_t side)
{
    return (struct kv_loop_met *)l->met.p +
           (layer * KV_SIDES + side) * n_windows;
}

static int clear_met(struct kv_loop *l, size_t bytes, struct kv_err *e)
{
    void *zero = kv_alloc(bytes, 1);
    const int rc = l->b->upload(l->met.p, zero, bytes, e);

    free(zero);
    return rc;
}

static int want_met(struct kv_loop *l, size_t n_windows, struct kv_err *e)
{
    const size_t bytes =
        l->shape.n_layers * KV_SIDES * n_windows * sizeof(struct kv_loop_met);

    if (bytes <= l->met.bytes)
        return 0;
    return kv_workspace_want(l->b, &l->met, bytes, e) || clear_met(l, bytes, e);
}

/* Waits for the device, adds up the counts of all layers' coders, and fails at
 * the first NaN or infinity. */
static int count_met(struct kv_loop *l, size_t n_windows, struct kv_err *e)
{
    const size_t n = l->shape.n_layers * KV_SIDES * n_windows;
    struct kv_loop_met *met = kv_alloc(n, sizeof(*met));
    double clipped = 0;
    size_t i = 0;
    int rc = l->b->download(met, l->met.p, n * sizeof(*met), e);

    for (; !rc && i < n && !met[i].nonfinite; i++)
        clipped += (double)met[i].clipped;
    if (!rc && i < n) {
        kv_fail(e, "layer %zu, %c: NaN or infinity in the input",
                i / n_windows / KV_SIDES,
                kv_side_name((enum kv_side)(i / n_windows % KV_SIDES)));
        rc = kv_fail_in(e, "window %zu", l->first_window + i % n_windows);
    }
    free(met);
    l->bits.clipped += clipped;
    return rc || (clipped > 0 && clear_met(l, n * sizeof(*met), e));
}

/* Makes every window's codes and the forms that this side needs; the quantized
 * form is not needed if attention is on codes. */
static int fill_side(struct kv_loop *l, const struct kv_qkv *x,
                     enum kv_side side, struct kv_attend_side *to,
                     struct kv_attend_codes *codes, struct kv_err *e)
{
    const struct kv_backend *b = l->b;
    const struct kv_codec *c = kv_codecs_at(l->codecs, x->layer)[side];
    struct kv_coder *coder = l->layer[x->layer].coder[side];
    struct kv_workspace *form = l->form[side];
    const bool on_codes = l->layer[x->layer].on_codes;
    const size_t n_blocks = kv_quantized(c, x->n) / c->block;
    const size_t window = x->n * kv_loop_row(x),
                 each = n_blocks * c->block_bytes;
    const size_t values = x->n_windows * window;
    float *quantized, *unquantized;

    if (kv_workspace_want(b, &l->bytes[side], x->n_windows * each, e) ||
        (!on_codes &&
         kv_workspace_want(b, &form[QUANTIZED], values * sizeof(float), e)) ||
        (to->until &&
         kv_workspace_want(b, &form[UNQUANTIZED], values * sizeof(float), e)))
        return -1;
    quantized = on_codes ? NULL : form[QUANTIZED].p;
    unquantized = to->until ? form[UNQUANTIZED].p : NULL;
    for (size_t w = 0; w < x->n_windows; w++) {
        struct kv_loop_met *met = met_at(l, x->n_windows, x->layer, side) + w;
        const struct kv_encode job = {
            .x = kv_loop_input(l, x, side, w),
            .n = x->n,
            .first = kv_loop_sinks(c),
            .n_blocks = n_blocks,
            .seed = l->seed,
            .rounded = quantized ? quantized + w * window : NULL,
            .again = unquantized ? unquantized + w * window : NULL,
            .bytes = (uint8_t *)l->bytes[side].p + w * each,
            .nonfinite = &met->nonfinite,
            .clipped = &met->clipped,
        };

        if (b->encode(b, coder, &job, e) ||
            (quantized &&
             b->decode(coder, job.bytes, n_blocks,
                       job.rounded + job.first * kv_loop_row(x), e)))
            return -1;
    }
    to->quantized = quantized;
    to->unquantized = unquantized;
    *codes =
        (struct kv_attend_codes){coder, l->bytes[side].p, n_blocks * c->block};
    for (int f = 0; f < VIEWS; f++) {
        float *keys = f == QUANTIZED ? quantized : unquantized;

        if (c->pre_rope && keys &&
            b->rotate(x->rope, kv_shape_pairs(x->shape), x->n, keys,
                      x->n_windows * x->n, x->shape->n_kv_heads,
                      x->shape->head_dim, e))
            return -1;
    }
    return 0;
}

int kv_loop_fill_by_coder(struct kv_loop *l, const struct kv_qkv *x,
                          struct kv_attend_side *const *side,
                          struct kv_attend_codes *codes, struct kv_bits *bits,
                          struct kv_err *e)
{
    for (int i = 0; i < KV_SIDES; i++) {
        const struct kv_bits held =
            kv_bits_of_tokens(kv_codecs_at(l->codecs, x->layer)[i], x->n);

        for (size_t w = 0; w < x->n_windows; w++)
            kv_bits_add(&bits[w], &held);
    }
    return want_met(l, x->n_windows, e) ||
           fill_side(l, x, KV_K, side[KV_K], &codes[KV_K], e) ||
           fill_side(l, x, KV_V, side[KV_V], &codes[KV_V], e) ||
           (x->layer == l->last && count_met(l, x->n_windows, e));
}
