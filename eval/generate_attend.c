/* Attention of kv_generate(): tokens enter the caches of their sequences. */
#include "eval/generate_impl.h"
#include "lib/base/alloc.h"

#include <stdlib.h>
#include <string.h>

/* A layer's tensors of the live sequences, in host memory. */
struct layer {
    const struct kv_generator *r;
    const struct kv_qkv *x;
};

static bool is_exact(const struct kv_generator *r,
                     const struct kv_gen_sequence *s, size_t layer)
{
    return r->prompt &&
           !kv_codecs_at(s->spec->codecs, layer)[KV_K]->prefill_on_codes;
}

/* Whether the layer's attention of this pass is attend_on_gpu(). */
static bool is_on_gpu(const struct kv_generator *r, const struct kv_gen_spec *s,
                      size_t layer)
{
    return s->gpu && !r->prompt && kv_gpu_layers_has(s->gpu, layer);
}

/* Appends the i-th live sequence's tokens to its caches and attends.  If it
 * fails, for example on keys that are not finite, the other sequences of the
 * pass are not affected. */
static int attend_one(const void *arg, size_t i, size_t thread,
                      struct kv_err *e)
{
    const struct layer *l = arg;
    const struct kv_qkv *x = l->x;
    struct kv_gen_sequence *s = l->r->live[i];
    const size_t at = l->r->prompt ? 0 : i, n = l->r->prompt ? x->n : 1,
                 row = x->shape->n_heads * x->shape->head_dim;
    const struct kv_tokens t = kv_qkv_tokens(x, 0, at, n);
    const bool exact = is_exact(l->r, s, x->layer);
    const bool on_gpu = is_on_gpu(l->r, s->spec, x->layer);
    const bool elsewhere = exact || on_gpu;
    const double start = kv_seconds();
    float *out = x->out + at * row;
    struct kv_err why;

    (void)thread;
    (void)e;
    if (x->shared) { /* a layer without own KV: the cache has the tokens */
        if (!s->ended && !elsewhere)
            kv_seq_attend(s->seq, x->layer, n, t.q, out);
    } else if (!s->ended &&
               (elsewhere ? kv_seq_append(s->seq, x->layer, &t, &why)
                          : kv_seq_step(s->seq, x->layer, &t, out, &why)))
        kv_gen_fail(s, &why);
    if (on_gpu && !s->ended)
        s->tiles = kv_seq_tiles(s->seq, x->layer);
    if (exact)
        s->a->encode_seconds += kv_seconds() - start;
    if (s->ended && !exact)
        memset(out, 0, n * row * sizeof(*out));
    return 0;
}

/* Attention of one token of the live sequences with this spec. */
static void attend_on_gpu(const struct kv_generator *r, const struct kv_qkv *x,
                          const struct kv_gen_spec *spec)
{
    const size_t row = x->shape->n_heads * x->shape->head_dim;
    struct kv_gpu_query *query = kv_alloc(r->n_live, sizeof(*query));
    struct kv_err why;
    size_t n = 0;

    for (size_t i = 0; i < r->n_live; i++) {
        const struct kv_gen_sequence *s = r->live[i];

        if (s->spec == spec && !s->ended)
            query[n++] = (struct kv_gpu_query){
                s->seq, s->tiles, s->id, x->q + i * row, x->out + i * row};
    }
    if (kv_gpu_layers_attend(spec->gpu, x->layer, query, n, row, &why))
        for (size_t i = 0; i < r->n_live; i++) {
            struct kv_gen_sequence *s = r->live[i];

            if (s->spec != spec || s->ended)
                continue;
            memset(x->out + i * row, 0, row * sizeof(*x->out));
            kv_gen_fail(s, &why);
        }
    free(query);
}

/* Calls the caller's layer() for every live sequence of a prompt. */
static void tell_layer(const struct kv_generator *r, size_t layer)
{
    for (size_t i = 0; r->g.layer && r->prompt && i < r->n_live; i++) {
        struct kv_gen_sequence *s = r->live[i];
        struct kv_err why;

        if (!s->ended && r->g.layer(r->g.arg, s->a, s->seq, layer, &why))
            kv_gen_fail(s, &why);
    }
}

int kv_gen_attend(void *arg, const struct kv_qkv *x, struct kv_err *e)
{
    const struct kv_generator *r = arg;
    struct kv_gen_sequence *first = r->live[0];
    struct kv_qkv host;
    const struct layer l = {r, &host};
    const struct kv_attend_job job = kv_qkv_job(x, 0, x->n);

    if (kv_qkv_to_host(x, &host, e) ||
        host.backend->each(r->n_live, attend_one, &l, e))
        return -1;
    for (size_t i = 0; i < r->n_specs; i++)
        if (is_on_gpu(r, r->spec[i], x->layer))
            attend_on_gpu(r, &host, r->spec[i]);
    if (!x->shared)
        tell_layer(r, x->layer);
    return is_exact(r, first, x->layer)
               ? kv_prefill_attend(&first->prefill, x, &job, e)
               : kv_qkv_from_host(x, &host, e);
}

float *kv_gen_state(void *arg, size_t sequence)
{
    const struct kv_generator *r = arg;

    return kv_seq_state(r->live[sequence]->seq);
}

void kv_gen_share_state(const struct kv_generator *r)
{
    for (size_t i = 1; i < r->n_live; i++)
        kv_seq_copy_state(r->live[i]->seq, r->live[0]->seq);
    if (kv_seq_state(r->live[0]->seq))
        tell_layer(r, r->n_layers);
}
