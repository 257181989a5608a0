#include "lib/model/layers.h"
#include "lib/base/alloc.h"

#include <math.h>
#include <stdlib.h>

/* On the CPU an LM head of up to head_bytes in the backend's type stays in
 * memory; of a larger head PANEL rows are held at a time. */
enum { PANEL = 4096 };
static const size_t head_bytes = (size_t)256 << 20;

struct kv_layers {
    const struct kv_backend *b;
    const struct kv_model_weights *w;
    size_t n_layers;
    bool large;
    /* at[layer][p]: the offset of part p in the layer's block or vectors. */
    size_t (*at)[KV_PARTS];
    size_t layer_bytes, vector_bytes; /* the largest layer's bytes */
    size_t n_resident; /* layers that stay in memory; the others share the last
                        * block */
    uint8_t **block;   /* matrices: [n_layers or n_resident + 1] */
    uint8_t *vectors;  /* [n_layers][vector_bytes] */
    size_t passing;    /* the layer in the last block; SIZE_MAX: none */
    size_t loaded;
    float *norm, *norm_bias, *head_bias;
    void *head; /* NULL: in panels */
};

static bool is_matrix(enum kv_part p)
{
    return p <= KV_P_DOWN;
}

static bool is_norm(enum kv_part p)
{
    return p >= KV_P_ATTN_NORM && p != KV_P_ATTN_NORM_BIAS &&
           p != KV_P_MLP_NORM_BIAS && p != KV_P_Q_NORM_BIAS &&
           p != KV_P_K_NORM_BIAS;
}

/* Whether part p directly follows the previous part, so that both form one
 * matrix or one bias. */
static bool follows(enum kv_part p)
{
    return p == KV_P_K || p == KV_P_V || p == KV_P_UP || p == KV_P_K_BIAS ||
           p == KV_P_MIX_B || p == KV_P_MIX_A || p == KV_P_MIX_Z ||
           p == KV_P_V_BIAS || p == KV_P_UP_BIAS || p == KV_P_SHARED_UP;
}

static enum kv_type type_of(const struct kv_layers *l, enum kv_part p)
{
    return is_matrix(p) ? l->b->weight_type : KV_TYPE_F32;
}

enum kv_type kv_layers_type(const struct kv_model_weights *w, size_t n_layers)
{
    bool has[KV_STORED_OTHER] = {false}, blocks = false;

    has[w->head->type] = true;
    for (size_t i = 0; i < n_layers; i++)
        for (enum kv_part p = 0; is_matrix(p); p++)
            for (const struct kv_weight *t = w->layer[i].part[p]; t;
                 t = t->next)
                has[t->type] = true;
    for (size_t t = KV_STORED_BF16 + 1; t < KV_STORED_OTHER; t++)
        blocks = blocks || has[t];
    if (has[KV_STORED_F32] || (has[KV_STORED_F16] && has[KV_STORED_BF16]))
        return KV_TYPE_F32;
    return has[KV_STORED_BF16] && !blocks ? KV_TYPE_BF16 : KV_TYPE_F16;
}

static bool is_coarse(const struct kv_weight *w)
{
    return w->packed || (w->type != KV_STORED_F32 && w->type != KV_STORED_F16);
}

bool kv_layers_coarse(const struct kv_model_weights *w, size_t n_layers)
{
    bool all = is_coarse(w->head);

    for (size_t i = 0; i < n_layers; i++)
        for (enum kv_part p = 0; is_matrix(p); p++)
            for (const struct kv_weight *t = w->layer[i].part[p]; t;
                 t = t->next)
                all = all && is_coarse(t);
    return all;
}

/* Aligns as cudaMalloc() does, so that cuBLAS takes the same path for all equal
 * layers. */
static size_t line_up(size_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Whether the part stays in its file: experts do, on the host. */
static bool stays(const struct kv_layers *l, size_t layer, enum kv_part p)
{
    return l->b->on_host && p >= KV_P_GATE && p <= KV_P_DOWN &&
           l->w->layer[layer].part[KV_P_ROUTER];
}

/* A part in the layer's block or vectors; NULL: the layer has none. */
static const struct kv_weight *part_of(const struct kv_layers *l, size_t layer,
                                       enum kv_part p)
{
    return stays(l, layer, p) ? NULL : l->w->layer[layer].part[p];
}

static void lay_out_one(struct kv_layers *l, size_t layer)
{
    size_t matrices = 0, vectors = 0;

    for (enum kv_part p = 0; p < KV_PARTS; p++) {
        size_t *bytes = is_matrix(p) ? &matrices : &vectors;

        const struct kv_weight *w = part_of(l, layer, p);

        if (w && !(follows(p) && part_of(l, layer, p - 1)))
            *bytes = line_up(*bytes);
        l->at[layer][p] = *bytes;
        for (; w; w = w->next)
            *bytes += w->n * kv_type_bytes(type_of(l, p));
    }
    l->layer_bytes = larger(l->layer_bytes, line_up(matrices));
    l->vector_bytes = larger(l->vector_bytes, line_up(vectors));
}

static void lay_out(struct kv_layers *l)
{
    l->at = kv_alloc(l->n_layers, sizeof(*l->at));
    for (size_t i = 0; i < l->n_layers; i++)
        lay_out_one(l, i);
}

/* Sets n_resident, the number of layers that stay in memory. */
static int plan(struct kv_layers *l, size_t free, size_t beside,
                struct kv_err *e)
{
    const size_t rest = l->w->head->n * kv_type_bytes(l->b->weight_type) +
                        l->n_layers * l->vector_bytes + beside;

    if (!l->w->head->data)
        l->n_resident = l->n_layers;
    if (l->b->on_host || !l->w->head->data)
        return 0;
    if (free < rest + l->layer_bytes)
        return kv_fail(e,
                       "not enough device memory: %zu bytes needed (a layer, "
                       "the head, %zu for all else, twice --memory of it), "
                       "%zu free",
                       rest + l->layer_bytes, beside, free);
    l->n_resident = (free - rest) / l->layer_bytes;
    l->n_resident =
        l->n_resident < l->n_layers ? l->n_resident - 1 : l->n_layers;
    return 0;
}

/* Describes a load.  Random numbers are scaled so that a product with a row of
 * them keeps the variance. */
static struct kv_load load_of(const struct kv_weight *w, size_t first, size_t n,
                              enum kv_type type, uint64_t seed, void *to)
{
    const size_t columns = w->n_dims > 1 ? w->dims[1] : 3;

    return (struct kv_load){
        .to = to,
        .to_type = type,
        .from = kv_weight_rows(w),
        .first = first,
        .n = n,
        .seed = seed,
        .scale = sqrtf(3 / (float)columns),
    };
}

/* Describes the load of a layer's part, or of a piece of the part. */
static struct kv_load load_part(const struct kv_layers *l, size_t layer,
                                enum kv_part p, const struct kv_weight *w,
                                uint8_t *to)
{
    struct kv_load one =
        load_of(w, 0, w->n, type_of(l, p), kv_tensor_seed(l->w, layer, p), to);

    one.from.add += is_norm(p) ? l->w->norm_add : 0;
    return one;
}

/* Loads one matrix after another, so that only one matrix's pages are in
 * memory. */
static int put_large(const struct kv_layers *l, size_t layer, size_t next,
                     uint8_t *to, struct kv_err *e)
{
    for (enum kv_part p = 0; is_matrix(p); p++) {
        const struct kv_weight *ahead = part_of(l, next, p);
        uint8_t *at = to + l->at[layer][p];

        for (const struct kv_weight *w = part_of(l, layer, p); w; w = w->next) {
            const struct kv_load one = load_part(l, layer, p, w, at);

            if (l->b->load(&one, 1, e))
                return -1;
            kv_weight_release(w);
            if (next != layer && ahead)
                kv_weight_will_need(ahead);
            ahead = ahead ? ahead->next : NULL;
            at += w->n * kv_type_bytes(one.to_type);
        }
    }
    return 0;
}

/* Loads the layer's parts [first, end). */
static int put_parts(const struct kv_layers *l, size_t layer,
                     enum kv_part first, enum kv_part end, uint8_t *to,
                     struct kv_err *e)
{
    struct kv_load *load;
    size_t n = 0;
    int rc;

    for (enum kv_part p = first; p < end; p++)
        for (const struct kv_weight *w = part_of(l, layer, p); w; w = w->next)
            n++;
    load = kv_alloc(n, sizeof(*load));
    n = 0;
    for (enum kv_part p = first; p < end; p++) {
        uint8_t *at = to + l->at[layer][p];

        for (const struct kv_weight *w = part_of(l, layer, p); w; w = w->next) {
            load[n] = load_part(l, layer, p, w, at);
            at += w->n * kv_type_bytes(load[n++].to_type);
        }
    }
    rc = l->b->load(load, n, e);
    free(load);
    return rc;
}

static int put_layer(const struct kv_layers *l, size_t layer, size_t next,
                     uint8_t *to, struct kv_err *e)
{
    return l->large ? put_large(l, layer, next, to, e)
                    : put_parts(l, layer, 0, KV_P_Q_BIAS, to, e);
}

static int put_vectors(struct kv_layers *l, struct kv_err *e)
{
    if (l->b->alloc((void **)&l->vectors, l->n_layers * l->vector_bytes, e))
        return -1;
    for (size_t i = 0; i < l->n_layers; i++)
        if (put_parts(l, i, KV_P_Q_BIAS, KV_PARTS,
                      l->vectors + i * l->vector_bytes, e))
            return -1;
    return 0;
}

static size_t blocks(const struct kv_layers *l)
{
    return l->n_resident < l->n_layers ? l->n_resident + 1 : l->n_layers;
}

static int put_head(struct kv_layers *l, struct kv_err *e)
{
    const struct kv_weight *head = l->w->head;
    const size_t bytes = head->n * kv_type_bytes(l->b->weight_type);

    if (l->head || (l->b->on_host && bytes > head_bytes))
        return 0;
    if (l->b->alloc(&l->head, bytes, e))
        return -1;

    const struct kv_load all =
        load_of(head, 0, head->n, l->b->weight_type,
                kv_tensor_seed(l->w, l->n_layers, 1), l->head);

    return l->b->load(&all, 1, e);
}

/* Loads a vector outside of layers and adds `add` to it; w NULL: there is none.
 */
static int put_vector(const struct kv_layers *l, const struct kv_weight *w,
                      float add, float **to, struct kv_err *e)
{
    struct kv_load load;

    if (!w)
        return 0;
    if (l->b->alloc((void **)to, w->n * sizeof(float), e))
        return -1;
    load = load_of(w, 0, w->n, KV_TYPE_F32,
                   kv_tensor_seed(l->w, l->n_layers, 0), *to);
    load.from.add += add;
    return l->b->load(&load, 1, e);
}

static int put_weights(struct kv_layers *l, struct kv_err *e)
{
    l->block = kv_alloc(blocks(l), sizeof(*l->block));
    if (put_vectors(l, e))
        return -1;
    for (size_t i = 0; i < l->n_resident; i++)
        if (l->b->alloc((void **)&l->block[i], l->layer_bytes, e) ||
            put_layer(l, i, i + 1 < l->n_resident ? i + 1 : i, l->block[i], e))
            return -1;
    return put_vector(l, l->w->norm, l->w->norm_add, &l->norm, e) ||
           put_vector(l, l->w->norm_bias, 0, &l->norm_bias, e) ||
           put_vector(l, l->w->head_bias, 0, &l->head_bias, e) ||
           (!l->b->on_host && put_head(l, e));
}

int kv_layers_new(struct kv_layers **out, const struct kv_backend *b,
                  const struct kv_model_weights *w, size_t n_layers,
                  size_t free, size_t beside, bool large, struct kv_err *e)
{
    struct kv_layers *l = kv_alloc(1, sizeof(*l));

    *l = (struct kv_layers){
        .b = b, .w = w, .n_layers = n_layers, .large = large};
    l->passing = SIZE_MAX;
    lay_out(l);
    if (plan(l, free, beside, e) || put_weights(l, e)) {
        kv_layers_free(l);
        return -1;
    }
    *out = l;
    return 0;
}

void kv_layers_free(struct kv_layers *l)
{
    if (!l)
        return;
    for (size_t i = 0; l->block && i < blocks(l); i++)
        l->b->free(l->block[i]);
    l->b->free(l->vectors);
    l->b->free(l->norm);
    l->b->free(l->norm_bias);
    l->b->free(l->head_bias);
    l->b->free(l->head);
    free(l->block);
    free(l->at);
    free(l);
}

int kv_layers_load(struct kv_layers *l, size_t layer, size_t next,
                   struct kv_err *e)
{
    uint8_t **block = &l->block[l->n_resident];

    l->loaded = layer;
    if (layer < l->n_resident || layer == l->passing)
        return 0;
    l->passing = SIZE_MAX;
    if ((!*block && l->b->alloc((void **)block, l->layer_bytes, e)) ||
        put_layer(l, layer, next, *block, e))
        return -1;
    l->passing = layer;
    return 0;
}

void kv_layers_turn_to(struct kv_layers *l, size_t layer)
{
    l->loaded = layer;
}

const void *kv_layers_matrix(const struct kv_layers *l, enum kv_part part)
{
    const size_t i = l->loaded < l->n_resident ? l->loaded : l->n_resident;

    return l->w->layer[l->loaded].part[part]
               ? l->block[i] + l->at[l->loaded][part]
               : NULL;
}

const float *kv_layers_vector(const struct kv_layers *l, enum kv_part part)
{
    const uint8_t *all = l->vectors + l->loaded * l->vector_bytes;

    return l->w->layer[l->loaded].part[part]
               ? (const float *)(all + l->at[l->loaded][part])
               : NULL;
}

static struct kv_stored_part stored_rows(const struct kv_weight *w,
                                         size_t first, size_t n)
{
    return (struct kv_stored_part){
        .rows = kv_weight_rows(w), .first = first, .outputs = n};
}

size_t kv_layers_stored(const struct kv_layers *l, enum kv_part part,
                        struct kv_stored_part stored[KV_LAYERS_STORED])
{
    const struct kv_weight *const *w =
        (const struct kv_weight *const *)l->w->layer[l->loaded].part + part;
    size_t n = 0;

    do {
        stored[n] = stored_rows(w[n], 0, w[n]->dims[0]);
        n++;
    } while (follows(part + n) && w[n]);
    return n;
}

/* The piece that holds row *first of a part; *first becomes the row within the
 * piece. */
static const struct kv_weight *piece_of(const struct kv_layers *l,
                                        enum kv_part part, size_t *first)
{
    const struct kv_weight *w = l->w->layer[l->loaded].part[part];

    for (size_t rows; *first >= (rows = w->n / w->dims[w->n_dims - 1]);
         w = w->next)
        *first -= rows;
    return w;
}

struct kv_stored_part kv_layers_stored_rows(const struct kv_layers *l,
                                            enum kv_part part, size_t first,
                                            size_t n)
{
    const struct kv_weight *w = piece_of(l, part, &first);

    return stored_rows(w, first, n);
}

int kv_layers_widen(const struct kv_layers *l, enum kv_part part, size_t first,
                    size_t n, void *to, struct kv_err *e)
{
    const struct kv_weight *w = piece_of(l, part, &first);
    const size_t row = w->dims[w->n_dims - 1];
    const struct kv_load one =
        load_of(w, first * row, n * row, l->b->weight_type, 0, to);

    return l->b->load(&one, 1, e);
}

void kv_layers_release(const struct kv_layers *l, enum kv_part part)
{
    for (const struct kv_weight *w = l->w->layer[l->loaded].part[part];
         w && l->large; w = w->next)
        kv_weight_release(w);
}

struct kv_stored_part kv_layers_stored_head(const struct kv_layers *l,
                                            size_t first, size_t n)
{
    return stored_rows(l->w->head, first, n);
}

const float *kv_layers_norm(const struct kv_layers *l)
{
    return l->norm;
}

const float *kv_layers_norm_bias(const struct kv_layers *l)
{
    return l->norm_bias;
}

const float *kv_layers_head_bias(const struct kv_layers *l)
{
    return l->head_bias;
}

size_t kv_layers_panel(const struct kv_layers *l)
{
    return l->b->on_host ? PANEL : l->w->head->dims[0];
}

int kv_layers_head(struct kv_layers *l, size_t first, size_t n,
                   struct kv_workspace *w, const void **head, struct kv_err *e)
{
    const size_t h = l->w->head->dims[1];
    const enum kv_type type = l->b->weight_type;
    const size_t row = h * kv_type_bytes(type);
    int rc = 0;

    /* On the CPU the head is widened when needed; several tiles may need it at
     * once. */
#pragma omp critical(kv_layers_head)
    rc = put_head(l, e);
    if (rc)
        return -1;
    if (!l->head) {
        if (kv_workspace_want(l->b, w, n * row, e))
            return -1;

        const struct kv_load panel =
            load_of(l->w->head, first * h, n * h, type, 0, w->p);

        *head = w->p;
        return l->b->load(&panel, 1, e);
    }
    *head = (const uint8_t *)l->head + first * row;
    return 0;
}
