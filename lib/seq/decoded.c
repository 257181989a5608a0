#include "lib/seq/decoded.h"
#include "lib/base/alloc.h"
#include "lib/rope_table.h"

#include <assert.h>
#include <stdlib.h>

static void make_room(struct kv_decoded *d, enum kv_side side, size_t n,
                      size_t row)
{
    if (n <= d->capacity[side])
        return;
    d->capacity[side] = n + n / 4 + 16;
    d->x[side] =
        kv_realloc(d->x[side], d->capacity[side], row * sizeof(*d->x[side]));
}

/* Decodes the tokens that are not settled. */
static void update(struct kv_decoded *d, const struct kv_cache *c,
                   enum kv_side side)
{
    const struct kv_reader r = kv_cache_reader(c, side);
    const size_t row = kv_codec_row(r.codec);
    const size_t first = d->settled[side];
    float *x;

    if (!r.n)
        return;
    make_room(d, side, r.n, row);
    x = d->x[side] + first * row;
    kv_cache_decode_part(c, side, first, r.n, x);
    if (side == KV_K && r.codec->pre_rope)
        kv_rope(&r.codec->shape, x, r.n - first, r.codec->shape.n_kv_heads,
                first);
    d->settled[side] = r.sinks + r.n_blocks * r.codec->block;
}

void kv_decoded_attend(struct kv_decoded *d, const struct kv_cache *c,
                       struct kv_attend_view view, const float *q, float *out)
{
    const bool latent = kv_cache_reader(c, KV_K).codec->shape.latent;

    assert(view.n == kv_cache_tokens(c) && view.n_seqs == 1);
    update(d, c, KV_K);
    if (!latent)
        update(d, c, KV_V);
    kv_attend_c(&(struct kv_attend_job){
        .view = view,
        .q = q,
        .out = out,
        .q_rows = view.nq,
        .k = {.quantized = d->x[KV_K]},
        .v = {.quantized = d->x[latent ? KV_K : KV_V]}});
}

void kv_decoded_clear(struct kv_decoded *d)
{
    for (int i = 0; i < KV_SIDES; i++)
        free(d->x[i]);
    *d = (struct kv_decoded){0};
}
