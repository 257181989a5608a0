#include "eval/loop_gpu.h"
#include "kernels/cuda/coder.h"
#include "kernels/cuda/round_f16.h"
#include "kernels/device_workspace.h"
#include "kernels/hack/cuda_views.h"
#include "lib/base/alloc.h"
#include "lib/cache.h"
#include "lib/codec_gpu.h"

#include <stdlib.h>

/* A layer. */
struct layer {
    struct kv_gpu_coder *coder[KV_SIDES]; /* NULL: on the CPU */
    struct kv_gpu_code code[KV_SIDES];
    bool on_codes;                  /* attention is computed on them: */
    struct kv_gpu_hack_forms steps; /* without the codes themselves */
};

struct kv_loop_gpu {
    const struct kv_codecs *codecs;
    struct layer *layer;   /* [n_layers] */
    size_t n_layers, last; /* last: of those that run here */
    uint64_t seed;
    struct kv_device_workspace
        half; /* of a window: [n][n_kv_heads][head_dim] */
    struct kv_device_workspace bytes; /* its codes */
    struct kv_device_workspace work;  /* kv_gpu_encode_workspace() for them */
    struct kv_device_workspace
        steps[KV_SIDES];            /* the same of all windows, arranged
                                     * for attention on codes */
    struct kv_gpu_hack_forms codes; /* of the layer under way */
    /* unsigned [n_layers][KV_SIDES][n_windows]: 1 where one met a NaN or an
     * infinity */
    struct kv_device_workspace strange;
};

static size_t sinks_of(const struct kv_codec *c)
{
    return kv_spec_size(&c->spec, c->side, "s");
}

/* Whether a layer runs here; fills it in but for its coders. */
static bool can(struct kv_codec *const *codec, uint64_t seed,
                const struct kv_device *d, struct layer *l)
{
    const struct kv_gpu_code *code = l->code;

    if (!kv_codec_gpu_code(codec[KV_K], &l->code[KV_K]) ||
        !kv_codec_gpu_code(codec[KV_V], &l->code[KV_V]))
        return false;
    l->on_codes = codec[KV_K]->scheme->attend;
    return !l->on_codes || (sinks_of(codec[KV_K]) == sinks_of(codec[KV_V]) &&
                            kv_gpu_hack_forms_open(&code[KV_K], &code[KV_V],
                                                   seed, d, &l->steps));
}

int kv_loop_gpu_new(struct kv_loop_gpu **out, const struct kv_codecs *codecs,
                    size_t n_layers, uint64_t seed, const struct kv_device *d,
                    struct kv_err *e)
{
    struct kv_loop_gpu *g = kv_alloc(1, sizeof(*g));

    *g = (struct kv_loop_gpu){.codecs = codecs,
                              .layer = kv_alloc(n_layers, sizeof(*g->layer)),
                              .n_layers = n_layers,
                              .seed = seed};
    for (size_t i = 0; i < n_layers; i++) {
        struct kv_codec *const *codec = kv_codecs_at(codecs, i);
        struct layer *l = &g->layer[i];

        if (!can(codec, seed, d, l))
            continue;
        for (int side = 0; side < KV_SIDES; side++)
            if (kv_gpu_coder_new(&l->coder[side], &l->code[side], d, e)) {
                kv_loop_gpu_free(g);
                return kv_fail_in(e, "%s", codec[side]->spec.text);
            }
        g->last = i;
    }
    *out = g;
    return 0;
}

void kv_loop_gpu_free(struct kv_loop_gpu *g)
{
    if (!g)
        return;
    for (size_t i = 0; i < g->n_layers; i++)
        for (int side = 0; side < KV_SIDES; side++)
            kv_gpu_coder_free(g->layer[i].coder[side]);
    free(g->layer);
    for (int side = 0; side < KV_SIDES; side++)
        kv_device_workspace_clear(&g->steps[side]);
    kv_device_workspace_clear(&g->half);
    kv_device_workspace_clear(&g->bytes);
    kv_device_workspace_clear(&g->work);
    kv_device_workspace_clear(&g->strange);
    free(g);
}

bool kv_loop_gpu_has(const struct kv_loop_gpu *g, size_t layer)
{
    return g->layer[layer].coder[KV_K] != NULL;
}

bool kv_loop_gpu_on_codes(const struct kv_loop_gpu *g, size_t layer)
{
    return kv_loop_gpu_has(g, layer) && g->layer[layer].on_codes;
}

/* ---- NaN and infinity ---------------------------------------------------- */

static size_t strange_words(const struct kv_loop_gpu *g, size_t n_windows)
{
    return g->n_layers * KV_SIDES * n_windows;
}

static unsigned *strange_at(const struct kv_loop_gpu *g, size_t n_windows,
                            size_t layer, int side)
{
    return (unsigned *)g->strange.p +
           (layer * KV_SIDES + (size_t)side) * n_windows;
}

/* Waits, and fails with the first that some layer met. */
static int check_strange(struct kv_loop_gpu *g, size_t n_windows, size_t window,
                         struct kv_err *e)
{
    const size_t n = strange_words(g, n_windows);
    unsigned *met = kv_alloc(n, sizeof(*met));
    size_t i = 0;
    int rc = kv_device_download(met, g->strange.p, n * sizeof(*met), e);

    while (!rc && i < n && !met[i])
        i++;
    if (!rc && i < n) {
        kv_fail(e, "layer %zu, %c: NaN or infinity in the input",
                i / n_windows / KV_SIDES,
                kv_side_name((enum kv_side)(i / n_windows % KV_SIDES)));
        rc = kv_fail_in(e, "window %zu", window + i % n_windows);
    }
    free(met);
    return rc || kv_device_zero(g->strange.p, n * sizeof(*met), e) ? -1 : 0;
}

/* ---- a layer --------------------------------------------------------------
 */

/* A window's keys or values x [n] as they are held, in wide and, but for NULL,
 * in again; and their quantized tokens' codes in g->bytes. */
static int encode_window(struct kv_loop_gpu *g, const struct kv_codec *c,
                         const float *x, size_t n, float *wide, float *again,
                         unsigned *strange, struct kv_err *e)
{
    const struct kv_gpu_coder *coder = g->layer[c->layer].coder[c->side];
    const size_t row = c->shape.n_kv_heads * c->shape.head_dim;
    const size_t sinks = sinks_of(c);
    const size_t n_blocks = kv_quantized(c, n) / c->block;

    if (kv_device_workspace_want(&g->half, n * row * sizeof(uint16_t), e) ||
        kv_device_workspace_want(&g->bytes, n_blocks * c->block_bytes, e) ||
        kv_device_workspace_want(&g->work,
                                 kv_gpu_encode_workspace(coder, n_blocks), e))
        return -1;

    const struct kv_gpu_blocks b = {.x = (const uint16_t *)g->half.p +
                                         sinks * row,
                                    .bytes = g->bytes.p,
                                    .n = n_blocks,
                                    .first = sinks,
                                    .seed = g->seed,
                                    .room = g->work.p};

    return kv_gpu_round_f16(x, n * row, g->half.p, wide, again, strange, e) ||
           kv_gpu_encode(coder, &b, e);
}

/* The same, quantized tokens as their codes decode. */
static int fill_window(struct kv_loop_gpu *g, const struct kv_codec *c,
                       const float *x, size_t n, float *quantized,
                       float *unquantized, unsigned *strange, struct kv_err *e)
{
    const struct kv_gpu_coder *coder = g->layer[c->layer].coder[c->side];
    const size_t row = c->shape.n_kv_heads * c->shape.head_dim;

    return encode_window(g, c, x, n, quantized, unquantized, strange, e) ||
           kv_gpu_decode(coder, g->bytes.p, kv_quantized(c, n) / c->block,
                         quantized + sinks_of(c) * row, e);
}

static int fill_side(struct kv_loop_gpu *g, const struct kv_qkv *x,
                     enum kv_side side, struct kv_forms *f, struct kv_err *e)
{
    const struct kv_codec *c = kv_codecs_at(g->codecs, x->layer)[side];
    const float *in = side == KV_V  ? x->gpu_v
                      : c->pre_rope ? x->gpu_k_pre
                                    : x->gpu_k;
    const size_t window = x->n * c->shape.n_kv_heads * c->shape.head_dim;
    unsigned *strange = strange_at(g, x->n_windows, x->layer, side);
    float *quantized, *unquantized = NULL;

    if (kv_forms_room(x, side, true, &quantized, e) ||
        (f->until[side] && kv_forms_room(x, side, false, &unquantized, e)))
        return -1;
    for (size_t w = 0; w < x->n_windows; w++)
        if (fill_window(g, c, in + w * window, x->n, quantized + w * window,
                        unquantized ? unquantized + w * window : NULL,
                        strange + w, e))
            return -1;
    f->quantized[side] = quantized;
    f->unquantized[side] = unquantized;
    f->sinks[side] = sinks_of(c);
    if (!c->pre_rope)
        return 0;
    return kv_forms_turn(x, quantized, e) ||
           (unquantized && kv_forms_turn(x, unquantized, e));
}

/* Codes as steps, and the unquantized form, of a side that is attended to as
 * codes.
 */
static int arrange_side(struct kv_loop_gpu *g, const struct kv_qkv *x,
                        enum kv_side side, struct kv_forms *f, struct kv_err *e)
{
    const struct kv_codec *c = kv_codecs_at(g->codecs, x->layer)[side];
    const struct layer *l = &g->layer[x->layer];
    const struct kv_gpu_hack_side *h = side == KV_K ? &l->steps.k : &l->steps.v;
    const float *in = side == KV_K ? x->gpu_k : x->gpu_v;
    const size_t window = x->n * c->shape.n_kv_heads * c->shape.head_dim;
    const size_t bytes =
        c->shape.n_kv_heads * g->codes.n_steps * kv_gpu_hack_piece_bytes(h);
    unsigned *strange = strange_at(g, x->n_windows, x->layer, side);
    float *unquantized;

    if (kv_forms_room(x, side, false, &unquantized, e) ||
        kv_device_workspace_want(&g->steps[side], x->n_windows * bytes, e))
        return -1;
    for (size_t w = 0; w < x->n_windows; w++)
        if (encode_window(g, c, in + w * window, x->n, unquantized + w * window,
                          NULL, strange + w, e) ||
            kv_gpu_hack_arrange(&l->code[side], h, g->bytes.p,
                                kv_quantized(c, x->n), g->codes.n_steps,
                                (uint8_t *)g->steps[side].p + w * bytes, e))
            return -1;
    f->unquantized[side] = unquantized;
    f->sinks[side] = sinks_of(c);
    return 0;
}

static int arrange(struct kv_loop_gpu *g, const struct kv_qkv *x,
                   struct kv_forms *f, struct kv_err *e)
{
    struct kv_codec *const *codec = kv_codecs_at(g->codecs, x->layer);
    const size_t k = kv_quantized(codec[KV_K], x->n);
    const size_t v = kv_quantized(codec[KV_V], x->n);

    g->codes = g->layer[x->layer].steps;
    g->codes.n_steps =
        ((k > v ? k : v) + g->codes.k.tokens - 1) / g->codes.k.tokens;
    if (arrange_side(g, x, KV_K, f, e) || arrange_side(g, x, KV_V, f, e))
        return -1;
    g->codes.k_steps = g->steps[KV_K].p;
    g->codes.v_steps = g->steps[KV_V].p;
    f->codes = &g->codes;
    return 0;
}

int kv_loop_gpu_fill(struct kv_loop_gpu *g, const struct kv_qkv *x,
                     size_t window, struct kv_forms *f, struct kv_err *e)
{
    const size_t bytes = strange_words(g, x->n_windows) * sizeof(unsigned);

    if (bytes > g->strange.bytes &&
        (kv_device_workspace_want(&g->strange, bytes, e) ||
         kv_device_zero(g->strange.p, bytes, e)))
        return -1;
    f->there = true;
    if (g->layer[x->layer].on_codes
            ? arrange(g, x, f, e)
            : fill_side(g, x, KV_K, f, e) || fill_side(g, x, KV_V, f, e))
        return -1;
    return x->layer == g->last ? check_strange(g, x->n_windows, window, e) : 0;
}
