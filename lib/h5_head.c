#include "lib/h5_head.h"
#include "lib/base/release.h"

#include <math.h>
#include <string.h>

/* The maximum RoPE frequency, 2 pi per token: a faster rotation equals a slower
 * one, but its angles lose digits.
 */
static const float MAX_TURN = 6.2831853f;

#define PAIRS "rope_pairs"
#define GGML_PAIRS "ggml_pairs"

/* Whether some layers have RoPE and others do not. */
static bool has_still(const struct kv_shape *s)
{
    for (size_t i = 0; i < KV_MAX_LAYERS / 64; i++)
        if (s->still[i])
            return true;
    return false;
}

bool kv_h5_has_pairs(const struct kv_shape *s)
{
    return s->neighbours ||
           (s->n_rot && 2 * s->n_rot < s->head_dim - s->latent);
}

int kv_h5_format(const struct kv_shape *s, int format)
{
    return s->cap > 0 || s->alibi || s->slide_window || has_still(s)
               ? format
               : format - 1;
}

void kv_h5_put_kind(struct kv_h5 *h, const char *kind, int format)
{
    kv_h5_put_text(h, "/", "kind", kind);
    kv_h5_put_int(h, "/", "format", format);
    kv_h5_put_text(h, "/", "tool_version", kv_version());
}

int kv_h5_check_kind(struct kv_h5 *h, const char *kind, int format,
                     struct kv_err *e)
{
    const char *path = kv_h5_path(h);
    char is[64];
    int64_t version;

    if (!kv_h5_has_attr(h, "/", "kind"))
        return kv_fail(e, "%s is not a file of kvtools (no attribute kind)",
                       path);
    if (kv_h5_get_text(h, "/", "kind", is, sizeof(is), e))
        return -1;
    if (strcmp(is, kind))
        return kv_fail(e, "%s is a %s file, expected a %s", path, is, kind);
    if (kv_h5_get_int(h, "/", "format", 1, INT64_MAX, &version, e))
        return -1;
    if (version > format)
        return kv_fail(e,
                       "%s has format %lld, this version of kvtools (%s) "
                       "reads formats up to %d",
                       path, (long long)version, kv_version(), format);
    return 0;
}

/* Makes and writes a dataset of n values. */
static int put_all(struct kv_h5 *h, const char *name, enum kv_h5_type type,
                   size_t n, const void *x, struct kv_err *e)
{
    kv_h5_dataset(h, name, type, 1, &n);
    return kv_h5_write(h, name, type, NULL, NULL, x, e);
}

/* Writes the layers' bits as one byte per layer. */
static int put_layers(struct kv_h5 *h, const char *name, size_t n_layers,
                      const uint64_t *bits, struct kv_err *e)
{
    uint8_t x[KV_MAX_LAYERS];

    for (size_t i = 0; i < n_layers; i++)
        x[i] = kv_layer_bit(bits, i);
    return put_all(h, name, KV_H5_U8, n_layers, x, e);
}

static size_t slide_rot(const struct kv_shape *s)
{
    return s->slide_dim ? s->slide_dim / 2 : s->n_rot;
}

/* Writes the attributes that only some models have. */
static int put_rest(struct kv_h5 *h, const struct kv_shape *s, struct kv_err *e)
{
    if (s->latent)
        kv_h5_put_int(h, "/", "latent", (int64_t)s->latent);
    if (kv_h5_has_pairs(s))
        kv_h5_put_text(h, "/", PAIRS, s->neighbours ? "neighbours" : "halves");
    if (s->ggml_neighbours)
        kv_h5_put_text(h, "/", GGML_PAIRS, "neighbours");
    if (s->cap > 0)
        kv_h5_put_real(h, "/", "attn_cap", (double)s->cap);
    if (s->alibi && put_all(h, "/slopes", KV_H5_F32, s->n_heads, s->slope, e))
        return -1;
    if (has_still(s) && put_layers(h, "/still", s->n_layers, s->still, e))
        return -1;
    if (s->n_states + s->n_bare &&
        put_layers(h, "/stateful", s->n_layers + s->n_states + s->n_bare,
                   s->stateful, e))
        return -1;
    if (s->n_shared)
        kv_h5_put_int(h, "/", "shared_layers", (int64_t)s->n_shared);
    if (!s->slide_window)
        return 0;
    if (s->slide_dim) {
        kv_h5_put_int(h, "/", "slide_head_dim", (int64_t)s->slide_dim);
        kv_h5_put_int(h, "/", "slide_kv_heads", (int64_t)s->slide_kv_heads);
    }
    kv_h5_put_int(h, "/", "slide_window", (int64_t)s->slide_window);
    return put_layers(h, "/slides", s->n_layers, s->slides, e) ||
                   put_all(h, "/slide_inv_freq", KV_H5_F32, slide_rot(s),
                           s->slide_freq, e)
               ? -1
               : 0;
}

int kv_h5_put_shape(struct kv_h5 *h, const struct kv_shape *s, struct kv_err *e)
{
    kv_h5_put_int(h, "/", "n_layers", (int64_t)s->n_layers);
    kv_h5_put_int(h, "/", "n_heads", (int64_t)s->n_heads);
    kv_h5_put_int(h, "/", "n_kv_heads", (int64_t)s->n_kv_heads);
    kv_h5_put_int(h, "/", "head_dim", (int64_t)s->head_dim);
    kv_h5_put_real(h, "/", "attn_scale", (double)s->attn_scale);
    return put_all(h, "/inv_freq", KV_H5_F32, s->n_rot, s->inv_freq, e) ||
                   put_rest(h, s, e)
               ? -1
               : 0;
}

/* Reads a whole dataset of n numbers. */
static int get_all(struct kv_h5 *h, const char *name, enum kv_h5_type type,
                   size_t n, void *x, struct kv_err *e)
{
    return kv_h5_check(h, name, type, 1, &n, e) ||
                   kv_h5_read(h, name, type, NULL, NULL, x, e)
               ? -1
               : 0;
}

static int get_freq(struct kv_h5 *h, const char *name, size_t n, float *freq,
                    struct kv_err *e)
{
    if (get_all(h, name, KV_H5_F32, n, freq, e))
        return -1;
    for (size_t i = 0; i < n; i++)
        if (!(freq[i] >= 0 && freq[i] <= MAX_TURN))
            return kv_fail(
                e, "%s: %s holds %g, expected 0 to %g, a turn a token",
                kv_h5_path(h), name, (double)freq[i], (double)MAX_TURN);
    return 0;
}

static int get_scale(struct kv_h5 *h, const char *name, float *to,
                     struct kv_err *e)
{
    double x;

    if (kv_h5_get_real(h, "/", name, &x, e))
        return -1;
    *to = (float)x;
    if (!isfinite(*to) || !(*to > 0))
        return kv_fail(e, "%s: %s is %g, expected a finite f32 above 0",
                       kv_h5_path(h), name, x);
    return 0;
}

static int get_slopes(struct kv_h5 *h, struct kv_shape *s, struct kv_err *e)
{
    const char *path = kv_h5_path(h);

    if (s->n_heads > KV_MAX_SLOPES)
        return kv_fail(e, "%s: /slopes of %zu heads, expected at most %d", path,
                       s->n_heads, KV_MAX_SLOPES);
    if (get_all(h, "/slopes", KV_H5_F32, s->n_heads, s->slope, e))
        return -1;
    for (size_t i = 0; i < s->n_heads; i++)
        if (!(fabsf(s->slope[i]) <= 1))
            return kv_fail(e, "%s: /slopes holds %g, expected -1 to 1", path,
                           (double)s->slope[i]);
    s->alibi = true;
    return 0;
}

static int get_layers(struct kv_h5 *h, const char *name, size_t n_layers,
                      uint64_t *bits, struct kv_err *e)
{
    const char *path = kv_h5_path(h);
    uint8_t x[KV_MAX_LAYERS];

    if (n_layers > KV_MAX_LAYERS)
        return kv_fail(e, "%s: %s of %zu layers, expected at most %d", path,
                       name, n_layers, KV_MAX_LAYERS);
    if (get_all(h, name, KV_H5_U8, n_layers, x, e))
        return -1;
    for (size_t i = 0; i < n_layers; i++) {
        if (x[i] > 1)
            return kv_fail(e, "%s: %s holds %d, expected 0 or 1", path, name,
                           x[i]);
        kv_layer_set(bits, i, x[i]);
    }
    return 0;
}

/* Reads the head sizes of sliding layers, if they differ from the other
 * layers'. */
static int get_slide_heads(struct kv_h5 *h, struct kv_shape *s,
                           struct kv_err *e)
{
    if (!kv_h5_has_attr(h, "/", "slide_head_dim"))
        return 0;
    if (kv_h5_get_size(h, "/", "slide_head_dim", 2, KV_MAX_HEAD_DIM,
                       &s->slide_dim, e) ||
        kv_h5_get_size(h, "/", "slide_kv_heads", 1, s->n_heads,
                       &s->slide_kv_heads, e))
        return -1;
    return s->slide_dim % 2 == 0 && s->n_heads % s->slide_kv_heads == 0
               ? 0
               : kv_fail(e,
                         "%s: %zu KV heads of %zu channels in layers that "
                         "slide, expected a divisor of %zu and an even number",
                         kv_h5_path(h), s->slide_kv_heads, s->slide_dim,
                         s->n_heads);
}

static int get_slides(struct kv_h5 *h, struct kv_shape *s, struct kv_err *e)
{
    if (get_slide_heads(h, s, e))
        return -1;
    return kv_h5_get_size(h, "/", "slide_window", 1, INT32_MAX,
                          &s->slide_window, e) ||
                   get_layers(h, "/slides", s->n_layers, s->slides, e) ||
                   get_freq(h, "/slide_inv_freq", slide_rot(s), s->slide_freq,
                            e)
               ? -1
               : 0;
}

static int get_latent(struct kv_h5 *h, struct kv_shape *s, struct kv_err *e)
{
    if (kv_h5_get_size(h, "/", "latent", 2, s->head_dim, &s->latent, e))
        return -1;
    return s->n_kv_heads == 1 && s->latent % 2 == 0 &&
                   2 * s->n_rot <= s->head_dim - s->latent
               ? 0
               : kv_fail(e,
                         "%s: a latent of %zu channels, expected an even "
                         "number, one KV head, and %zu pairs that turn beside "
                         "it",
                         kv_h5_path(h), s->latent, s->n_rot);
}

static int get_pairs(struct kv_h5 *h, struct kv_shape *s, struct kv_err *e)
{
    char is[16];

    s->ggml_neighbours = kv_h5_has_attr(h, "/", GGML_PAIRS);
    if (!kv_h5_has_attr(h, "/", PAIRS))
        return kv_h5_has_pairs(s)
                   ? kv_fail(e,
                             "%s: RoPE turns %zu of %zu channels, and no "
                             "attribute " PAIRS " says which go together: a "
                             "file of an older version, to be made anew",
                             kv_h5_path(h), 2 * s->n_rot,
                             s->head_dim - s->latent)
                   : 0;
    if (kv_h5_get_text(h, "/", PAIRS, is, sizeof(is), e))
        return -1;
    s->neighbours = !strcmp(is, "neighbours");
    return s->neighbours || !strcmp(is, "halves")
               ? 0
               : kv_fail(e,
                         "%s: " PAIRS " is %s, expected neighbours or halves",
                         kv_h5_path(h), is);
}

/* Reads which layers have no attention: one byte per layer of the model's own
 * count. */
static int get_stateful(struct kv_h5 *h, struct kv_shape *s, struct kv_err *e)
{
    size_t n_dims, dims[KV_H5_MAX_DIMS], n;

    if (kv_h5_dims(h, "/stateful", &n_dims, dims, e))
        return -1;
    n = dims[0];
    if (n_dims == 1 && n > s->n_layers && n <= KV_MAX_LAYERS) {
        if (get_layers(h, "/stateful", n, s->stateful, e))
            return -1;
        s->n_states = kv_shape_states(s, n);
        if (s->n_states + s->n_layers == n)
            return 0;
    }
    return kv_fail(e, "%s: /stateful does not leave %zu layers with attention",
                   kv_h5_path(h), s->n_layers);
}

/* Reads the attributes that only some models have. */
static int get_rest(struct kv_h5 *h, struct kv_shape *s, struct kv_err *e)
{
    if ((kv_h5_has_attr(h, "/", "latent") && get_latent(h, s, e)) ||
        get_pairs(h, s, e))
        return -1;
    if (kv_h5_has_attr(h, "/", "attn_cap") &&
        get_scale(h, "attn_cap", &s->cap, e))
        return -1;
    if (kv_h5_has_attr(h, "/", "shared_layers") &&
        kv_h5_get_size(h, "/", "shared_layers", 1, KV_MAX_LAYERS, &s->n_shared,
                       e))
        return -1;
    if (kv_h5_has(h, "/slopes") && get_slopes(h, s, e))
        return -1;
    if (kv_h5_has(h, "/still") &&
        get_layers(h, "/still", s->n_layers, s->still, e))
        return -1;
    if (kv_h5_has(h, "/stateful") && get_stateful(h, s, e))
        return -1;
    return kv_h5_has_attr(h, "/", "slide_window") || kv_h5_has(h, "/slides")
               ? get_slides(h, s, e)
               : 0;
}

int kv_h5_get_shape(struct kv_h5 *h, struct kv_shape *s, struct kv_err *e)
{
    enum { MANY = 1 << 16 };
    const char *path = kv_h5_path(h);
    size_t n_dims, dims[KV_H5_MAX_DIMS];

    memset(s, 0, sizeof(*s));
    if (kv_h5_get_size(h, "/", "n_layers", 1, MANY, &s->n_layers, e) ||
        kv_h5_get_size(h, "/", "n_heads", 1, MANY, &s->n_heads, e) ||
        kv_h5_get_size(h, "/", "n_kv_heads", 1, s->n_heads, &s->n_kv_heads,
                       e) ||
        kv_h5_get_size(h, "/", "head_dim", 2, KV_MAX_HEAD_DIM, &s->head_dim,
                       e) ||
        get_scale(h, "attn_scale", &s->attn_scale, e) ||
        kv_h5_dims(h, "/inv_freq", &n_dims, dims, e))
        return -1;
    if (s->n_heads % s->n_kv_heads)
        return kv_fail(e,
                       "%s: %zu query heads do not divide among %zu KV heads",
                       path, s->n_heads, s->n_kv_heads);
    if (s->head_dim % 2)
        return kv_fail(e, "%s: head_dim is %zu, expected an even number", path,
                       s->head_dim);
    if (n_dims != 1)
        return kv_fail(e, "%s: /inv_freq has %zu dimensions, expected 1", path,
                       n_dims);
    if (dims[0] > s->head_dim / 2)
        return kv_fail(e, "%s: /inv_freq has %zu entries, expected at most %zu",
                       path, dims[0], s->head_dim / 2);
    s->n_rot = dims[0];
    return get_freq(h, "/inv_freq", s->n_rot, s->inv_freq, e) ||
                   get_rest(h, s, e)
               ? -1
               : 0;
}

/* Compares which layers slide, their window and their RoPE.  Files of older
 * versions lack this, and had only one RoPE. */
static int slide_alike(const struct kv_shape *is, const struct kv_shape *want,
                       struct kv_err *e)
{
    const size_t freq = slide_rot(is) * sizeof(*is->slide_freq);

    if (!is->slide_window && !memcmp(want->slide_freq, want->inv_freq, freq))
        return 0;
    if (is->slide_window != want->slide_window)
        return kv_fail(e, "its sliding window is %zu tokens, expected %zu",
                       is->slide_window, want->slide_window);
    for (size_t i = 0; i < is->n_layers && is->slide_window; i++)
        if (kv_shape_slides(is, i) != kv_shape_slides(want, i))
            return kv_fail(e, "its layers that slide are others");
    if (is->slide_window && memcmp(is->slide_freq, want->slide_freq, freq) != 0)
        return kv_fail(
            e, "its rotary frequencies of layers that slide are others");
    return 0;
}

int kv_shape_same(const struct kv_shape *is, const struct kv_shape *want,
                  struct kv_err *e)
{
    const struct {
        const char *what;
        size_t is, want;
    } counts[] = {
        {"layers", is->n_layers, want->n_layers},
        {"query heads", is->n_heads, want->n_heads},
        {"KV heads", is->n_kv_heads, want->n_kv_heads},
        {"channels per head", is->head_dim, want->head_dim},
        {"channels of a latent", is->latent, want->latent},
        {"rotary pairs", is->n_rot, want->n_rot},
        {"channels per head that slides", is->slide_dim, want->slide_dim},
        {"KV heads that slide", is->slide_kv_heads, want->slide_kv_heads},
        {"layers that share keys and values", is->n_shared, want->n_shared},
    };
    static const char *const pairs[] = {"halves of a head", "neighbours"};

    for (size_t i = 0; i < sizeof(counts) / sizeof(*counts); i++)
        if (counts[i].is != counts[i].want)
            return kv_fail(e, "it has %zu %s, expected %zu", counts[i].is,
                           counts[i].what, counts[i].want);
    if (is->neighbours != want->neighbours)
        return kv_fail(e, "its RoPE turns %s, expected %s",
                       pairs[is->neighbours], pairs[want->neighbours]);
    if (memcmp(is->inv_freq, want->inv_freq,
               is->n_rot * sizeof(*is->inv_freq)) != 0)
        return kv_fail(e, "its rotary frequencies are others");
    if (is->attn_scale != want->attn_scale)
        return kv_fail(e, "its attention scale is %g, expected %g",
                       (double)is->attn_scale, (double)want->attn_scale);
    if (is->cap != want->cap)
        return kv_fail(e, "its soft cap is %g, expected %g", (double)is->cap,
                       (double)want->cap);
    if (is->alibi != want->alibi ||
        (is->alibi &&
         memcmp(is->slope, want->slope, is->n_heads * sizeof(*is->slope)) != 0))
        return kv_fail(e, "its ALiBi slopes are others");
    if (memcmp(is->still, want->still, sizeof(is->still)) != 0)
        return kv_fail(e, "its layers without RoPE are others");
    return slide_alike(is, want, e);
}
