/* Shapes of the arrays that kvdump --from reads, and their values. */
#include "lib/base/alloc.h"
#include "tools/kvdump_arrays.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The sizes of an array's dimensions, except those of layers and of the pair of
 * keys and values. */
struct sizes {
    size_t n, dim[4]; /* [n], in the file's order */
    bool inside;      /* the pair of keys and values comes after the tokens,
                       * [tokens][2][...]; else before them */
    size_t windows, heads, tokens, channels;
};

void kvdump_arrays_shape(const struct kv_array *x, char text[128])
{
    size_t w = 0;

    text[0] = 0;
    for (size_t i = 0; i < x->n_dims; i++)
        w += (size_t)snprintf(text + w, 128 - w, "[%zu]", x->dims[i]);
}

static const struct kv_array *array_of(const struct kvdump_arrays *a,
                                       const struct kvdump_piece *p)
{
    return &a->files.list[p->array];
}

static bool strip(const struct kvdump_arrays *a, const struct kvdump_piece *p,
                  struct sizes *s)
{
    const struct kv_array *x = array_of(a, p);
    const size_t at = a->of[p->tensor].stacked;
    size_t both = KV_ARRAY_DIMS; /* the dimension of keys and values */

    *s = (struct sizes){0};
    if (p->joined) {
        if (x->n_dims < at + 3)
            return false;
        s->inside = !p->outer && x->dims[at] != 2 && x->n_dims <= at + 4;
        both = p->outer ? 0 : at + s->inside;
        if (x->dims[both] != 2)
            return false;
    }
    for (size_t i = at; i < x->n_dims; i++) {
        if (i == both || (p->outer && i == 1))
            continue;
        if (s->n == 4)
            return false;
        s->dim[s->n++] = x->dims[i];
    }
    return s->n >= 2 && x->n;
}

/* Names the sizes, once the order of dimensions is known. */
static void name_sizes(const struct kvdump_arrays *a, size_t tensor,
                       struct sizes *s)
{
    s->windows = s->n == 4 ? s->dim[0] : 1;
    if (s->n > 2) {
        const size_t *dim = s->dim + s->n - 3;

        s->heads = dim[!a->heads_first];
        s->tokens = dim[a->heads_first];
        s->channels = dim[2];
        return;
    }
    s->tokens = s->dim[0];
    s->heads = tensor == KV_T_Q && a->dim ? s->dim[1] / a->dim : a->kv_heads;
    s->channels =
        s->heads && s->dim[1] % s->heads == 0 ? s->dim[1] / s->heads : 0;
}

static int fail_kind(const struct kvdump_arrays *a,
                     const struct kvdump_piece *p, struct kv_err *e)
{
    const struct kv_array *x = array_of(a, p);
    const bool stacked = a->of[p->tensor].stacked;
    char is[128];

    kvdump_arrays_shape(x, is);
    if (!x->floats)
        return kv_fail(e,
                       "%s: %s is of type %s: expected floats of 16, 32 or 64 "
                       "bits",
                       a->files.path, x->name, x->type);
    return kv_fail(e,
                   "%s: %s is %s: expected %s%s[windows, if several] of heads, "
                   "tokens and channels",
                   a->files.path, x->name, is,
                   p->outer  ? "[2, keys and values][layers]"
                   : stacked ? "[layers]"
                             : "",
                   p->joined && !p->outer ? "[2, keys and values]" : "");
}

static int fail_other(const struct kvdump_arrays *a,
                      const struct kvdump_piece *p,
                      const struct kvdump_piece *than, struct kv_err *e)
{
    char is[128], want[128];

    kvdump_arrays_shape(array_of(a, p), is);
    kvdump_arrays_shape(array_of(a, than), want);
    if (p->tensor == than->tensor)
        return kv_fail(e, "%s: %s is %s, and %s is %s", a->files.path,
                       array_of(a, p)->name, is, array_of(a, than)->name, want);
    return kv_fail(e, "%s: %s is %s, which does not go with %s of %s",
                   a->files.path, array_of(a, p)->name, is,
                   array_of(a, than)->name, want);
}

/* ---- layers and order ---------------------------------------------------- */

/* The number of layers in a piece that stacks all layers. */
static size_t stack_layers(const struct kvdump_arrays *a,
                           const struct kvdump_piece *p)
{
    return array_of(a, p)->dims[p->outer];
}

/* The last layer of a tensor.  A stacked tensor has all layers in one array. */
static size_t last_layer(const struct kvdump_arrays *a, size_t t)
{
    const struct kvdump_layers *l = &a->of[t];

    return l->stacked ? stack_layers(a, l->piece) - 1 : l->last;
}

static int check_layers(struct kvdump_arrays *a, size_t t, size_t with,
                        struct kv_err *e)
{
    if (a->of[t].first == a->of[with].first &&
        last_layer(a, t) == last_layer(a, with))
        return 0;
    return kv_fail(e, "%s: %s of layers %zu to %zu, and %s of %zu to %zu",
                   a->files.path, kvdump_arrays_name(with), a->of[with].first,
                   last_layer(a, with), kvdump_arrays_name(t), a->of[t].first,
                   last_layer(a, t));
}

/* Finds whether heads come before tokens. */
static int find_order(struct kvdump_arrays *a, const struct sizes *s,
                      const char *layout)
{
    const size_t *dim = s->dim + (s->n == 4), heads = a->kv_heads;

    a->n_inner = s->n;
    if (s->n == 2)
        return heads ? 0 : KVDUMP_NO_HEADS;
    if (s->inside)
        a->heads_first = false;
    else if (layout)
        a->heads_first = !strcmp(layout, "htd");
    else if (heads && (dim[0] == heads) != (dim[1] == heads))
        a->heads_first = dim[0] == heads;
    else if (s->n == 4)
        a->heads_first = true; /* transformers' layout */
    else
        return KVDUMP_NO_ORDER;
    return 0;
}

/* Takes the sizes from the first array of keys, and the tokens of each
 * chunk. */
static int take_sizes(struct kvdump_arrays *a, size_t k, struct kv_err *e)
{
    const struct kvdump_layers *l = &a->of[k];
    struct sizes s;

    a->chunk_tokens = kv_alloc(l->n_chunks, sizeof(*a->chunk_tokens));
    a->ctx = 0;
    for (size_t c = 0; c < l->n_chunks; c++) {
        if (!strip(a, &l->piece[c], &s) || s.n != a->n_inner)
            return fail_kind(a, &l->piece[c], e);
        name_sizes(a, k, &s);
        a->chunk_tokens[c] = s.tokens;
        a->ctx += s.tokens;
        if (c)
            continue;
        a->n_windows = s.windows;
        a->dim = s.channels;
        a->of[k].heads = s.heads;
    }
    return a->dim ? 0
                  : kv_fail(e,
                            "%s: %s has %zu values of a token: expected a "
                            "multiple of %zu KV heads",
                            a->files.path, kvdump_arrays_first(a, k)->name,
                            s.dim[1], a->kv_heads);
}

/* Checks that the chunks are numbered one by one, or by their first tokens. */
static int check_chunks(const struct kvdump_arrays *a, size_t k,
                        struct kv_err *e)
{
    const struct kvdump_layers *l = &a->of[k];
    bool count = true, place = true;
    size_t tokens = 0;

    for (size_t c = 0; c < l->n_chunks; c++) {
        count = count && l->piece[c].chunk == l->piece[0].chunk + c;
        place = place && l->piece[c].chunk == tokens;
        tokens += a->chunk_tokens[c];
    }
    return count || place
               ? 0
               : kv_fail(e,
                         "%s: the chunks of %s are %zu, %zu, ... %zu: expected "
                         "0, 1, 2, or the first token of each",
                         a->files.path, kvdump_arrays_name(k),
                         l->piece[0].chunk, l->piece[1].chunk,
                         l->piece[l->n_chunks - 1].chunk);
}

/* Checks every piece of a tensor against the first layer's, and that against
 * the keys. */
static int check_pieces(struct kvdump_arrays *a, size_t t, size_t k,
                        struct kv_err *e)
{
    struct kvdump_layers *l = &a->of[t];
    const size_t n = l->n_chunks * (l->last - l->first + 1);
    struct sizes s;

    if (l->n_chunks != a->of[k].n_chunks)
        return kv_fail(e, "%s: %s are in %zu chunks, %s in %zu", a->files.path,
                       kvdump_arrays_name(t), l->n_chunks,
                       kvdump_arrays_name(k), a->of[k].n_chunks);
    for (size_t i = 0; i < n; i++) {
        const struct kvdump_piece *p = &l->piece[i];
        const size_t c = i % l->n_chunks;

        if (!strip(a, p, &s) || !array_of(a, p)->floats)
            return fail_kind(a, p, e);
        name_sizes(a, t, &s);
        if (!i)
            l->heads = s.heads;
        if (s.n == a->n_inner && s.windows == a->n_windows &&
            s.channels == a->dim && s.tokens == a->chunk_tokens[c] &&
            s.heads == (t == KV_T_Q ? l->heads : a->of[k].heads) &&
            (!l->stacked || stack_layers(a, p) == stack_layers(a, l->piece)))
            continue;
        return fail_other(a, p,
                          i >= l->n_chunks ? &l->piece[c]
                          : t == k         ? l->piece
                                           : &a->of[k].piece[c],
                          e);
    }
    return 0;
}

static int check_ids(const struct kvdump_arrays *a, struct kv_err *e)
{
    const struct kvdump_layers *l = &a->of[KVDUMP_IDS];
    size_t tokens = 0;
    char is[128];

    for (size_t c = 0; c < l->n_chunks; c++) {
        const struct kv_array *x = array_of(a, &l->piece[c]);

        kvdump_arrays_shape(x, is);
        if (x->n_dims < 1 || x->n_dims > 2 ||
            (x->n_dims == 2 ? x->dims[0] : 1) != a->n_windows)
            return kv_fail(e,
                           "%s: %s is %s: expected ids of %zu windows, each of "
                           "%zu tokens",
                           a->files.path, x->name, is, a->n_windows, a->ctx);
        tokens += x->dims[x->n_dims - 1];
    }
    return tokens == a->ctx ? 0
                            : kv_fail(e, "%s: ids of %zu tokens, keys of %zu",
                                      a->files.path, tokens, a->ctx);
}

int kvdump_arrays_fit(struct kvdump_arrays *a, const char *layout,
                      size_t n_kv_heads, struct kv_err *e)
{
    const size_t k = a->of[KV_T_K].have ? KV_T_K : KV_T_K_PRE;
    struct sizes s;
    int wanted;

    a->kv_heads = n_kv_heads;
    if (!strip(a, a->of[k].piece, &s))
        return fail_kind(a, a->of[k].piece, e);
    for (size_t t = 0; t <= KV_T_K_PRE; t++)
        if (a->of[t].have && check_layers(a, t, k, e))
            return -1;
    a->first_layer = a->of[k].first;
    a->last_layer = last_layer(a, k);
    wanted = find_order(a, &s, layout);
    if (wanted)
        return wanted;
    if (take_sizes(a, k, e) || check_chunks(a, k, e))
        return -1;
    for (size_t t = 0; t <= KV_T_K_PRE; t++)
        if (a->of[t].have && check_pieces(a, t, k, e))
            return -1;
    return a->of[KVDUMP_IDS].have ? check_ids(a, e) : 0;
}

/* ---- values -------------------------------------------------------------- */

/* Reads a piece's tokens for one window and layer into x
 * [tokens][heads][dim]. */
static int read_piece(struct kvdump_arrays *a, const struct kvdump_piece *p,
                      size_t layer, size_t window, float *x, struct kv_err *e)
{
    const struct kvdump_layers *l = &a->of[p->tensor];
    const size_t heads = l->heads, dim = a->dim;
    const size_t sides = p->joined ? 2 : 1,
                 side = p->joined && p->tensor == KV_T_V;
    struct sizes s;
    float *y;
    int rc;

    if (!strip(a, p, &s))
        return fail_kind(a, p, e);
    name_sizes(a, p->tensor, &s);

    const size_t n = s.tokens * heads * dim, row = heads * dim;
    const size_t in = l->stacked ? layer : 0;
    const size_t place =
        p->outer ? side * stack_layers(a, p) + in : in * sides + side;
    const size_t block =
        s.inside ? in * 2 * s.windows : place * s.windows + window;
    const size_t count = s.inside ? 2 * n : n;
    const size_t token = s.inside ? 2 * row : a->heads_first ? dim : row;
    const size_t head = a->heads_first ? s.tokens * dim : dim;
    const size_t start = s.inside ? side * row : 0;

    y = kv_alloc(count, sizeof(*y));
    rc = kvdump_files_read(&a->files, p->array, block * n, count, y, e);
    for (size_t t = 0; t < s.tokens && !rc; t++)
        for (size_t h = 0; h < heads; h++)
            memcpy(x + (t * heads + h) * dim, y + start + t * token + h * head,
                   dim * sizeof(*x));
    free(y);
    return rc;
}

int kvdump_arrays_read(struct kvdump_arrays *a, enum kv_tensor t, size_t layer,
                       size_t window, float *x, struct kv_err *e)
{
    const struct kvdump_layers *l = &a->of[t];
    const size_t first = l->stacked ? 0 : (layer - l->first) * l->n_chunks;

    for (size_t c = 0; c < l->n_chunks; c++) {
        if (read_piece(a, &l->piece[first + c], layer, window, x, e))
            return -1;
        x += a->chunk_tokens[c] * l->heads * a->dim;
    }
    return 0;
}

int kvdump_arrays_ids(struct kvdump_arrays *a, size_t window, int32_t *id,
                      struct kv_err *e)
{
    const struct kvdump_layers *l = &a->of[KVDUMP_IDS];

    for (size_t c = 0; c < l->n_chunks; c++) {
        const struct kv_array *x = array_of(a, &l->piece[c]);
        const size_t n = x->dims[x->n_dims - 1];

        if (kvdump_files_ids(&a->files, l->piece[c].array, window * n, n, id,
                             e))
            return -1;
        id += n;
    }
    return 0;
}
